"""Invalid and hostile requests to a node's listener get a typed error or a closed connection.

After each the next client is served, and the process has not grown by what was claimed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tracemalloc
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kreplica.broker.api_versions import API_RANGES, request_type, response_type
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import at, replace, structure_of
from kreplica.common.messages import data
from kreplica.common.messages.administration import CreatableTopic, CreateTopicsRequest
from kreplica.common.messages.controllers import EnvelopeRequest
from kreplica.common.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribeProducersRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kreplica.common.messages.data import DescribeProducersRequestTopicRequest as ProducersTopic
from kreplica.common.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kreplica.common.messages.quorum import VoteRequest
from kreplica.common.messages.quorum import VoteRequestPartitionData as VotePartition
from kreplica.common.messages.quorum import VoteRequestTopicData as VoteTopic
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
)
from tests.support.messages import messages
from tests.support.replicas import batch
from tests.support.requests import frame_of, response_of
from tests.support.sockets import connected, framed, read_frame, until
from tests.support.tcp_cluster import WAIT_S, TcpClient, TcpCluster

FetchRequest4: Any = at(data.FetchRequest, 4)
FetchTopic4: Any = structure_of(FetchRequest4, "topics")
FetchPartition4: Any = structure_of(FetchTopic4, "partitions")

INVALID_TIMEOUT = ErrorCode.invalid_transaction_timeout
EXAMPLES = int(os.environ.get("KREPLICA_FUZZ_FRAMES", "60"))
# More than a frame of what is sent here, its copies, and what the tests' own messages take.
FLAT_BYTES = 24 << 20
ALL_TOPICS = MetadataRequest(
    topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
)
METADATA_TOPIC = uuid.UUID(int=1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("hostile"), 1) as cluster:
        with TcpClient(cluster) as client:
            client.admin.create_topic("orders", partitions=1, replication_factor=1).result(WAIT_S)
        yield cluster


@pytest.fixture
def address(cluster: TcpCluster) -> Iterator[tuple[str, int]]:
    """Where it listens; whatever the test did, it goes on and has not grown."""
    address = cluster.addresses[1]
    assert_served(address)
    tracemalloc.start()
    yield address
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < FLAT_BYTES
    assert_served(address)
    assert cluster.failures == []


def assert_served(address: tuple[str, int]) -> None:
    with connected(address) as client:
        assert "orders" in [topic.name for topic in ask(client, ALL_TOPICS).topics]


def ask(client: socket.socket, request: Any) -> Any:
    """The answer to a request. Raises EOFError if the connection was closed instead."""
    client.sendall(framed(frame_of(request, 1)))
    frame = read_frame(client)
    if not frame:
        raise EOFError
    return response_of(response_type(request.__api_key__, request.__version__), frame, 1)


def is_closed(client: socket.socket) -> bool:
    return read_frame(client) == b""


def header(api_key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", api_key, version, 1, -1) + (b"\0" if flexible else b"")


PRODUCE_3 = header(0, 3) + struct.pack(">hhi", -1, -1, 1000)
METADATA_1, METADATA_12 = header(3, 1), header(3, 12, flexible=True)

CLOSED = {
    "1 length -1": b"\xff\xff\xff\xff",
    "2 length 0": b"\0\0\0\0",
    "3 length 0x7fffffff": b"\x7f\xff\xff\xff" + b"x" * 1000,
    "4 length above the limit": ((100 << 20) + 1).to_bytes(4, "big") + b"x" * 1000,
    "8 TLS hello": bytes.fromhex("16030100c8010000c40303") + b"\1" * 200,
    "8 HTTP": b"GET / HTTP/1.1\r\nHost: kreplica\r\n\r\n",
    "9 unknown API": framed(header(999, 0)),
    "10 bad version": framed(header(3, 99)),
    "10 negative version": framed(header(3, -1)),
    "11 negative count": framed(PRODUCE_3 + struct.pack(">i", -2)),
    "11 null for an array": framed(PRODUCE_3 + struct.pack(">i", -1)),
    "12 count beyond what is left": framed(PRODUCE_3 + struct.pack(">i", 0x7FFFFFFF) + b"x" * 100),
    "12 compact count beyond what is left": framed(METADATA_12 + b"\xff\xff\xff\xff\x0f" + b"x" * 100),
    "12 count at which kio ends the process": framed(METADATA_12 + b"\xf1\xff\xff\xff\x0f"),
    "13 arrays in arrays": framed(
        PRODUCE_3 + struct.pack(">i", 100_000) + (b"\0\1t" + struct.pack(">i", 0)) * 99_999
    ),
    "13 many small elements": framed(METADATA_1 + struct.pack(">i", 1_000_000) + b"\0\1t" * 1_000_000),
    "14 string length -2": framed(METADATA_1 + struct.pack(">ih", 1, -2)),
    "14 client id of length -2": framed(struct.pack(">hhih", 3, 1, 1, -2) + b"x" * 20),
    "15 invalid UTF-8": framed(METADATA_1 + struct.pack(">ih", 1, 2) + b"\xff\xfe"),
    "14 compact string that is longer than any": framed(
        header(22, 5, flexible=True) + b"\xc1\xb8\x02" + b"x" * 40_000 + b"\0" * 20
    ),
    "16 varint of six bytes": framed(METADATA_12 + b"\x80" * 6 + b"\0" * 20),
    "16 varint of eleven bytes": framed(METADATA_12 + b"\xff" * 11 + b"\0" * 20),
    "17 duplicate tags": framed(METADATA_12 + b"\1\0\0\2\5\0\5\0"),
    "17 unordered tags": framed(METADATA_12 + b"\1\0\0\2\5\0\4\0"),
    "18 tag past the end": framed(METADATA_12 + b"\1\0\0\1\5\x7f"),
    "18 tag in the header past the end": framed(header(3, 12) + b"\1\0\xff\xff\xff\xff\x0f"),
}


@pytest.mark.parametrize("name", CLOSED)
def test_the_connection_is_closed(address: tuple[str, int], name: str) -> None:
    with connected(address) as hostile:
        with contextlib.suppress(ConnectionError):
            hostile.sendall(CLOSED[name])
        assert is_closed(hostile)


@pytest.mark.parametrize("name", CLOSED)
def test_what_was_asked_before_is_answered(address: tuple[str, int], name: str) -> None:
    with connected(address) as hostile:
        with contextlib.suppress(ConnectionError):
            hostile.sendall(framed(frame_of(ALL_TOPICS, 1)) + CLOSED[name][:64_000])
        assert read_frame(hostile)


@pytest.mark.parametrize(
    "sent",
    [b"", b"\0\0", b"\0\0\0\x20", framed(frame_of(ALL_TOPICS, 1))[:-3], b"\x06\x40\0\0" + b"x" * 10],
    ids=["nothing", "5 half a length", "6 no body", "6 a short body", "6 a short body of 100 MiB"],
)
def test_the_end_comes_early(address: tuple[str, int], sent: bytes) -> None:
    with connected(address) as hostile:
        hostile.sendall(sent)
        hostile.shutdown(socket.SHUT_WR)
        assert is_closed(hostile)


def test_7_a_byte_at_a_time_is_read_and_delays_no_other_client(address: tuple[str, int]) -> None:
    with connected(address) as slow:
        for byte in framed(frame_of(ALL_TOPICS, 1)):
            slow.sendall(bytes([byte]))
            assert_served(address)
        assert read_frame(slow)


def test_19_trailing_bytes_are_passed_over(address: tuple[str, int]) -> None:
    with connected(address) as hostile:
        hostile.sendall(framed(frame_of(ALL_TOPICS, 1) + b"x" * 1000))
        assert response_of(response_type(3, 12), read_frame(hostile), 1).topics


def test_23_another_clusters_id(address: tuple[str, int]) -> None:
    ballot = VotePartition(
        partition_index=0,
        replica_epoch=1,
        replica_id=2,
        replica_directory_id=None,
        voter_directory_id=None,
        last_offset_epoch=0,
        last_offset=0,
        pre_vote=False,
    )
    topic = VoteTopic(topic_name="__cluster_metadata", partitions=(ballot,))
    with connected(address) as hostile:
        answer = ask(hostile, VoteRequest(cluster_id="x" * 22, voter_id=1, topics=(topic,)))
    assert answer.error_code is ErrorCode.inconsistent_cluster_id


@pytest.mark.parametrize("partition", [-1, -(2**31), 2**31 - 1])
def test_24_partitions_that_there_are_not(address: tuple[str, int], partition: int) -> None:
    with connected(address) as hostile:
        [topic] = ask(hostile, fetch("orders", partition, 0)).responses
        assert topic.partitions[0].error_code is ErrorCode.unknown_topic_or_partition
        [topic] = ask(hostile, produce(partition)).responses
        assert topic.partition_responses[0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
def test_24_offsets_and_epochs_that_there_are_not(address: tuple[str, int], offset: int) -> None:
    with connected(address) as hostile:
        [topic] = ask(hostile, fetch("orders", 0, offset)).responses
        assert topic.partitions[0].error_code is ErrorCode.offset_out_of_range
        for epoch in (-(2**31), -2, 2**31 - 1):
            asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=offset)
            [topic] = ask(
                hostile,
                ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=0,
                    topics=(ListOffsetsTopic(name="orders", partitions=(asked,)),),
                ),
            ).topics
            assert isinstance(topic.partitions[0].error_code, ErrorCode)


def test_25_a_partition_twice(address: tuple[str, int]) -> None:
    data = PartitionProduceData(index=0, records=batch(b"a"))
    twice = ProduceRequest(
        acks=1,
        timeout=timedelta(seconds=5),
        topic_data=(TopicProduceData(name="orders", partition_data=(data, data)),),
    )
    with connected(address) as hostile:
        [topic] = ask(hostile, twice).responses
        assert {each.error_code for each in topic.partition_responses} == {ErrorCode.invalid_request}
        one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
        unknown = FetchTopic(topic_id=uuid.UUID(int=99), partitions=(one, one))
        request = FetchRequest(
            max_wait=timedelta(0), min_bytes=1, topics=(unknown, unknown), forgotten_topics_data=()
        )
        assert ask(hostile, request).error_code is ErrorCode.none


def test_27_a_flood_whose_sender_does_not_read(address: tuple[str, int]) -> None:
    with connected(address) as client:
        assert ask(client, produce(0, bytes(900_000))).responses
        end = ask(client, fetch("orders", 0, 0)).responses[0].partitions[0].high_watermark
    request = framed(frame_of(fetch("orders", 0, end - 1, max_bytes=1 << 20), 1))
    with connected(address) as stalled:
        stalled.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < 64 << 20:
                sent += stalled.send(request * 1000)
        assert sent < 64 << 20
        assert_served(address)


def test_28_a_flood_of_connections(address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(address)).sendall(b"\0\0\x10\0half")
        assert_served(address)


def fetch(topic: str, partition: int, offset: int, max_bytes: int = 1000) -> FetchRequest4:
    asked = FetchPartition4(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest4(
        max_wait=timedelta(0),
        min_bytes=1,
        isolation_level=0,
        topics=(FetchTopic4(topic=topic, partitions=(asked,)),),
    )


def produce(partition: int, value: bytes = b"a") -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch(value))
    return ProduceRequest(
        acks=1,
        timeout=timedelta(seconds=5),
        topic_data=(TopicProduceData(name="orders", partition_data=(data,)),),
    )


# ---- groups, tools, and what is passed on ------------------------------------------------------------------


def test_answers_come_in_order_and_none_comes_where_none_is_wanted(address: tuple[str, int]) -> None:
    with connected(address) as client:
        end = ask(client, fetch("orders", 0, 0)).responses[0].partitions[0].high_watermark
        waits = replace(fetch("orders", 0, end), max_wait=timedelta(milliseconds=300))
        silent = replace(produce(0), acks=0)
        client.sendall(b"".join(framed(frame_of(each, 1)) for each in (waits, silent, ALL_TOPICS)))
        assert response_of(response_type(1, 4), read_frame(client), 1).responses
        assert response_of(response_type(3, 12), read_frame(client), 1).topics


def test_an_error_where_no_answer_is_wanted_closes_the_connection(address: tuple[str, int]) -> None:
    with connected(address) as client:
        client.sendall(framed(frame_of(replace(produce(99), acks=0), 1)))
        assert is_closed(client)


@pytest.mark.parametrize("partition", [-1, -(2**31), 2**31 - 1])
def test_24_partitions_of_groups_and_tools_that_there_are_not(
    address: tuple[str, int], partition: int
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    with connected(address) as hostile:
        has_coordinator(hostile)
        assert ask(hostile, commit(partition)).topics[0].partitions[0].error_code is unknown
        deleted = ask(hostile, delete_records(partition)).topics[0].partitions
        assert [each.error_code for each in deleted] == [unknown]
        topic = ProducersTopic(name="orders", partition_indexes=(partition,))
        described = ask(hostile, DescribeProducersRequest(topics=(topic,))).topics[0].partitions
        assert [each.error_code for each in described] == [unknown]


def test_25_a_partition_twice_among_those_of_groups_and_tools(address: tuple[str, int]) -> None:
    with connected(address) as hostile:
        has_coordinator(hostile)
        deleted = ask(hostile, delete_records(0, 0)).topics[0].partitions
        assert {each.error_code for each in deleted} == {ErrorCode.invalid_request}
        committed = ask(hostile, commit(0, 0)).topics[0].partitions
        assert {each.error_code for each in committed} == {ErrorCode.none}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"session_timeout": timedelta(milliseconds=-5)}, ErrorCode.invalid_session_timeout),
        ({"session_timeout": timedelta(milliseconds=2**31 - 1)}, ErrorCode.invalid_session_timeout),
        ({"member_id": "stranger"}, ErrorCode.unknown_member_id),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
    ],
    ids=str,
)
def test_an_invalid_join_of_a_group_is_refused(
    address: tuple[str, int], changed: dict[str, Any], code: ErrorCode
) -> None:
    join = JoinGroupRequest(
        group_id="g",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=10),
        member_id="",
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    with connected(address) as hostile:
        has_coordinator(hostile)
        assert ask(hostile, replace(join, **changed)).error_code is code


@pytest.mark.parametrize("partitions", [0, -2, 10_001, 2**31 - 1])
def test_a_topic_of_too_many_partitions_or_too_few(address: tuple[str, int], partitions: int) -> None:
    topic = CreatableTopic(
        name="huge", num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    request = CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=5), validate_only=False)
    with connected(address) as hostile:
        assert ask(hostile, request).topics[0].error_code is ErrorCode.invalid_partitions


def test_an_envelope_around_what_no_node_passes_on(address: tuple[str, int]) -> None:
    for inner in (b"", frame_of(ALL_TOPICS, 1), frame_of(envelope(frame_of(ALL_TOPICS, 1)), 1)):
        with connected(address) as hostile:
            hostile.sendall(framed(frame_of(envelope(inner), 1)))
            assert is_closed(hostile)


def envelope(inner: bytes) -> EnvelopeRequest:
    return EnvelopeRequest(request_data=inner, request_principal=None, client_host_address=bytes(4))


def has_coordinator(client: socket.socket) -> None:
    """Return once the group's coordinator serves it; it is made when it is first looked for."""
    find = FindCoordinatorRequest(coordinator_keys=("g",), key_type=0)
    offsets = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),))

    def serves() -> bool:
        found = ask(client, find).coordinators[0].error_code
        return found is ErrorCode.none and ask(client, offsets).groups[0].error_code is ErrorCode.none

    until(serves)


