"""Listeners get the content of the log, whether the leader still holds it in memory or not."""

from __future__ import annotations

import pytest

from kreplica.metadata.batch_reader import Batch, BatchReader, decoded
from kreplica.raft import epoch_state
from kreplica.raft.epoch_state import LeaderState
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.sim.quorum.sim_quorum import SimQuorum
from tests.unit.raft.test_kafka_raft_client import started


class Recorder:
    """A listener beside the quorum's own, which keeps the batches that it gets."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def handle_commit(self, reader: BatchReader) -> None:
        self.batches += reader

    def handle_load_snapshot(self, reader: object) -> None:
        raise AssertionError(reader)

    def handle_leader_change(self, leader: object) -> None:
        """It decides nothing."""

    def begin_shutdown(self) -> None:
        """Nothing is under way here."""


def in_the_log(quorum: SimQuorum, node_id: int) -> list[Batch]:
    return [decoded(batch) for batch in quorum.node(node_id).log.log.batches(0, isolation="high_watermark")]


def recorder_at(quorum: SimQuorum, node_id: int) -> Recorder:
    recorder = Recorder()
    quorum.client(node_id).register(recorder)
    quorum.pass_time(1)
    return recorder


@pytest.mark.parametrize("voters", [1, 3])
def test_what_a_leader_hands_over_is_what_it_has_appended(voters: int) -> None:
    quorum, leader = started(voters)
    recorder = recorder_at(quorum, leader)
    for number in range(20):
        quorum.append(leader, *(f"{number} {each}" for each in range(number % 3 + 1)))
        quorum.pass_time(number % 4)
    quorum.pass_time(500)
    assert recorder.batches == in_the_log(quorum, leader)
    assert len(quorum.node(leader).values) == sum(number % 3 + 1 for number in range(20))


def test_a_listener_that_comes_late_gets_all_batches() -> None:
    quorum, leader = started(1)
    for number in range(3):
        quorum.append(leader, str(number))
        quorum.pass_time(1)
    assert recorder_at(quorum, leader).batches == in_the_log(quorum, leader)


def test_a_leader_reads_nothing_again_that_it_has_just_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum = SimQuorum(1)
    quorum.start()
    leader = quorum.elect()
    quorum.pass_time(1)
    read, offsets = KafkaMetadataLog.read, list[int]()

    def noted(log: KafkaMetadataLog, start: int, size: int, *, committed_only: bool) -> object:
        offsets.append(start)
        return read(log, start, size, committed_only=committed_only)

    monkeypatch.setattr(KafkaMetadataLog, "read", noted)
    quorum.append(leader, "a")
    quorum.pass_time(1)
    assert quorum.node(leader).values == ["a"]
    assert not offsets


def test_a_leader_without_followers_keeps_only_a_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_state, "MOST_APPENDED", 3)
    quorum, leader = started(3)
    recorder = recorder_at(quorum, leader)
    for other in set(quorum.machines) - {leader}:
        quorum.network.cut(leader, other)
    for number in range(48):
        quorum.append(leader, str(number))
        quorum.scheduler.run_due()
    state = quorum.client(leader).quorum.state
    assert isinstance(state, LeaderState)
    assert len(state.appended) == 3
    assert quorum.node(leader).log.high_watermark < state.appended[0].base_offset
    quorum.network.heal_all()
    assert quorum.run_until(lambda: len(quorum.node(leader).values) == 48)
    assert recorder.batches == in_the_log(quorum, leader)
    assert not state.appended
