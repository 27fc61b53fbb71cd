"""Story: a readable account of a random run.

Each line has its time and an action on a node, disk or link, or of a client, or a result. It does not change
the run. For whole nodes: sim.nodes.node_story; for brokers: sim.broker_story. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kreplica.common.future import Future
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.sim.machines import SimMachines
from kreplica.sim.network import LinkConditions
from kreplica.sim.scheduler import SimEvent

# The methods that the story records for a node, and their lines.
LIVES: Mapping[str, str] = {
    "start": "start {0}",
    "kill": "kill {0}",
    "power_cut": "power-cut {0}",
    "pause": "pause {0}",
    "resume": "resume {0}",
    "jump_date": "date {0} {1:+} ms",
}


class Story:
    """Records the story of `cluster`, in which nothing has happened yet."""

    def __init__(self, cluster: SimMachines) -> None:
        self.lines: list[str] = []
        self._cluster = cluster
        self._disks: dict[int, tuple[bool, bool, int]] = {}
        for name, text in LIVES.items():
            self._tell_before(cluster, name, text.format)
        network = cluster.network
        self._tell_before(network, "cut", _cut)
        self._tell_before(network, "heal", "heal {0} {1}".format)
        self._tell_before(network, "set_conditions", _conditions)
        checks = cluster.scheduler.after_event

        def after(event: SimEvent) -> None:
            if checks is not None:
                checks(event)
            self._look()

        cluster.scheduler.after_event = after

    def tell(self, text: str) -> None:
        """Add a line."""
        self.lines.append(f"{self._cluster.time.now_ns / NANOSECONDS_PER_MS:9.1f} ms  {text}")

    # ---- internals ----------------------------------------------------------------------------------------

    def _tell_before(self, owner: Any, name: str, text: Callable[..., str]) -> None:
        does = getattr(owner, name)

        def tell_and_do(*arguments: Any, **named: Any) -> Any:
            self.tell(text(*arguments, **named))
            return does(*arguments, **named)

        setattr(owner, name, tell_and_do)

    def _told(self, future: Future[Any], who: str, text: Callable[[Any], str]) -> Future[Any]:
        def done(answer: Future[Any]) -> None:
            error = answer.exception()
            self.tell(f"{who}: {text(answer.result()) if error is None else type(error).__name__}")

        future.add_done_callback(done)
        return future

    def _look(self) -> None:
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


def _disk(is_full: bool, is_broken: bool, flush_us: int) -> str:
    state = "full" if is_full else "broken" if is_broken else "well"
    return f"{state}, {flush_us} us a flush" if flush_us else state