def find_transactions(client: socket.socket) -> None:
    """Return once the coordinator of the transactional id serves it."""
    find = FindCoordinatorRequest(coordinator_keys=("x",), key_type=1)

    def serves() -> bool:
        found = ask(client, find).coordinators[0].error_code
        return found is ErrorCode.none and init(client, "x") is ErrorCode.none

    until(serves)


def init(client: socket.socket, name: str | None, **fields: Any) -> ErrorCode:
    request = InitProducerIdRequest(transactional_id=name, **{**NEW_PRODUCER, **fields})
    code: ErrorCode = ask(client, request).error_code
    return code


NEW_PRODUCER: dict[str, Any] = {
    "transaction_timeout": timedelta(minutes=1),
    "producer_id": -1,
    "producer_epoch": -1,
}


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("", {}, ErrorCode.invalid_request),
        ("\0", {}, ErrorCode.none),
        ("\U0001f600", {}, ErrorCode.none),
        ("x", {"producer_id": 5}, ErrorCode.invalid_request),
        ("x", {"producer_id": 2**63 - 1, "producer_epoch": 2**15 - 1}, ErrorCode.producer_fenced),
        ("x", {"transaction_timeout": timedelta(milliseconds=2**31 - 1)}, INVALID_TIMEOUT),
        ("x", {"transaction_timeout": timedelta(milliseconds=-(2**31))}, INVALID_TIMEOUT),
    ],
)
def test_producers_that_begin_with_nonsense(
    address: tuple[str, int], name: str, fields: dict[str, Any], code: ErrorCode
) -> None:
    with connected(address) as hostile:
        find_transactions(hostile)
        # The partition of the id may be loading.
        until(lambda: init(hostile, name, **fields) is not ErrorCode.coordinator_load_in_progress)
        assert init(hostile, name, **fields) is code


