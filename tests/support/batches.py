"""Build record batches for tests: valid, hand-made, damaged."""

import struct

import kreplica.record.compression  # noqa: F401 - gives the core its codecs
from kreplica._core import crc32c, record_batch, varint
from kreplica._core.batch_builder import BatchBuilder

ARGUMENTS = ("base_offset", "leader_epoch", "now_ms")


def build(records, **fields) -> bytes:
    arguments = {name: fields.pop(name) for name in ARGUMENTS if name in fields}
    builder = BatchBuilder()
    for name, value in fields.items():
        setattr(builder, name, value)
    return builder.build(records, **arguments)


def with_crc(batch) -> bytes:
    changed = bytearray(batch)
    record_batch.stamp_crc(changed)
    return bytes(changed)


def with_field(batch: bytes, position: int, code: str, value: int) -> bytes:
    """Return the batch with one header field changed, and a matching CRC."""
    changed = bytearray(batch)
    struct.pack_into(code, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c.checksum(memoryview(changed)[21:]))
    return bytes(changed)


def batch_of(section: bytes, count: int, last_delta: int | None = None, attributes: int = 0) -> bytes:
    """Return a batch with a hand-made records section."""
    head = struct.pack(
        ">qiibIhiqqqhii", 0, 49 + len(section), 0, 2, 0, attributes,
        count - 1 if last_delta is None else last_delta, 0, 0, -1, -1, -1, count,
    )  # fmt: skip
    return with_crc(head + section)


def record_of(delta=0, key=b"\x01", value=b"\x01", headers=b"\x00", timestamp=b"\x00") -> bytes:
    """Return a hand-made record; key and value include their lengths."""
    body = b"\x00" + timestamp + varint.encode_varint(delta) + key + value + headers
    return varint.encode_varint(len(body)) + body
