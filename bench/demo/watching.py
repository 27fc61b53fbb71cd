"""Watch the cluster from outside while it is written to.

Log ends are read from the nodes' directories, those of a dead node included; anyone may read them beside the
writer. Leaders and ISRs come from the cluster, through a stock client. Thread rule: two threads look
repeatedly; each appends to its own list. `close` ends both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import kreplica
from bench.demo.producing import LIBRDKAFKA
from kreplica.common.errors import InvalidFile, KafkaStorageError

EVERY_SECONDS = 0.1
ASK_SECONDS = 2.0
WAIT_SECONDS = 60.0


class NotInTime(RuntimeError):
    """A condition did not become true in time."""


class Offsets(NamedTuple):
    """The positions of the logs at a time: each node's log end offset of each partition, and for each
    partition the highest high watermark that a replica has published."""

    seconds: float
    ends: Mapping[int, tuple[int, ...]]
    high_watermarks: tuple[int, ...]


class PartitionState(NamedTuple):
    """The leader of a partition, -1 for none, and its ISR."""

    leader: int
    isr: tuple[int, ...]

    def __str__(self) -> str:
        return " ".join(f"{node}*" if node == self.leader else str(node) for node in self.isr)


class IsrChange(NamedTuple):
    """The states of all partitions from this time on."""

    seconds: float
    states: tuple[PartitionState, ...]


class Event(NamedTuple):
    """An action on the cluster."""

    seconds: float
    text: str


class Watch:
    """Records the cluster's states; `directories`: the log directories by node.

    Times are since `started` (time.monotonic).
    """

    def __init__(
        self, directories: Mapping[int, Path], bootstrap: str, topic: str, partitions: int, started: float
    ) -> None:
        self.offsets: list[Offsets] = []
        self.isr_history: list[IsrChange] = []
        self.events: list[Event] = []
        self._topic = topic
        self._started = started
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=LIBRDKAFKA)
        self._directories = {
            node: [path / f"{topic}-{p}" for p in range(partitions)] for node, path in directories.items()
        }
        self._logs: dict[int, list[kreplica.Log]] = {}
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        looks = (self._look_at_logs, self._look_at_states)
        self._threads = [threading.Thread(target=self._repeat, args=(look,), daemon=True) for look in looks]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for logs in self._logs.values():
            for log in logs:
                log.close()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def record(self, text: str) -> Event:
        """Record an action on the cluster at the current time."""
        self.events.append(Event(self.now(), text))
        return self.events[-1]

    @property
    def states(self) -> tuple[PartitionState, ...]:
        """The latest states of all partitions."""
        return self.isr_history[-1].states

    def wait_until(self, what: str, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait for a condition. Raises NotInTime with `what`, and the error if a watching thread failed."""
        deadline = time.monotonic() + seconds
        while not holds():
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise NotInTime(f"not true after {seconds:.0f} s: {what}")
            self._stopped.wait(0.02)

    def all_in_sync(self, nodes: Sequence[int]) -> bool:
        """Return whether the latest states have all of these nodes in all ISRs."""
        return bool(self.isr_history) and all(set(state.isr) == set(nodes) for state in self.states)

    def all_at(self, ends: Sequence[int]) -> bool:
        """Return whether each replica of each partition was last seen to end there, with all of it
        committed."""
        last = self.offsets[-1] if self.offsets else None
        wanted = tuple(ends)
        return (
            last is not None
            and last.high_watermarks == wanted
            and all(each == wanted for each in last.ends.values())
        )

    # ---- the threads -------------------------------------------------------------------------------------

    def _repeat(self, look: Callable[[], None]) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            try:
                look()
            except Exception as error:
                self._error = error
                return

    def _look_at_logs(self) -> None:
        if not self._are_open():
            return
        seconds = self.now()
        ends = {node: tuple(log.log_end_offset for log in logs) for node, logs in self._logs.items()}
        of_replicas = [[log.high_watermark for log in logs] for logs in self._logs.values()]
        marks = tuple(max(replicas) for replicas in zip(*of_replicas, strict=True))
        self.offsets.append(Offsets(seconds, ends, marks))

    def _are_open(self) -> bool:
        """Return whether the logs are open, which takes until each node has created its own."""
        try:
            for node, directories in self._directories.items():
                logs = self._logs.setdefault(node, [])
                for directory in directories[len(logs) :]:
                    logs.append(kreplica.Log.open(directory, read_only=True))
        except (InvalidFile, KafkaStorageError):
            return False
        return True

    def _look_at_states(self) -> None:
        try:
            topics = self._admin.list_topics(self._topic, timeout=ASK_SECONDS).topics
        except KafkaException:
            return  # asked of the node that has just died; others are asked next
        found = topics[self._topic].partitions
        states = tuple(PartitionState(found[p].leader, tuple(sorted(found[p].isrs))) for p in sorted(found))
        if states and (not self.isr_history or states != self.states):
            self.isr_history.append(IsrChange(self.now(), states))
