"""What the cluster looks like from outside while it is written to.

Where the logs stand is read from the nodes' directories, as anybody may read them beside their writers, those
of a dead node included; who leads and who is in sync is asked of the cluster by a stock client. Thread rule:
two threads of its own look again and again, each with its own list, and only append to it; `close` ends both.
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
    """Something did not happen that was waited for."""


class Offsets(NamedTuple):
    """Where the logs stood: of each node the log end offset of each partition, and of each partition the
    highest high watermark that a replica has published."""

    seconds: float
    ends: Mapping[int, tuple[int, ...]]
    high_watermarks: tuple[int, ...]


class PartitionState(NamedTuple):
    """Who leads a partition, -1: nobody, and who is in sync."""

    leader: int
    isr: tuple[int, ...]

    def __str__(self) -> str:
        return " ".join(f"{node}*" if node == self.leader else str(node) for node in self.isr)


class IsrChange(NamedTuple):
    """The states of all partitions from this time on."""

    seconds: float
    states: tuple[PartitionState, ...]


class Event(NamedTuple):
    """Something that was done to the cluster."""

    seconds: float
    text: str


class Watch:
    """See the module. `directories`: those of the nodes' logs, by node; times are since `started`
    (time.monotonic)."""

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

    def tell(self, text: str) -> Event:
        """Note that something is done to the cluster now."""
        self.events.append(Event(self.now(), text))
        return self.events[-1]

    @property
    def states(self) -> tuple[PartitionState, ...]:
        """Those of all partitions as they were last seen."""
        return self.isr_history[-1].states

    def wait_until(self, what: str, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Return when it holds. Raises NotInTime, which says `what` it was, and what a look failed with."""
        deadline = time.monotonic() + seconds
        while not holds():
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise NotInTime(f"after {seconds:.0f} s still not: {what}")
            self._stopped.wait(0.02)

    def all_in_sync(self, nodes: Sequence[int]) -> bool:
        """Whether all of these nodes were in sync in all partitions when it was last asked."""
        return bool(self.isr_history) and all(set(state.isr) == set(nodes) for state in self.states)

    def all_at(self, ends: Sequence[int]) -> bool:
        """Whether each replica of each partition was last seen to end there, and to know it as committed."""
        last = self.offsets[-1] if self.offsets else None
        wanted = tuple(ends)
        return (
            last is not None
            and last.high_watermarks == wanted
            and all(each == wanted for each in last.ends.values())
        )

    # ---- its threads -------------------------------------------------------------------------------------

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
        """Whether the logs are open, which they are once each node has made its own."""
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
