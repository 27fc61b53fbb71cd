"""Run an hour of load and kill a node every five minutes: `python -m bench.soak` (make soak).

Three nodes run as processes. One topic is deleted by size and rolls continuously, one is compacted. An
idempotent producer writes numbered values to each of their partitions: for some seconds as fast as it can,
with the reader and the cleaner at work, and then at half the rate that it reached. The reader, a separate
process, checks that each partition has each number once and in order. Each sample has every node's resources
(memory, descriptors, maps) and the latency of acknowledgements, from one record in fifty.

At the end no record may be lost, the compacted topic must have the last value of each key, and the resources
must be flat: the median of the last quarter is compared with the second quarter's. Prints a table and writes
build/bench-soak.json. The exit code is 1 if a check failed.

 --minutes N        duration (60)
 --kill-every N     seconds between kills (300)
 --share F          share of the reached rate (0.5)
 --records-per-second N   this rate instead
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from tests.support.node_processes import NodeProcesses

BUILD = Path(__file__).parents[1] / "build"
DIRECTORY, RESULT = BUILD / "bench-soak", BUILD / "bench-soak.json"
WAIT_S = 120.0
PARTITIONS = 4
VALUE_BYTES = 200
KEYS = 10_000
KEPT, COMPACTED = "soak-kept", "soak-compacted"
SMALL_SEGMENTS = {"segment.bytes": str(16 << 20), "min.insync.replicas": "2"}
CONFIGS = {
    KEPT: {**SMALL_SEGMENTS, "retention.bytes": str(64 << 20), "cleanup.policy": "delete"},
    COMPACTED: {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.3"},
}
DOWN_S = 10.0
SAMPLE_S = 10.0
TRIAL_S = 15.0
AT_ONCE = 1_000
# A callback for every record would cost the writer more time than writing.
TOLD_OF = 50
# The largest growth that counts as flat: caches fill, and a restarted node begins with less.
GROWTH = {"resident_mb": 1.25, "descriptors": 1.25, "maps": 1.25, "p50_ms": 1.5, "p99_ms": 2.0}


@dataclass
class Sample:
    """The measurements of some seconds; resources are the largest of any node."""

    second: float
    resident_mb: float
    descriptors: int
    maps: int
    acknowledged: int
    read: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


@dataclass
class Writer:
    """An idempotent producer at a steady rate; it numbers the values of each partition."""

    bootstrap: str
    stopping: threading.Event = field(default_factory=threading.Event)
    took_ms: list[float] = field(default_factory=list)
    last_of_key: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    # Records per second, and the start of that rate; None: as many as possible.
    _pace: tuple[float, float] | None = None

    def keep_to(self, rate: float) -> None:
        """Write `rate` records per second from now on."""
        self._pace = rate, time.monotonic()

    def run(self) -> None:
        """Write until stopped, then wait until everything is acknowledged."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )
        paced = 0
        places = cycle([(topic, partition) for topic in CONFIGS for partition in range(PARTITIONS)])
        while not self.stopping.is_set():
            due = AT_ONCE
            if self._pace is not None:
                rate, since = self._pace
                due = int((time.monotonic() - since) * rate) - paced
                paced += due
            for _ in range(due):
                self._send(producer, *next(places))
            producer.poll(0.002 if self._pace is not None else 0)
        if producer.flush(WAIT_S):
            self.failed.append(f"{len(producer)} records were not acknowledged in {WAIT_S:.0f} s")

    def _send(self, producer: Producer, topic: str, partition: int) -> None:
        number = self.counts.get((topic, partition), 0)
        self.counts[topic, partition] = number + 1
        value = b"%d " % number + b"v" * VALUE_BYTES
        key = b"%d" % (number % KEYS)
        if topic == COMPACTED:
            self.last_of_key[partition, key] = value
        at = time.perf_counter()
        while True:
            try:
                if number % TOLD_OF:
                    producer.produce(topic, value, key, partition=partition)
                else:
                    producer.produce(
                        topic,
                        value,
                        key,
                        partition=partition,
                        on_delivery=lambda error, _: self._told(error, at),
                    )
                return
            except BufferError:
                producer.poll(0.1)

    def _told(self, error: object, at: float) -> None:
        if error is not None:
            self.failed.append(str(error))
        self.took_ms.append((time.perf_counter() - at) * 1e3)


