"""What crosses the network of the simulator as bytes."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v1 import response
from kio.schema.vote.v2 import request

from kreplica.common.errors import InvalidRequest
from kreplica.sim.nodes.wire_copy import wire_copy


def vote(**changes: Any) -> request.VoteRequest:
    asked = request.PartitionData(
        partition_index=0,
        replica_epoch=7,
        replica_id=1,
        replica_directory_id=uuid.UUID(int=9),
        voter_directory_id=None,
        last_offset_epoch=6,
        last_offset=42,
        pre_vote=True,
    )
    topic = request.TopicData(
        topic_name="__cluster_metadata", partitions=(dataclasses.replace(asked, **changes),)
    )
    return request.VoteRequest(cluster_id="cluster", voter_id=2, topics=(topic,))


def test_a_copy_says_the_same_and_shares_nothing() -> None:
    sent = vote()
    copied = wire_copy(sent)
    assert copied == sent
    assert copied is not sent
    assert copied.topics[0].partitions[0] is not sent.topics[0].partitions[0]


def test_records_are_carried_over_and_do_not_change_with_the_senders_memory() -> None:
    memory = bytearray(b"r" * 5_000)
    part = response.PartitionSnapshot(
        index=0,
        error_code=ErrorCode.none,
        snapshot_id=response.SnapshotId(end_offset=10, epoch=3),
        current_leader=response.LeaderIdAndEpoch(leader_id=1, leader_epoch=3),
        size=5_000,
        position=0,
        unaligned_records=memoryview(memory),
    )
    topic = response.TopicSnapshot(name="__cluster_metadata", partitions=(part,))
    sent = response.FetchSnapshotResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.none, topics=(topic,)
    )
    copied = wire_copy(sent)
    memory[:] = b"x" * 5_000
    assert bytes(copied.topics[0].partitions[0].unaligned_records) == b"r" * 5_000


def test_what_a_field_cannot_hold_is_found() -> None:
    with pytest.raises(InvalidRequest):
        wire_copy(vote(replica_epoch=1 << 31))


@pytest.mark.parametrize("body", [None, "a request of the simulator's own"])
def test_what_is_no_message_of_kafkas_stays(body: object) -> None:
    assert wire_copy(body) is body
