"""Requests of every API whose lists are empty, null, repeated, or longer than the request itself.

Each is answered, or its connection is closed, and the node goes on.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import tracemalloc
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kreplica.broker.api_versions import API_RANGES, request_type
from kreplica.broker.blank_answers import blank
from kreplica.common.errors import InvalidRecord, TopicAuthorizationFailed
from kreplica.common.message import Field, Message, decode, encode, fields_of, replace
from kreplica.common.messages.data import MetadataRequest
from tests.support.batches import build
from tests.support.messages import declared_kinds
from tests.support.requests import frame_of
from tests.support.sockets import connected, framed, read_frame
from tests.support.tcp_cluster import WAIT_S, TcpClient, TcpCluster
from tests.unit.broker.test_gatekeeper import Node as Gate
from tests.unit.broker.test_gatekeeper import rule

ALL_TOPICS = blank(MetadataRequest, topics=None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("arrays"), 1) as made:
        with TcpClient(made) as client:
            client.admin.create_topic("orders", partitions=1, replication_factor=1).result(WAIT_S)
        yield made


def sample(kind: type[Message], version: int) -> Any:
    """Return a message in which every list has one element, and names are those of what exists."""
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        if not field.is_in(version):
            continue
        if field.structure is not None:
            one = sample(field.structure, version)
        elif field.kind is not None and field.kind.name == "string":
            one = "readers" if "group" in field.name else "orders"
        elif field.kind is not None and field.kind.name == "records":
            one = build([b"x"])
        elif field.is_array:
            one = uuid.UUID(int=1) if field.kind is not None and field.kind.name == "uuid" else 0
        else:
            continue
        values[field.name] = (one,) if field.is_array else one
    return blank(kind, **values)


def arrays_of(kind: type[Message], version: int) -> Iterator[tuple[Field, ...]]:
    """Yield the path to each list of a message."""
    for field in fields_of(kind):
        if not field.is_in(version):
            continue
        if field.is_array:
            yield (field,)
        if field.structure is not None:
            for path in arrays_of(field.structure, version):
                yield (field, *path)


def changed(message: Any, path: tuple[Field, ...], version: int, how: str) -> Any:
    """Return the message with the list at the path changed; None where it cannot be so."""
    field, *more = path
    value = getattr(message, field.name)
    if more:
        element = changed(value[0] if field.is_array else value, tuple(more), version, how)
        if element is None:
            return None
        return replace(message, **{field.name: (element,) if field.is_array else element})
    if how == "null":
        is_nullable = field.is_nullable and version >= field.nullable_since
        return replace(message, **{field.name: None}) if is_nullable else None
    return replace(message, **{field.name: value * {"empty": 0, "twice": 2, "often": 300}[how]})


def cases(how: str) -> Iterator[Any]:
    for api_key, known in sorted(API_RANGES.items()):
        for version in sorted({known.first_read, known.max_version}):
            kind = request_type(api_key, version)
            request = sample(kind, version)
            for path in arrays_of(kind, version):
                made = changed(request, path, version, how)
                if made is not None:
                    yield made


def encoded(request: Any) -> bytes:
    """Return the request with its header, without the frame's size."""
    kind, version = type(request), request.__version__
    head = struct.pack(">hhih", kind.__api_key__, version, 1, -1) + (b"\0" if kind.__flexible__ else b"")
    return encode(request, version, head)


def goes_on(address: tuple[str, int]) -> None:
    with connected(address) as client:
        client.sendall(framed(frame_of(ALL_TOPICS, 1)))
        assert b"orders" in read_frame(client)


@pytest.mark.parametrize("how", ["empty", "null", "twice", "often"])
def test_every_request_with_each_of_its_lists_so(
    cluster: TcpCluster, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """CVE-2026-83525: a FetchSnapshot without topics ended Kafka's controller."""
    caplog.set_level(logging.WARNING)
    address = cluster.addresses[1]
    asked = 0
    for request in cases(how):
        asked += 1
        with connected(address) as client:
            client.sendall(framed(encoded(request)))
            client.shutdown(socket.SHUT_WR)
            # An answer, or the end of the connection.
            read_frame(client)
    assert asked > 10
    goes_on(address)
    assert cluster.failures == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("how", ["empty", "null", "twice", "often"])
def test_rights_are_decided_for_every_request_with_each_of_its_lists_so(how: str) -> None:
    some = (rule("ALL", "TOPIC", "orders"), rule("ALL", "GROUP", "readers"))
    for node in (Gate(), Gate(*some, rule("ALL", "TRANSACTIONAL_ID", "orders"))):
        for request in cases(how):
            if API_RANGES[request.__api_key__].handled == request.__version__:
                with contextlib.suppress(TopicAuthorizationFailed):
                    assert node.ask(request) is not None


# ---- counts ------------------------------------------------------------------------------------------------

REQUESTS = [each for each in declared_kinds() if each.__name__.rstrip("0123456789").endswith("Request")]


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: f"{kind.__name__}-{kind.__version__}")
def test_a_count_above_what_is_left_is_refused_for_every_list(kind: type[Message]) -> None:
    """CVE-2026-111108: the count of a list made Kafka's parser reserve far more than the bytes sent."""
    version = kind.__version__
    request = sample(kind, version)
    whole = encode(request, version)
    for path in arrays_of(kind, version):
        if any(field.tag is not None for field in path):
            # Its size is another field, which bounds it.
            continue
        once, twice = (encode(changed(request, path, version, how), version) for how in ("empty", "twice"))
        assert len(once) < len(whole) < len(twice)
        # The count is where the encodings of none and of two elements first differ.
        at_count = next(n for n, (a, b) in enumerate(zip(once, twice, strict=False)) if a != b)
        start, is_compact = at_count if kind.__flexible__ else at_count - 3, kind.__flexible__
        left = len(whole) - start - (1 if is_compact else 4)
        for count in (left + 1, 1 << 20, (1 << 31) - 2):
            written = varint(count + 1) if is_compact else count.to_bytes(4, "big")
            hostile = whole[:start] + written + whole[start + (1 if is_compact else 4) :]
            tracemalloc.start()
            with pytest.raises(InvalidRecord):
                decode(kind, version, hostile)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 64 << 10


def varint(number: int) -> bytes:
    """Return an unsigned varint."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def test_a_header_of_twenty_million_tags_closes_the_connection(cluster: TcpCluster) -> None:
    """CVE-2026-111115: Kafka made an object of each tag of a header, before any login."""
    head = struct.pack(">hhih", 3, 12, 1, -1)
    tags = b"".join(varint(tag) + b"\0" for tag in range(200_000)) * 20
    tracemalloc.start()
    with connected(cluster.addresses[1]) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(framed(head + varint(20_000_000) + tags))
        assert read_frame(client) == b""
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The frame itself, and its copies.
    assert peak < 6 * len(tags)
    goes_on(cluster.addresses[1])
