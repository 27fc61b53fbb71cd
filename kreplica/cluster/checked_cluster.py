"""CheckedCluster: a cluster for tests that checks its invariants.

It records what was acknowledged; `check` then verifies everything that clients and replicas rely on. The
invariants are numbered as in docs/SIMULATOR.md. A simulation checks them after every event, this class once
the cluster has settled.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from kreplica.client.producer import AppendResult
from kreplica.cluster.administration import TIMEOUT
from kreplica.cluster.cluster import Cluster
from kreplica.cluster.promises import SETTLE_TIMEOUT, BrokenPromise, Promises
from kreplica.common.errors import RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.controller.topic_settings import DEFAULTS

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordList as RecordList


class CheckedCluster(Cluster):
    """A Cluster that records acknowledged appends and verifies its invariants in `check`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._promises = Promises()
        super().__init__(*arguments, **named)

    def append(self, topic: str, records: RecordList, **options: Any) -> Future[AppendResult]:
        """Append as Cluster does, and record what is acknowledged with acks=all."""
        self._pending.require_open()
        epochs = {at: known.leader_epoch for at, _, known in self._newest().partitions() if at.topic == topic}
        future = super().append(topic, records, **options)
        if options.get("acks", "all") in ("all", -1):
            future.add_done_callback(partial(self._promises.note, leader_epochs=epochs))
        return future

    def elect(
        self,
        topic: str,
        partition: int = 0,
        kind: Literal["preferred", "unclean"] = "preferred",
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        """Elect a leader as Cluster does. An unclean election may lose what was acknowledged before."""
        super().elect(topic, partition, kind, timeout=timeout)
        if kind == "unclean":
            self._promises.void(TopicPartition(topic, partition))

    def check(self, timeout: float | None = None) -> None:
        """Resume and reconnect running nodes, let the cluster settle, and verify all invariants.

        Dead nodes stay dead. Where a topic allows unclean elections, only what was acknowledged since the
        partition's last election counts. Raises BrokenPromise if an invariant does not hold within `timeout`
        seconds (SETTLE_TIMEOUT by default).
        """
        if self.failures:
            raise BrokenPromise(f"tasks of nodes failed: {self.failures}")
        self.heal()
        for node_id in self.nodes:
            if self._nodes.local(node_id).is_paused:
                self.resume(node_id)
        if not self._nodes.has_quorum():
            return  # without a quorum nothing settles
        problems: list[str] = []

        def is_well() -> bool:
            metadata, live = self._newest(), {each.config.node_id: each for each in self._nodes.live()}
            is_allowed = any(node.config.log.unclean_leader_election_enable for node in live.values())
            defaults = DEFAULTS._replace(unclean_leader_election_enable=is_allowed)
            self._promises.void_where_lost(metadata, defaults)
            problems[:] = self._promises.problems(metadata, live)
            return not problems

        try:
            self._wait(is_well, SETTLE_TIMEOUT if timeout is None else timeout, "the cluster did not settle")
        except RequestTimedOut:
            raise BrokenPromise("\n".join(problems)) from None