@pytest.mark.parametrize("name", ["", "x", "unknown"])
@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, -1), (2**63 - 1, 2**15 - 1), (-(2**63), -(2**15))])
def test_transactions_of_producers_that_there_are_not(
    address: tuple[str, int], name: str, producer_id: int, epoch: int
) -> None:
    producer: Any = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
    refused = {ErrorCode.invalid_request if not name else ErrorCode.invalid_producer_id_mapping}
    with connected(address) as hostile:
        has_coordinator(hostile)
        find_transactions(hostile)

        def codes() -> set[ErrorCode]:
            topics = (AddPartitionsToTxnTopic(name="orders", partitions=(0, 0)),)
            adding = AddPartitionsToTxnTransaction(topics=topics, **producer)
            # The same transaction twice, each with a partition twice.
            added = ask(hostile, AddPartitionsToTxnRequest(transactions=(adding, adding)))
            parts = [
                each
                for result in added.results_by_transaction
                for topic in result.topic_results
                for each in topic.results_by_partition
            ]
            assert len(parts) == 4
            offsets = AddOffsetsToTxnRequest(group_id="g", **producer)
            return {
                *(each.partition_error_code for each in parts),
                ask(hostile, offsets).error_code,
                ask(hostile, EndTxnRequest(committed=True, **producer)).error_code,
            }

        until(lambda: ErrorCode.coordinator_load_in_progress not in codes())
        assert codes() == refused


