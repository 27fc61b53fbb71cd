"""ReplicaView: what is seen of a replica whose log has failed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.invariants.replica_view import Cell, ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated

AT = TopicPartition("t", 0)


@pytest.mark.parametrize(("is_leader", "seen"), [(True, 3), (False, 1)])
def test_a_leader_commits_on_what_it_had_before_its_log_failed(is_leader, seen):
    log = SimpleNamespace(
        high_watermark=1, log_end_offset=3, log_start_offset=0, damages=None, is_offline=False, closed=False
    )
    partition = SimpleNamespace(
        log=log,
        term=object(),
        state=SimpleNamespace(maximal_isr=(1, 2)),
        is_leader=is_leader,
        leader=1,
        leader_epoch=0,
        isr=(1, 2),
    )
    view = ReplicaView(1, AT, Uuid(bytes(16)))
    view.program = SimpleNamespace(replica_manager=SimpleNamespace(partitions={AT: partition}))
    view.partition, view.log = partition, log
    view.cells = [Cell(0, 0, b"a"), Cell(0, 0, b"b"), Cell(0, 0, b"c")]
    view.high_watermark = 1
    log.is_offline, log.failure, log.high_watermark, log.log_end_offset = True, OSError(), 5, 9
    assert view.look()
    assert (view.high_watermark, view.log_end) == (seen, 3)
    assert not view.look()


@pytest.mark.parametrize("was_read", [True, False])
def test_a_batch_may_rot_after_it_was_read_also_if_its_first_records_are_deleted(was_read):
    batch = bytearray(BatchBuilder().build([(None, b"a"), (None, b"b"), (None, b"c")], now_ms=0))
    view = ReplicaView(1, AT, Uuid(bytes(16)))
    view.log = SimpleNamespace(
        log_start_offset=1,
        damages=SimpleNamespace(at=lambda _: None),
        read=lambda *_, **__: SimpleNamespace(records=bytes(batch)),
    )
    if was_read:
        view._read(3)
    batch[-1] ^= 1
    if was_read:
        view._read(3)
        assert [None if each is None else each.value for each in view.cells] == [None, b"b", b"c"]
        return
    with pytest.raises(InvariantViolated, match="rotted"):
        view._read(3)
