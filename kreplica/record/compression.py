"""The codecs of record batches: gzip, snappy, lz4 and zstd, through cramjam.

Decompression is limited by the size of the output, never by a length that the data claims. The output buffer
starts small and grows in steps while the codec fills it, up to the caller's limit; it stops earlier if the
output so far cannot be the number of records in the batch's header. Corrupt or truncated data, and trailing
bytes, are rejected. Errors raised here refer to no output buffer, however long their traceback lives.
Importing this module installs the codecs in the native core. Thread rule: any thread; cramjam releases the
GIL while it works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cramjam

from kreplica._core import codec as _codec
from kreplica._core.codec import least_size
from kreplica._core.frame_memory import FrameMemory
from kreplica._core.record_batch import CODECS, replace_records
from kreplica._core.records import RecordBatch
from kreplica.common.errors import DecompressionTooLarge, InvalidCompressedData, UnsupportedCodec

if TYPE_CHECKING:
    from typing_extensions import Buffer


MAX_DECOMPRESSED = 256 << 20
"""Maximum bytes that one batch may decompress to, unless the caller sets another limit."""

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(len(CODECS))

LEVELS = {GZIP: range(1, 10), LZ4: range(1, 18), ZSTD: range(-131072, 23)}
"""Valid levels, as in Kafka's compression.{gzip,lz4,zstd}.level (KIP-390). For gzip -1 is the default."""

_FIRST_GUESS = 4096
_GUESSED_RATIO = 6
_GROWTH = 4
# Buffers of this size and more are not cleared first, so oversized ones are cheap: they grow faster.
_LARGE = 256 << 10
_LARGE_GROWTH = 16