def commit(*partitions: int) -> OffsetCommitRequest:
    offsets = tuple(
        OffsetCommitRequestPartition(partition_index=each, committed_offset=1, committed_metadata=None)
        for each in partitions
    )
    topic = OffsetCommitRequestTopic(name="orders", partitions=offsets)
    return OffsetCommitRequest(group_id="g", member_id="", topics=(topic,))


def delete_records(*partitions: int) -> DeleteRecordsRequest:
    offsets = tuple(DeleteRecordsPartition(partition_index=each, offset=0) for each in partitions)
    topic = DeleteRecordsTopic(name="orders", partitions=offsets)
    return DeleteRecordsRequest(topics=(topic,), timeout=timedelta(seconds=5))


# ---- noise -------------------------------------------------------------------------------------------------

# What nodes alone ask, and what changes the quorum or the cluster by design, is not for random requests.
NOT_RANDOM = {19, 20, 33, 37, 43, 44, 45, 52, 53, 54, 56, 57, 59, 62, 63, 64, 67, 70, 73, 80, 81, 82}
ASKED = sorted(set(API_RANGES) - NOT_RANDOM)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_noise_in_a_frame(cluster: TcpCluster, data: st.DataObject) -> None:
    api = API_RANGES[data.draw(st.sampled_from(ASKED))]
    version = data.draw(st.integers(api.first_read, api.max_version))
    frame = bytearray(framed(frame_of(data.draw(messages(request_type(api.api_key, version))), 1)))
    for _ in range(data.draw(st.integers(0, 3))):
        # The key and the version stay, so that the noise is where it counts.
        frame[data.draw(st.integers(8, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with connected(cluster.addresses[1]) as hostile:
        with contextlib.suppress(ConnectionError):
            hostile.sendall(frame)
            hostile.shutdown(socket.SHUT_WR)
        with contextlib.suppress(EOFError):
            read_frame(hostile)
    assert_served(cluster.addresses[1])
    assert cluster.failures == []
