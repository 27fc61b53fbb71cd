"""A round of cleaning beside a slow model of it: the same records, at the same offsets, round after round."""

from __future__ import annotations

import itertools
import os
import random
from collections import namedtuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kreplica._core.offset_map import OffsetMap
from kreplica.common.config import LogConfig
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.log import log_loader
from kreplica.log.cleaner import Cleaner, log_to_clean
from kreplica.log.log_loader import OpenOptions
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.logs import ManualClock

PATH = "/data/t-0"
DELETE_RETENTION_MS = 1000
SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": 700,
    "segment_index_bytes": 4096,
    "max_message_bytes": 4096,
    "index_interval_bytes": 100,
    "delete_retention_ms": DELETE_RETENTION_MS,
    "message_timestamp_after_max_ms": 1 << 60,
}

Row = namedtuple("Row", "offset key value timestamp")


class Batch:
    """A batch as the model knows it: its records, whose transaction it is in, its delete horizon."""

    def __init__(self, rows, last_offset, transaction=None):
        self.rows = rows
        self.last_offset = last_offset
        self.transaction = transaction
        self.horizon = None


class Transaction:
    def __init__(self):
        self.committed = None  # None: open


class Model:
    """The log, and what it should hold."""

    def __init__(self):
        self.storage = SimStorage()
        self.storage.make_directory(PATH)
        self.clock = ManualClock()
        self.batches = []
        self.sequences = {}
        self.open = {}
        self.epochs = {}
        self.checkpoint = 0
        self.log = self.opened()

    def opened(self):
        config = LogConfig(**SETTINGS)
        partition = TopicPartition("t", 0)
        return log_loader.load(
            PATH, partition, config, self.storage, self.clock, OpenOptions(is_only_replica=True)
        )

    # ---- what happens to the log --------------------------------------------------------------------------

    def append(self, records, producer=None, *, transactional=False, codec="none"):
        fields = {"codec": codec}
        transaction = None
        if producer is not None:
            sequence = self.sequences.get(producer, 0)
            fields |= {"producer_id": producer, "producer_epoch": self.epochs.get(producer, 0)}
            fields |= {"base_sequence": sequence, "transactional": transactional}
            self.sequences[producer] = sequence + len(records)
            if transactional:
                transaction = self.open.setdefault(producer, Transaction())
        now_ms = self.clock.now_ms
        given = [(b"%d" % key, value, (), now_ms + late) for key, value, late in records]
        info = self.log.append_as_leader(build(given, now_ms=now_ms, **fields), 0)
        rows = [Row(info.base_offset + n, key, value, time) for n, (key, value, _, time) in enumerate(given)]
        self.batches.append(Batch(rows, info.last_offset, transaction))

    def plain(self, records, codec):
        self.append(records, codec=codec)

    def idempotent(self, producer, records, codec):
        self.append(records, producer, codec=codec)

    def transactional(self, producer, records, codec):
        self.append(records, producer + 100, transactional=True, codec=codec)

    def end(self, producer, commit, bumps):
        producer += 100
        transaction = self.open.pop(producer, None)
        if transaction is None:
            return
        transaction.committed = commit
        if bumps:
            # As since KIP-890: the marker carries a later epoch, whose sequences begin anew.
            self.epochs[producer] = self.epochs.get(producer, 0) + 1
            self.sequences[producer] = 0
        marker = build_end_transaction_marker(
            EndTransactionMarker(commit, 0),
            producer_id=producer,
            producer_epoch=self.epochs.get(producer, 0),
            timestamp_ms=self.clock.now_ms,
        )
        self.log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)

    def roll(self):
        self.log.roll()

    def tick(self, milliseconds):
        self.clock.now_ms += milliseconds

    def restart(self, forgets):
        before = self.producers()
        if forgets:
            # The producers can be recovered only from the log itself.
            self.log.flush()
            self.storage = self.storage.after_kill()
            for name in self.storage.list_directory(PATH):
                if not name.endswith((".log", ".index", ".timeindex", ".txnindex")):
                    self.storage.remove(f"{PATH}/{name}")
        else:
            self.log.close()
        self.log = self.opened()
        assert self.log.damage is None
        assert self.producers() == before
        self.check()

    def producers(self):
        return {
            p.producer_id: (
                p.producer_epoch,
                p.last_sequence,
                p.last_data_offset,
                p.current_txn_first_offset,
            )
            for p in self.log.producers.active_producers.values()
        }

    def clean(self, keys, step_bytes):
        """One round; `keys`: how many the map may hold."""
        log, now_ms = self.log, self.clock.now_ms
        chosen = log_to_clean(log, self.checkpoint, now_ms)
        if chosen.stop_offset <= chosen.first_dirty_offset:
            return
        offset_map = OffsetMap(keys * 20 + 32, random.Random(keys).randbytes(16))
        steps = Cleaner(offset_map, step_bytes).clean(
            log, chosen.first_dirty_offset, chosen.stop_offset, now_ms
        )
        stats = last_of(steps)
        assert chosen.first_dirty_offset < stats.end_offset <= chosen.stop_offset
        self.checkpoint = stats.end_offset
        self.cleaned(chosen.first_dirty_offset, stats.end_offset - 1, now_ms)
        self.check()

    # ---- the model ----------------------------------------------------------------------------------------

    def cleaned(self, first_dirty, latest, now_ms):
        aborted = [b for b in self.batches if b.transaction and b.transaction.committed is False]
        newest = {}
        for batch in self.batches:
            if batch not in aborted:
                for row in batch.rows:
                    if first_dirty <= row.offset <= latest:
                        newest[row.key] = row.offset
        for batch in self.batches:
            known = batch.last_offset <= latest
            if batch in aborted and known:
                batch.rows = []
                continue
            batch.rows = [
                row
                for row in batch.rows
                if row.offset > latest
                or (
                    row.offset >= newest.get(row.key, -1)
                    and (row.value is not None or batch.horizon is None or now_ms < batch.horizon)
                )
            ]
            if known and batch.horizon is None and any(row.value is None for row in batch.rows):
                batch.horizon = now_ms + DELETE_RETENTION_MS

    def rows(self, *, committed=False):
        bound = self.log.last_stable_offset if committed else self.log.log_end_offset
        return [
            row
            for batch in self.batches
            for row in batch.rows
            if row.offset < bound
            and not (committed and batch.transaction and batch.transaction.committed is False)
        ]

    def check(self):
        log = self.log
        for isolation in ("log_end", "txn_committed"):
            found = [
                Row(record.offset, record.key, record.value, record.timestamp)
                for batch in log.batches(log.log_start_offset, isolation=isolation)
                if not batch.is_control
                for record in batch
            ]
            assert found == self.rows(committed=isolation == "txn_committed")
        self.check_segments()

    def check_segments(self):
        """Each segment begins where the one before it ends, and its indexes lead to its batches."""
        segments = list(self.log.local.segments)
        for before, after in itertools.pairwise(segments):
            assert before.next_offset() == after.base_offset
        for name in self.storage.list_directory(PATH):
            assert not name.endswith((".cleaned", ".swap")), name


