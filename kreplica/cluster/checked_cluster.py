"""CheckedCluster: a cluster that can be held to its promises, for tests.

It notes what was acknowledged, and `check` looks whether everything that a client or another replica relies
on holds. The invariants have the numbers that docs/SIMULATOR.md gives them; in a simulation they are checked
after every event, here once the cluster has come to rest.
"""

from __future__ import annotations

from typing import Any

from kreplica.cluster.cluster import Cluster
from kreplica.cluster.promises import SETTLE_TIMEOUT, BrokenPromise, Promises
from kreplica.common.errors import RequestTimedOut
from kreplica.common.future import Future


class CheckedCluster(Cluster):
    """See the module."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._promises = Promises()
        super().__init__(*arguments, **named)

    def append(self, topic: str, partition: Any, records: Any = None, **options: Any) -> Future[Any]:
        """As Cluster.append; what is acknowledged by all is noted."""
        future: Future[Any] = super().append(topic, partition, records, **options)
        if options.get("acks", "all") in ("all", -1):
            future.add_done_callback(self._promises.note)
        return future

    def check(self, timeout: float | None = None) -> None:
        """Resume and join the nodes that run, let them come to rest, and look at everything.

        Nodes that are dead stay so. Raises BrokenPromise where it is not well within `timeout` seconds (by
        default SETTLE_TIMEOUT).
        """
        if self.failures:
            raise BrokenPromise(f"tasks of nodes failed: {self.failures}")
        self.heal()
        for node_id in self.nodes:
            if self._nodes.local(node_id).is_paused:
                self.resume(node_id)
        if not self._nodes.has_quorum():
            return  # nothing can settle
        problems: list[str] = []

        def is_well() -> bool:
            problems[:] = self._promises.problems(
                self._nodes.newest_metadata(), {each.config.node_id: each for each in self._nodes.live()}
            )
            return not problems

        try:
            self._wait(is_well, SETTLE_TIMEOUT if timeout is None else timeout, "the cluster does not settle")
        except RequestTimedOut:
            raise BrokenPromise("\n".join(problems)) from None
