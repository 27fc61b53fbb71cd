"""Produce requests over many connections at once, one in flight on each: the requests a listener serves.

The client uses plain sockets in one event loop, so that no client gathers records of different connections.
Every request has the same bytes (Produce 9, acks=all, one record of 100 B). Only the error of a response is
checked.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import at, in_version
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kreplica.runtime.event_loop import new_event_loop

VERSION = 9
RECORD_BYTES = 100
NUMBER = 7


def request_rate(host: str, port: int, topic: str, *, connections: int, requests: int) -> float:
    """Return the requests answered per second, with `requests` of them on each connection in sequence."""
    frame = _frame(topic)
    loop = new_event_loop()
    try:
        seconds = loop.run_until_complete(_all(host, port, frame, connections, requests))
    finally:
        loop.close()
    return connections * requests / seconds


def _frame(topic: str) -> bytes:
    records = BatchBuilder().build([b"v" * RECORD_BYTES], now_ms=int(time.time() * 1000))
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=timedelta(seconds=30),
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
    )
    return b"".join(request_frame(in_version(request, VERSION), NUMBER, b"bench"))


async def _all(host: str, port: int, frame: bytes, connections: int, requests: int) -> float:
    pairs = [await asyncio.open_connection(host, port) for _ in range(connections)]
    try:
        await asyncio.gather(*(_ask(*pair, frame, 1) for pair in pairs))
        began = time.perf_counter()
        await asyncio.gather(*(_ask(*pair, frame, requests) for pair in pairs))
        return time.perf_counter() - began
    finally:
        for _, writer in pairs:
            writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes, times: int) -> None:
    for _ in range(times):
        writer.write(frame)
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = MessageReader(await reader.readexactly(size))
        assert answer.int32() == NUMBER
        answer.skip_tags()
        response: ProduceResponse = read_message(at(ProduceResponse, VERSION), answer)
        error = response.responses[0].partition_responses[0].error_code
        if error is not ErrorCode.none:
            raise RuntimeError(f"a produce request was answered with {error!r}")