def last_of(steps):
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


VALUES = st.one_of(st.none(), st.binary(min_size=1, max_size=60))
RECORDS = st.lists(st.tuples(st.integers(0, 4), VALUES, st.integers(0, 50)), min_size=1, max_size=4)
CODECS = st.sampled_from(["none", "none", "none", "gzip", "snappy", "lz4", "zstd"])
PRODUCERS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), RECORDS, CODECS),
        st.tuples(st.just("idempotent"), PRODUCERS, RECORDS, CODECS),
        st.tuples(st.just("transactional"), PRODUCERS, RECORDS, CODECS),
        st.tuples(st.just("end"), PRODUCERS, st.booleans(), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("tick"), st.sampled_from([1, 500, 1000, 5000])),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("clean"), st.sampled_from([1, 3, 100]), st.sampled_from([1, 200, 1 << 20])),
    ),
    max_size=60,
)


@settings(
    max_examples=int(os.environ.get("KREPLICA_CLEANS", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(STEPS)
def test_a_cleaned_log_holds_what_the_model_says(steps):
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    for producer in (1, 2, 3):
        model.end(producer, commit=producer != 2, bumps=producer == 3)
    # Rounds enough for tombstones and markers to go.
    for number in range(3):
        model.plain([(5, b"%d" % number, 0)], "none")
        model.roll()
        model.tick(DELETE_RETENTION_MS)
        while model.checkpoint < model.log.local.segments.active.base_offset:
            model.clean(3, 1 << 20)
    model.restart(True)
