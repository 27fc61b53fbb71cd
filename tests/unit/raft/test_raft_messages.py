"""The quorum's messages: each survives the way over a wire, and one for another partition is refused."""

from __future__ import annotations

import pytest

from kreplica.common.errors import InvalidRequest
from kreplica.common.message import replace
from kreplica.common.types import Uuid
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft import raft_messages as messages
from kreplica.raft.raft_messages import FetchPosition, Standing
from kreplica.raft.voter_set import ReplicaKey
from tests.support.messages import read_by_kio, written

ONE, OTHER = ReplicaKey(1, Uuid(b"1" * 16)), ReplicaKey(2, Uuid(b"2" * 16))
LED, UNLED = Standing(0, 1, 3), Standing(74, None, 3)
SNAPSHOT = OffsetAndEpoch(9, 2)
POSITION = FetchPosition(3, 9, 2, 0)

REQUESTS = [
    messages.make_vote_request("c", ONE, OTHER, 3, OffsetAndEpoch(9, 2), pre_vote=True),
    messages.make_begin_request("c", OTHER, 1, 3),
    messages.make_end_request("c", 1, 3, [OTHER, ReplicaKey(3)]),
    messages.make_fetch_request("c", OTHER, POSITION, max_wait_ms=50, max_bytes=1 << 20),
    messages.make_snapshot_request("c", OTHER, 3, SNAPSHOT, 17, 1 << 20),
]
ANSWERS = [
    messages.make_vote_response(LED, granted=True),
    messages.make_begin_response(LED),
    messages.make_end_response(UNLED),
    messages.make_fetch_response(LED, high_watermark=9, log_start_offset=1, records=b"records"),
    messages.make_fetch_response(LED, diverging=OffsetAndEpoch(4, 1)),
    messages.make_fetch_response(LED, snapshot_id=SNAPSHOT),
    messages.make_snapshot_response(LED, SNAPSHOT, size=99, position=17, data=b"bytes"),
]


@pytest.mark.parametrize("message", [*REQUESTS, *ANSWERS], ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message):
    wire = written(message)
    read, size = read_by_kio(type(message), wire)
    assert size == len(wire)
    assert read == message


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_a_response_names_the_leader(answer):
    standing = messages.standing_in(messages.only_partition(answer))
    assert standing in (LED, UNLED)


def test_a_fetch_response_carries_a_diverging_epoch_or_a_snapshot_id():
    diverging, snapshot = (messages.only_partition(answer) for answer in ANSWERS[4:6])
    assert messages.offset_and_epoch_in(diverging.diverging_epoch) == OffsetAndEpoch(4, 1)
    assert messages.offset_and_epoch_in(diverging.snapshot_id) is None
    assert messages.offset_and_epoch_in(snapshot.diverging_epoch) is None
    assert messages.offset_and_epoch_in(snapshot.snapshot_id) == SNAPSHOT


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_request_for_another_partition_or_for_several_is_refused(request_):
    topic = request_.topics[0]
    partition = topic.partitions[0]
    index = "partition" if hasattr(partition, "partition") else "partition_index"
    elsewhere = replace(topic, partitions=(replace(partition, **{index: 1}),))
    for topics in ((), (topic, topic), (replace(topic, partitions=()),), (elsewhere,)):
        with pytest.raises(InvalidRequest):
            messages.only_partition(replace(request_, topics=topics))
    refused = messages.top_level_error(request_, InvalidRequest.code)
    assert refused.error_code.value == InvalidRequest.code