class Reader:
    """Reads the kept topic from its first record on, and checks that each number comes once and in order.

    It runs in its own process, because it would take half of the writer's processor time.
    """

    def __init__(self, bootstrap: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._next = context.Array("q", PARTITIONS, lock=False)
        self._wrong = context.SimpleQueue()
        self._stopping = context.Event()
        self._process = context.Process(
            target=follow, args=(bootstrap, self._next, self._wrong, self._stopping), daemon=True
        )
        self._process.start()

    @property
    def next_number(self) -> dict[int, int]:
        """The next expected number of each partition."""
        return dict(enumerate(self._next))

    def stop(self) -> list[str]:
        """Stop, and return the errors found: at most one line for each partition."""
        self._stopping.set()
        self._process.join(WAIT_S)
        wrong = []
        while not self._wrong.empty():
            wrong.append(self._wrong.get())
        if self._process.exitcode != 0:
            wrong.append(f"the reader exited with code {self._process.exitcode}")
        return wrong


def follow(bootstrap: str, next_number: Any, wrong: Any, stopping: Any) -> None:
    """Read until stopped, or until a number is not the next one."""
    consumer = reader_of(bootstrap, KEPT)
    held = set(range(PARTITIONS))
    while not stopping.is_set():
        for message in consumer.consume(5_000, 0.2):
            partition = message.partition()
            if message.error() is not None:
                wrong.put(str(message.error()))
                stopping.set()
                break
            number = int(message.value().split(b" ", 1)[0])
            if partition in held and number != next_number[partition]:
                wrong.put(f"partition {partition}: {number} follows {next_number[partition] - 1}")
                held.discard(partition)
            next_number[partition] = number + 1
    consumer.close()


def reader_of(bootstrap: str, topic: str) -> Consumer:
    """Return a consumer of all partitions, from their first record on."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "soak", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    return consumer


# ---- checks ------------------------------------------------------------------------------------------------


def held_by(nodes: NodeProcesses) -> tuple[float, int, int]:
    """Return memory in MB, descriptors and maps, each of the node that uses most."""
    found = []
    for node in nodes.live:
        process = Path(f"/proc/{nodes.pid(node)}")
        status = (process / "status").read_text().splitlines()
        anonymous = sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssShmem")))
        descriptors = len(list((process / "fd").iterdir()))
        found.append((anonymous / 1024, descriptors, len((process / "maps").read_text().splitlines())))
    return max(each[0] for each in found), max(each[1] for each in found), max(each[2] for each in found)


def sample(nodes: NodeProcesses, writer: Writer, reader: Reader, second: float) -> Sample:
    """Take a sample of the time since the last one."""
    took, writer.took_ms = sorted(writer.took_ms), []
    resident_mb, descriptors, maps = held_by(nodes)
    return Sample(
        second=second,
        resident_mb=resident_mb,
        descriptors=descriptors,
        maps=maps,
        acknowledged=len(took) * TOLD_OF,
        read=sum(reader.next_number.values()),
        p50_ms=took[len(took) // 2] if took else float("nan"),
        p99_ms=took[len(took) * 99 // 100] if took else float("nan"),
        longest_ms=took[-1] if took else float("nan"),
    )


def missing_keys(bootstrap: str, writer: Writer) -> list[str]:
    """Return the keys of the compacted topic whose last value is not the last acknowledged one."""
    consumer, found = reader_of(bootstrap, COMPACTED), dict[tuple[int, bytes], bytes]()
    ends = {p: consumer.get_watermark_offsets(TopicPartition(COMPACTED, p))[1] for p in range(PARTITIONS)}
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and any(consumer_is_behind(consumer, ends)):
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                found[message.partition(), message.key()] = message.value()
    consumer.close()
    return [f"{place}" for place, value in writer.last_of_key.items() if found.get(place) != value]


def consumer_is_behind(consumer: Consumer, ends: dict[int, int]) -> list[bool]:
    """Return, for each partition, whether the consumer has not reached its end."""
    places = consumer.position([TopicPartition(COMPACTED, partition) for partition in ends])
    return [place.offset < ends[place.partition] for place in places]


# ---- the run -----------------------------------------------------------------------------------------------


class Soak:
    """One run of the soak test."""

    def __init__(self, minutes: float, kill_every_s: float, share: float, rate: float | None) -> None:
        self._seconds = minutes * 60
        self._kill_every_s = kill_every_s
        self._share = share
        self._rate = rate
        self.samples: list[Sample] = []
        self.kills: list[float] = []
        self.faults: list[str] = []

    def run(self) -> None:
        """Run the load and the kills, take samples, and check what was written."""
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        with NodeProcesses(DIRECTORY, log_cleaner_backoff_ms=1000) as nodes:
            self._make_topics(nodes)
            writer, reader = Writer(nodes.bootstrap), Reader(nodes.bootstrap)
            writing = threading.Thread(target=writer.run, daemon=True)
            writing.start()
            rate = self._rate or self._share * self._reached(writer)
            print(f"{rate:,.0f} records a second for {self._seconds / 60:.0f} minutes", flush=True)
            writer.keep_to(rate)
            self._watch(nodes, writer, reader)
            writer.stopping.set()
            writing.join(2 * WAIT_S)
            self._let_read(writer, reader)
            self.faults += [*writer.failed[:5], *reader.stop()]
            self.faults += [
                f"wrong last value: key {each}" for each in missing_keys(nodes.bootstrap, writer)[:5]
            ]
        shutil.rmtree(DIRECTORY, ignore_errors=True)

    def _make_topics(self, nodes: NodeProcesses) -> None:
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
        topics = [NewTopic(name, PARTITIONS, 3, config=config) for name, config in CONFIGS.items()]
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S)

    def _reached(self, writer: Writer) -> float:
        """Return the records acknowledged per second while it wrote as fast as it could."""
        time.sleep(TRIAL_S)
        acknowledged, writer.took_ms = len(writer.took_ms) * TOLD_OF, []
        return acknowledged / TRIAL_S

    def _watch(self, nodes: NodeProcesses, writer: Writer, reader: Reader) -> None:
        began = time.monotonic()
        turns, next_kill, down = cycle(nodes.ids), self._kill_every_s, None
        while (second := time.monotonic() - began) < self._seconds:
            time.sleep(SAMPLE_S)
            self.samples.append(sample(nodes, writer, reader, second + SAMPLE_S))
            print(json.dumps(asdict(self.samples[-1])), flush=True)
            if down is not None and second > self.kills[-1] + DOWN_S:
                nodes.start(down)
                down = None
            elif down is None and second >= next_kill:
                down, next_kill = next(turns), second + self._kill_every_s
                nodes.kill(down)
                self.kills.append(second)
        if down is not None:
            nodes.start(down)

    def _let_read(self, writer: Writer, reader: Reader) -> None:
        wanted = {partition: writer.counts[KEPT, partition] for partition in range(PARTITIONS)}
        until = time.monotonic() + WAIT_S
        while reader.next_number != wanted and time.monotonic() < until:
            time.sleep(0.1)
        if reader.next_number != wanted:
            self.faults.append(f"read up to {reader.next_number}, expected {wanted}")

    def judge(self) -> Table:
        """Return the medians of the second and the last quarter; growth beyond the limit is a fault."""
        quarter = len(self.samples) // 4
        table = Table("what", "second quarter", "last quarter", "ratio", "at most")
        for name, limit in GROWTH.items():
            before, after = (
                statistics.median(getattr(each, name) for each in part)
                for part in (self.samples[quarter : 2 * quarter], self.samples[-quarter:])
            )
            ratio = after / before
            table.add_row(name, f"{before:,.1f}", f"{after:,.1f}", f"{ratio:.2f}", f"{limit:g}")
            if ratio > limit:
                self.faults.append(f"{name} grew {ratio:.2f} times, more than {GROWTH[name]}")
        return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kill-every", type=float, default=300)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--records-per-second", type=float)
    given = parser.parse_args()
    soak = Soak(given.minutes, given.kill_every, given.share, given.records_per_second)
    soak.run()
    Console(width=120).print(soak.judge())
    kept: dict[str, Any] = {
        "load": os.getloadavg(),
        "kills": soak.kills,
        "faults": soak.faults,
        "samples": [asdict(each) for each in soak.samples],
    }
    RESULT.write_text(json.dumps(kept, indent=1) + "\n")
    for fault in soak.faults:
        print(f"check failed: {fault}", file=sys.stderr)
    acknowledged = sum(each.acknowledged for each in soak.samples)
    print(f"{acknowledged:,} records acknowledged, {len(soak.kills)} kills, {len(soak.faults)} faults")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
