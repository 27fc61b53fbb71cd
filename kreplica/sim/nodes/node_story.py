"""NodeStory: a readable account of a random run of whole nodes.

Each line has its time and an action on a node, disk or link, or of a client, or a result: a response, or
committed metadata. It does not change the run. Thread rule: one thread.
"""

from __future__ import annotations

from typing import Any

from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.sim.nodes.committed_news import CommittedNews
from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.nodes.sim_client import SimClient
from kreplica.sim.story import Story

ADMIN = ("create_topic", "delete_topic", "create_partitions", "alter_config", "reassign", "elect_leader")


class NodeStory(Story):
    """Records the story of `driver`, which has not run yet."""

    def __init__(self, driver: NodeDriver) -> None:
        cluster = driver.cluster
        super().__init__(cluster)
        self._news = CommittedNews(cluster)
        self._tell_before(cluster, "shut_down", "stop {0} in order".format)
        self._tell_before(cluster, "disconnect", "disconnect {0}".format)
        for client in cluster.clients:
            self._tell_client(client)

    # ---- actions ------------------------------------------------------------------------------------------

    def _tell_client(self, client: SimClient) -> None:
        who = f"client {client.client_id}"
        send, fetch = client.producer.send, client.fetcher.fetch

        def sent(at: TopicPartition, records: Any, *, acks: int = -1, **named: Any) -> Future[Any]:
            values = ",".join(bytes(record).decode() for record in records)
            self.tell(f"{who}: produce {values} to {at}, acks={'all' if acks == -1 else acks}")
            return self._told(send(at, records, acks=acks, **named), f"{who}: {values}", _appended)

        def fetched(at: TopicPartition, offset: int, **named: Any) -> Future[Any]:
            self.tell(f"{who}: read {at} from {offset}")
            return self._told(fetch(at, offset, **named), f"{who}: {at}", _read)

        client.producer.send = sent  # type: ignore[method-assign]
        client.fetcher.fetch = fetched  # type: ignore[method-assign]
        for name in ADMIN:
            self._tell_admin(client, who, name)

    def _tell_admin(self, client: SimClient, who: str, name: str) -> None:
        does, what = getattr(client.admin, name), name.replace("_", " ")

        def ask(*arguments: Any, **named: Any) -> Future[Any]:
            words = [str(each) for each in arguments] + [f"{key}={value}" for key, value in named.items()]
            self.tell(f"{who}: {what} {', '.join(words)}")
            return self._told(does(*arguments, **named), f"{who}: {what} {arguments[0]}", lambda _: "done")

        setattr(client.admin, name, ask)

    # ---- results ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._news.look()
        for line in self._news.take():
            self.tell(line)
        super()._look()


def _appended(made: Any) -> str:
    return "sent" if made.base_offset < 0 else f"acknowledged at offset {made.base_offset}"


def _read(fetched: Any) -> str:
    records = [record for batch in fetched.batches() if not batch.is_control for record in batch]
    return " ".join(f"{each.offset}={bytes(each.value).decode()}" for each in records) or "nothing"
