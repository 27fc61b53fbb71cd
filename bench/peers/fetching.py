"""Send fetch requests in sequence, as librdkafka's consumer does, and ignore the responses' contents.

The client uses one plain socket. A first pass builds the requests (Fetch 12, one partition, 1 MiB each) and
finds the offsets to continue at. Only sending and receiving are timed.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta

from kreplica._core.records import batches
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import at, in_version
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.data import FetchPartition, FetchRequest, FetchResponse, FetchTopic

VERSION = 12
FETCH_BYTES = 1 << 20
# A response has at least one batch, which may be larger.
ANSWER_BYTES = 4 * FETCH_BYTES
SIZE_BYTES = 4
PASSES = 5


def fetch_rate(host: str, port: int, topic: str, *, records: int) -> float:
    """Return MiB of responses per second while the first `records` of partition 0 are fetched PASSES
    times."""
    with socket.create_connection((host, port)) as broker:
        broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        memory = memoryview(bytearray(ANSWER_BYTES))
        frames, offset = [], 0
        while offset < records:
            frames.append(_frame(topic, offset))
            offset = _next_offset(memory[SIZE_BYTES : _ask(broker, frames[-1], memory)])
        began = time.perf_counter()
        received = sum(_ask(broker, frame, memory) for _ in range(PASSES) for frame in frames)
        return received / (time.perf_counter() - began) / (1 << 20)


def _frame(topic: str, offset: int) -> bytes:
    asked = FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=FETCH_BYTES,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait=timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=50 * FETCH_BYTES,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=(FetchTopic(topic=topic, partitions=(asked,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    return b"".join(request_frame(in_version(request, VERSION), 0, b"bench"))


def _ask(broker: socket.socket, frame: bytes, memory: memoryview) -> int:
    """Read a response into `memory`, after its own size; return its size."""
    broker.sendall(frame)
    came, size = 0, SIZE_BYTES
    while came < size:
        received = broker.recv_into(memory[came:])
        if not received:
            raise ConnectionError("the broker closed the connection")
        came += received
        if size == SIZE_BYTES <= came:
            size += int.from_bytes(memory[:SIZE_BYTES], "big")
    return size


def _next_offset(answer: memoryview) -> int:
    reader = MessageReader(answer)
    reader.int32()
    reader.skip_tags()
    response: FetchResponse = read_message(at(FetchResponse, VERSION), reader)
    data = response.responses[0].partitions[0]
    if data.error_code is not ErrorCode.none or not data.records:
        raise RuntimeError(f"a fetch was answered with {data.error_code!r}, without records")
    # Kafka truncates the last batch at the byte limit.
    return max(batch.next_offset for batch in batches(data.records, partial=True))
