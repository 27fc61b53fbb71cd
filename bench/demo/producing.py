"""Send every flight with librdkafka (confluent-kafka), and note when each is acknowledged.

The producer is a stock client with acks=all and idempotence, so a record retried after a failover is in the
log once. Thread rule: one thread sends and handles acknowledgements; state that others read changes by single
assignments. `close` ends it at any time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Producer

from bench.demo.flights import Message

# Interval of handling acknowledgements and pacing; without a pace, the number of records between them.
BURST_SECONDS = 0.005
BURST = 100
SHOW_EVERY_SECONDS = 0.1
FLUSH_SECONDS = 120.0
# Acknowledgements are counted in intervals of this length.
INTERVAL_SECONDS = 0.05

LIBRDKAFKA = logging.getLogger("bench.demo.librdkafka")
LIBRDKAFKA.addHandler(logging.NullHandler())
LIBRDKAFKA.propagate = False


class ProducingFailed(RuntimeError):
    """The producer failed, or not all flights were acknowledged."""


class Silence(NamedTuple):
    """A time without acknowledgements; both fields in seconds, `began` since the start."""

    began: float
    seconds: float


class Acknowledgements:
    """The acknowledgements of each partition, and its longest silence."""

    def __init__(self, partitions: int) -> None:
        self.count = 0
        self.counts = [0] * partitions
        self.ends = [0] * partitions  # the offset after the highest acknowledged one
        self.intervals: Counter[tuple[int, int]] = Counter()  # by partition and number of the interval
        self.silences = [Silence(0.0, 0.0)] * partitions
        self._last: list[float | None] = [None] * partitions

    def add(self, partition: int, offset: int, seconds: float) -> None:
        """Record that a record of `partition` was acknowledged at `offset`."""
        last = self._last[partition]
        if last is not None and seconds - last > self.silences[partition].seconds:
            self.silences[partition] = Silence(last, seconds - last)
        self._last[partition] = seconds
        self.counts[partition] += 1
        self.ends[partition] = max(self.ends[partition], offset + 1)
        self.intervals[partition, int(seconds / INTERVAL_SECONDS)] += 1
        self.count += 1

    def forget_silences(self) -> None:
        """Restart measuring the longest silences; a silence in progress keeps its beginning."""
        self.silences = [Silence(0.0, 0.0)] * len(self.silences)

    def sent_nothing(self) -> None:
        """Restart current silences now, because nothing was sent until now."""
        self._last = [None] * len(self._last)

    @property
    def is_exact(self) -> bool:
        """Whether the acknowledged offsets have no gap: as many as acknowledged records."""
        return self.counts == self.ends


class FlightProducer:
    """Sends all flights in its own thread.

    `rate`: maximum flights per second, 0 for no limit. After each number of flights in `holds` it waits for
    `go_on`. Its thread calls `show(count)` with the number of acknowledged flights.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        messages: Iterable[Message],
        total: int,
        *,
        rate: float,
        holds: Collection[int],
        show: Callable[[int], object],
    ) -> None:
        self.acknowledged = Acknowledgements(partitions)
        self.failed: list[str] = []
        self.started = time.monotonic()
        self.seconds = 0.0
        self._topic = topic
        self._messages = messages
        self._total = total
        self._rate = rate
        self._holds = holds
        self._burst = max(1, int(rate * BURST_SECONDS)) if rate else BURST
        self._show = show
        self._shown = 0.0
        self._sent = 0
        self._go_ons = threading.Semaphore(0)
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        # Kafka's clients use Murmur2 of the key as well.
        settings = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
        }
        self._producer = Producer(settings, logger=LIBRDKAFKA)
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.started = time.monotonic()
        self._thread.start()

    def go_on(self) -> None:
        """Continue after the current hold, or after the next one."""
        self._go_ons.release()

    @property
    def has_nothing_under_way(self) -> bool:
        """Whether all records sent are acknowledged, or the thread has ended."""
        return self.is_done or self.acknowledged.count == self._sent

    @property
    def is_done(self) -> bool:
        """Whether the thread has ended, with or without an error."""
        return not self._thread.is_alive()

    def wait_for(self, count: int) -> None:
        """Wait until `count` flights are acknowledged. Raises ProducingFailed if the thread ends before."""
        while self.acknowledged.count < count and not self.is_done:
            self._thread.join(0.02)
        self._check(count)

    def wait_until_done(self) -> None:
        """Wait until all flights are acknowledged. Raises ProducingFailed."""
        self._thread.join()
        self._check(self._total)

    def close(self) -> None:
        """End the thread and give up unacknowledged records."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.purge()
        self._producer.poll(0)

    def _check(self, count: int) -> None:
        if self._error is not None:
            raise ProducingFailed(f"the producer failed: {self._error}") from self._error
        if self.failed:
            raise ProducingFailed(f"{len(self.failed):,} flights were refused, the first: {self.failed[0]}")
        if self.acknowledged.count < count:
            raise ProducingFailed(f"only {self.acknowledged.count:,} flights were acknowledged")

    # ---- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._send_all()
            self._finish()
        except Exception as error:
            self._error = error

    def _send_all(self) -> None:
        first, begun = 0, time.monotonic()
        for sent, (key, value) in enumerate(self._messages):
            if sent in self._holds:
                self._hold()
                first, begun = sent, time.monotonic()
            if self._stopped.is_set():
                return
            self._send(key, value)
            self._sent = sent + 1
            if sent % self._burst == 0:
                due = begun + (sent - first) / self._rate if self._rate else 0.0
                self._poll(max(0.0, due - time.monotonic()))

    def _hold(self) -> None:
        while not (self._go_ons.acquire(blocking=False) or self._stopped.is_set()):
            self._poll(BURST_SECONDS)
        self.acknowledged.sent_nothing()

    def _send(self, key: bytes | None, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
            except BufferError:
                # The queue is full, which happens while a partition has no leader for long.
                self._poll(SHOW_EVERY_SECONDS)
                if self._stopped.is_set():
                    return
            else:
                return

    def _finish(self) -> None:
        deadline = time.monotonic() + FLUSH_SECONDS
        while len(self._producer) and not self._stopped.is_set() and time.monotonic() < deadline:
            self._poll(BURST_SECONDS)
        self.seconds = time.monotonic() - self.started
        self._show(self.acknowledged.count)

    def _poll(self, patience_seconds: float) -> None:
        """Handle acknowledgements for this time, at least those already received."""
        until = time.monotonic() + patience_seconds
        while True:
            self._producer.poll(max(0.0, until - time.monotonic()))
            now = time.monotonic()
            if now - self._shown > SHOW_EVERY_SECONDS:
                self._shown = now
                self._show(self.acknowledged.count)
            if now >= until:
                return

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failed.append(error.str())
            return
        self.acknowledged.add(message.partition(), message.offset(), time.monotonic() - self.started)
