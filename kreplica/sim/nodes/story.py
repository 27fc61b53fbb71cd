"""Story: what happens in a random run of whole nodes, told in lines that a person can read.

Each line has its moment and what was done: to a node, a disk, a link, by a client; and what came of it:
answers, and what the metadata log commits. It changes nothing of the run. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.sim.network import LinkConditions
from kreplica.sim.nodes.committed_news import CommittedNews
from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.nodes.sim_client import SimClient
from kreplica.sim.scheduler import SimEvent

# What is told of a node, under the name by which it is done.
LIVES: Mapping[str, str] = {
    "start": "start {0}",
    "kill": "kill {0}",
    "power_cut": "power-cut {0}",
    "pause": "pause {0}",
    "resume": "resume {0}",
    "shut_down": "stop {0} in order",
    "jump_date": "date {0} {1:+} ms",
    "disconnect": "disconnect {0}",
}
ADMIN = ("create_topic", "delete_topic", "create_partitions", "alter_config", "reassign", "elect_leader")


class Story:
    """Of `driver`, from now on; it has not run yet."""

    def __init__(self, driver: NodeDriver) -> None:
        self.lines: list[str] = []
        self._driver = driver
        self._cluster = cluster = driver.cluster
        self._news = CommittedNews(cluster)
        self._disks: dict[int, tuple[bool, bool, int]] = {}
        for name, text in LIVES.items():
            self._tell_before(cluster, name, text.format)
        network = cluster.network
        self._tell_before(network, "cut", _cut)
        self._tell_before(network, "heal", "heal {0} {1}".format)
        self._tell_before(network, "set_conditions", _conditions)
        for client in cluster.clients:
            self._tell_client(client)
        checks = cluster.scheduler.after_event

        def after(event: SimEvent) -> None:
            if checks is not None:
                checks(event)
            self._look()

        cluster.scheduler.after_event = after

    def tell(self, text: str) -> None:
        """One more line."""
        self.lines.append(f"{self._cluster.time.now_ns / 1e6:9.1f} ms  {text}")

    # ---- what is done -------------------------------------------------------------------------------------

    def _tell_before(self, owner: Any, name: str, text: Callable[..., str]) -> None:
        does = getattr(owner, name)

        def tell_and_do(*arguments: Any, **named: Any) -> Any:
            self.tell(text(*arguments, **named))
            return does(*arguments, **named)

        setattr(owner, name, tell_and_do)

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
            told = [str(each) for each in arguments] + [f"{key}={value}" for key, value in named.items()]
            self.tell(f"{who}: {what} {', '.join(told)}")
            return self._told(does(*arguments, **named), f"{who}: {what} {arguments[0]}", lambda _: "done")

        setattr(client.admin, name, ask)

    def _told(self, future: Future[Any], who: str, text: Callable[[Any], str]) -> Future[Any]:
        def done(answer: Future[Any]) -> None:
            error = answer.exception()
            self.tell(f"{who}: {text(answer.result()) if error is None else type(error).__name__}")

        future.add_done_callback(done)
        return future

    # ---- what comes of it ---------------------------------------------------------------------------------

    def _look(self) -> None:
        self._news.look()
        for line in self._news.take():
            self.tell(line)
        for node_id, machine in self._cluster.brokers.items():
            now = machine.storage.full, machine.disk_fault is not None, machine.flush_us
            before = self._disks.get(node_id, (False, False, 0))
            if now != before:
                self._disks[node_id] = now
                self.tell(f"the disk of {node_id}: {_disk(*now)}")


def _cut(sender: int, receiver: int, *, both_ways: bool = True) -> str:
    return f"cut {sender} {receiver}" if both_ways else f"cut {sender}->{receiver}"


def _conditions(conditions: LinkConditions) -> str:
    low, high = conditions.delay_us
    order = "" if conditions.in_order else ", in any order"
    chances = f"{conditions.loss:.1%} lost, {conditions.duplication:.1%} twice"
    return f"all links: {low}-{high} us, {chances}{order}"


def _appended(made: Any) -> str:
    return "sent" if made.base_offset < 0 else f"acknowledged at offset {made.base_offset}"


def _read(fetched: Any) -> str:
    records = [record for batch in fetched.batches() if not batch.is_control for record in batch]
    return " ".join(f"{each.offset}={bytes(each.value).decode()}" for each in records) or "nothing"


def _disk(is_full: bool, is_broken: bool, flush_us: int) -> str:
    state = "full" if is_full else "broken" if is_broken else "well"
    return f"{state}, {flush_us} us a flush" if flush_us else state