# Snappy as framed by Kafka's Java client: this header, then blocks, each preceded by its size in four bytes.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES = 32 << 10
# The densest element of a snappy block encodes 64 bytes in 3.
_SNAPPY_DENSITY = 22


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data` with the codec of this number; `level` None is the codec's default.

    Raises UnsupportedCodec, and ValueError for a level that Kafka's configuration would reject.
    """
    if level is not None and codec in LEVELS and level not in LEVELS[codec] and (codec, level) != (GZIP, -1):
        bounds = f"{LEVELS[codec][0]} to {LEVELS[codec][-1]}"
        raise ValueError(f"level={level} is out of range for {CODECS[codec]}: use {bounds}")
    if codec == GZIP:
        return _buffer(cramjam.gzip.compress(data, level=None if level == -1 else level))
    if codec == SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        return _buffer(cramjam.zstd.compress(data, level=level))
    if codec == NONE:
        return data
    raise UnsupportedCodec(f"compressing with codec {codec}")


def decompress(
    codec: int, data: Buffer, max_size: int = MAX_DECOMPRESSED, record_count: int | None = None
) -> Buffer:
    """Decompress `data` with the codec of this number; it must hold `record_count` records, if given.

    Raises DecompressionTooLarge past `max_size` bytes, InvalidCompressedData, UnsupportedCodec.
    """
    view = memoryview(data)
    if codec == GZIP:
        return _decompress_growing(cramjam.gzip.decompress_into, view, max_size, record_count)
    if codec == SNAPPY:
        return _decompress_snappy(view, max_size)
    if codec == LZ4:
        return _decompress_growing(cramjam.lz4.decompress_into, view, max_size, record_count)
    if codec == ZSTD:
        return _decompress_growing(cramjam.zstd.decompress_into, view, max_size, record_count)
    if codec == NONE:
        if len(view) > max_size:
            raise DecompressionTooLarge(f"{len(view)} bytes of records exceed the limit of {max_size}")
        return data
    raise UnsupportedCodec(f"decompressing with codec {codec}")


def _buffer(made: Any) -> Buffer:
    view: Buffer = memoryview(made)
    return view


def _compress_lz4(data: Buffer, level: int | None) -> Buffer:
    # Kafka reads only frames with independent blocks. Its default, level 9, is the fast encoder.
    fast = level is None or level == 9
    compressor = cramjam.lz4.Compressor(level=0 if fast else level, block_linked=False)
    compressor.compress(bytes(data))
    return _buffer(compressor.finish())


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _target(size: int) -> memoryview:
    return memoryview(FrameMemory(size) if size >= _LARGE else bytearray(size))


def _decompress_growing(
    into: Callable[[Any, Any], int], data: memoryview, max_size: int, record_count: int | None
) -> Buffer:
    size = min(max(_FIRST_GUESS, _GUESSED_RATIO * len(data)), max_size)
    while True:
        found = _decompressed(into, data, size, record_count)
        if not isinstance(found, int):
            return found
        if found < 0:
            raise InvalidCompressedData(f"{len(data)} bytes that do not decompress to {record_count} records")
        if size == max_size or found > max_size:
            raise DecompressionTooLarge(f"more than {max_size} bytes of records")
        size = min((_GROWTH if size < _LARGE else _LARGE_GROWTH) * size, max_size)


def _decompressed(
    into: Callable[[Any, Any], int], data: memoryview, size: int, record_count: int | None
) -> memoryview | int:
    """Return the decompressed data; if it exceeds `size` bytes, a lower bound of its size.

    -1 means that the data cannot be `record_count` records.
    """
    target = _target(size)
    try:
        return target[: into(data, target)]
    except cramjam.DecompressionError as error:
        why = str(error)
    # This text means that the output is larger than the target; any other error means bad data.
    if "failed to write whole buffer" in why:
        return size if record_count is None else least_size(target, record_count)
    del target
    raise InvalidCompressedData(f"decompressing {len(data)} bytes: {why}")


def _decompress_snappy(data: memoryview, max_size: int) -> Buffer:
    blocks = list(_xerial_blocks(data)) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > max_size:
        raise DecompressionTooLarge(f"{sum(sizes)} bytes of records exceed the limit of {max_size}")
    target = _target(sum(sizes))
    wrong = _decompress_blocks(blocks, sizes, target)
    if wrong:
        del target
        raise InvalidCompressedData(wrong)
    return target


def _decompress_blocks(blocks: list[memoryview], sizes: list[int], target: memoryview) -> str:
    """Decompress the blocks one after the other into `target`; return an error message, or "" for success."""
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            used = cramjam.snappy.decompress_raw_into(block, target[at : at + size])
        except cramjam.DecompressionError as error:
            return f"decompressing a snappy block: {error}"
        if used != size:
            return f"a snappy block says {size} bytes but decompresses to {used}"
        at += size
    return ""


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise InvalidCompressedData("a snappy stream ends within its header")
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if len(data) - at < 4 or size > len(data) - at - 4:
            raise InvalidCompressedData(f"a snappy block of {size} bytes is truncated: {len(data) - at} left")
        blocks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return blocks


def _snappy_size(block: memoryview) -> int:
    # The block begins with its decompressed size, trusted only as far as its length makes it possible.
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise InvalidCompressedData(f"decompressing a snappy block: {error}") from None
    if size > _SNAPPY_DENSITY * len(block):
        raise InvalidCompressedData(f"a snappy block of {len(block)} bytes claims to decompress to {size}")
    return size


def recompress(batch: RecordBatch | Buffer, codec: str, level: int | None = None) -> bytes:
    """Return the batch with its records compressed by `codec`; all other fields stay.

    The batch is checked first: CRC, header and records, which may decompress to its `max_decompressed` bytes.
    Raises CorruptMessage, DecompressionTooLarge, MessageTooLarge past 2 GiB, ValueError for an unknown codec.
    """
    if codec not in CODECS:
        raise ValueError(f"unknown codec {codec!r}: use one of {', '.join(CODECS)}")
    if not isinstance(batch, RecordBatch):
        batch = RecordBatch(batch)
    batch.check()
    number = CODECS.index(codec)
    return replace_records(batch, compress(number, batch.uncompressed(), level), number)


_codec.install(compress, decompress)
