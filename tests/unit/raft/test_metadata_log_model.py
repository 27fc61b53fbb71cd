"""Three logs of a quorum by its rules, without its client: elections, replication, snapshots, kills.

Any electable node may lead. A follower is brought to the leader's log by the answers of the logs alone.
Nothing committed may be cut, and each log must hold exactly what the leaders of its epochs wrote.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.common.errors import FatalTruncation
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog, ValidOffsetAndEpochKind
from kreplica.sim.storage import SimStorage
from tests.support.logs import NOW_MS, ManualClock
from tests.support.metadata_logs import append, content, machine, open_metadata_log, snapshot

SETTINGS = {"log_segment_bytes": 1024, "max_retention_ms": 0, "max_retention_bytes": -1}
VOTERS = range(3)

steps = st.lists(
    st.tuples(
        st.sampled_from(["elect", "append", "replicate", "replicate", "snapshot", "clean", "kill"]),
        st.integers(0, 2),
        st.integers(1, 7),
    ),
    min_size=20,
    max_size=50,
)


class Quorum:
    """`written[offset]`: the epoch of what is committed at that offset."""

    def __init__(self) -> None:
        self.storages: list[SimStorage] = [machine() for _ in VOTERS]
        self.logs: list[KafkaMetadataLog] = [self.opened(n) for n in VOTERS]
        self.epoch = 0
        self.leader: int | None = None
        self.epoch_start = 0
        self.committed: list[int] = []

    def opened(self, node: int) -> KafkaMetadataLog:
        return open_metadata_log(self.storages[node], ManualClock(), **SETTINGS)

    def elect(self, node: int, _: int) -> None:
        standings = [(log.last_fetched_epoch, log.end_offset) for log in self.logs]
        if sum(standing <= standings[node] for standing in standings) < 2:
            return
        self.epoch += 1
        self.leader = node
        self.epoch_start = self.logs[node].end_offset
        self.logs[node].begin_epoch(self.epoch)
        self.append(node, 1)

    def append(self, _: int, count: int) -> None:
        if self.leader is not None:
            append(self.logs[self.leader], count, epoch=self.epoch)
            self.logs[self.leader].flush()

    def replicate(self, node: int, rounds: int) -> None:
        if self.leader is None or node == self.leader:
            return
        leader, follower = self.logs[self.leader], self.logs[node]
        for _ in range(rounds):
            if self.fetch(leader, follower):
                # The next fetch reports the follower's flushed offset to the leader.
                self.commit(leader, follower)
                if follower.end_offset == leader.end_offset:
                    return

    def fetch(self, leader: KafkaMetadataLog, follower: KafkaMetadataLog) -> bool:
        answer = leader.validate_offset_and_epoch(follower.end_offset, follower.last_fetched_epoch)
        if answer.kind is ValidOffsetAndEpochKind.DIVERGING:
            before = follower.end_offset
            follower.truncate_to_end_offset(answer.offset_and_epoch)
            assert follower.end_offset < before
            return False
        if answer.kind is ValidOffsetAndEpochKind.SNAPSHOT:
            source = leader.read_snapshot(answer.offset_and_epoch)
            assert source is not None
            target = follower.store_snapshot(answer.offset_and_epoch)
            target.append(0, source.read(0, source.size_bytes))
            target.freeze()
            assert follower.truncate_to_latest_snapshot()
            return False
        found = leader.read(follower.end_offset, 300, committed_only=False).records
        if found is not None:
            follower.append_as_follower(found, self.epoch)
            follower.flush()
        return True

    def commit(self, leader: KafkaMetadataLog, follower: KafkaMetadataLog) -> None:
        mark = min(follower.flushed_offset, leader.flushed_offset)
        if mark > self.epoch_start and mark > leader.high_watermark:
            leader.update_high_watermark(mark)
            for offset in range(len(self.committed), mark):
                epoch = leader.log.epochs.epoch_for_offset(offset)
                assert epoch is not None
                self.committed.append(epoch)
        follower.update_high_watermark(leader.high_watermark)

    def snapshot(self, _: int, number: int) -> None:
        for log in self.logs[:number]:
            self.snapshot_of(log)

    def snapshot_of(self, log: KafkaMetadataLog) -> None:
        end = log.high_watermark
        latest = log.latest_snapshot_id
        if end > log.start_offset and (latest is None or latest.offset < end):
            # Of a follower the mark may lie inside a batch: it ends where the batch before does.
            bases = [batch.base_offset for batch in log.log.batches(log.start_offset, end)]
            ends = [batch.next_offset for batch in log.log.batches(log.start_offset, end)]
            last = ends[-1] if ends[-1] <= end else bases[-1]
            if last > (0 if latest is None else latest.offset) and last > log.start_offset:
                snapshot(log, last, self.committed[last - 1])

    def clean(self, _: int, number: int) -> None:
        for log in self.logs[:number]:
            log.clean(NOW_MS + 1_000_000)

    def kill(self, node: int, power: int) -> None:
        storage = self.storages[node]
        self.storages[node] = storage.after_power_cut() if power > 3 else storage.after_kill()
        self.logs[node] = self.opened(node)
        if node == self.leader:
            self.leader = None

    def check(self) -> None:
        for log in self.logs:
            assert content(log) == list(range(log.start_offset, log.end_offset))
            assert log.high_watermark <= len(self.committed)
            for offset in range(log.start_offset, log.high_watermark):
                assert log.log.epochs.epoch_for_offset(offset) == self.committed[offset]
            latest = log.latest_snapshot_id
            assert log.start_offset == 0 or (latest is not None and latest.offset >= log.start_offset)
            assert latest is None or self.committed[latest.offset - 1] == latest.epoch
        holders = [log for log in self.logs if log.end_offset >= len(self.committed) and self.agrees(log)]
        assert len(holders) >= 2, "what is committed is on a majority"

    def agrees(self, log: KafkaMetadataLog) -> bool:
        return all(
            log.log.epochs.epoch_for_offset(offset) == self.committed[offset]
            for offset in range(log.start_offset, len(self.committed))
        )


@settings(max_examples=40)
@given(steps)
def test_no_history_of_a_quorum_cuts_what_is_committed(history: list[tuple[str, int, int]]) -> None:
    quorum = Quorum()
    try:
        for name, node, number in [("elect", 0, 1), *history]:
            getattr(quorum, name)(node, number)
            quorum.check()
    except FatalTruncation as error:
        raise AssertionError("committed records were to be cut") from error
    # At last one node leads, and the others follow it to the same end.
    quorum.leader = None
    for node in VOTERS:
        quorum.elect(node, 1)
    assert quorum.leader is not None
    for node in VOTERS:
        quorum.replicate(node, 60)
        quorum.check()
    ends = {OffsetAndEpoch(log.end_offset, log.last_fetched_epoch) for log in quorum.logs}
    assert len(ends) == 1
    for log in quorum.logs:
        log.abandon()
