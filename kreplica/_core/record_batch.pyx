"""Read, check and stamp the bytes of a record batch, format v2. The layout is drawn in record_batch.pxd.

All functions work on memory that the caller owns and keeps alive; they allocate nothing. Every length is compared
with the bytes left before it is used. Thread rule: the functions have no state; a caller that writes must own the
bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kreplica._core.big_endian cimport load16, load32, load64, publish32, store16, store32, store64
from kreplica._core.crc32c cimport crc32c
from kreplica._core.status cimport (
    BAD_ATTRIBUTES,
    BAD_BATCH_LENGTH,
    BAD_CRC,
    BAD_HEADER_COUNT,
    BAD_MAGIC,
    BAD_OFFSET_DELTA,
    BAD_PRODUCER_FIELDS,
    BAD_RECORD_COUNT,
    BAD_RECORD_LENGTH,
    BAD_TIMESTAMP,
    BATCH_TOO_LARGE,
    CONTROL_FROM_CLIENT,
    END,
    OFFSET_OVERFLOW,
    OK,
    SHORT_INPUT,
    TRAILING_BYTES,
    UNKNOWN_CODEC,
    check,
)
from kreplica._core.varint cimport read_varint, read_varlong

# The codecs' names, by their number in the attributes.
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

cdef enum:
    LAST_CODEC = 4
    CRC_START = 21


# ---- the header ------------------------------------------------------------------------------------------


cdef inline int _check_frame(const uint8_t *p, int64_t left) noexcept nogil:
    # Check the magic between the two checks of the length. A batch of an old broker is shorter than our header and
    # must not be taken for corruption, and zeros must not be taken for magic 0.
    cdef int64_t length
    if left == 0:
        return END
    if left < HEADER_SIZE:
        return SHORT_INPUT
    length = load32(p + 8)
    if length <= 0:
        return BAD_BATCH_LENGTH
    if p[16] != MAGIC:
        return BAD_MAGIC
    if length < HEADER_SIZE - LOG_OVERHEAD or length > left - LOG_OVERHEAD:
        return BAD_BATCH_LENGTH
    return OK


cdef int parse_header(const uint8_t *p, int64_t left, BatchHeader *h) noexcept nogil:
    cdef int status = _check_frame(p, left)
    if status != OK:
        return status
    h.base_offset = load64(p)
    h.size = LOG_OVERHEAD + <int64_t>load32(p + 8)
    h.leader_epoch = load32(p + 12)
    h.magic = MAGIC
    h.crc = <uint32_t>load32(p + 17)
    h.attributes = load16(p + 21)
    h.last_offset_delta = load32(p + 23)
    h.base_timestamp = load64(p + 27)
    h.max_timestamp = load64(p + 35)
    h.producer_id = load64(p + 43)
    h.producer_epoch = load16(p + 51)
    h.base_sequence = load32(p + 53)
    h.record_count = load32(p + 57)
    return OK


cdef int check_crc(const uint8_t *p, const BatchHeader *h) noexcept nogil:
    return OK if crc32c(p + CRC_START, h.size - CRC_START) == h.crc else BAD_CRC


cdef int check_fields(const BatchHeader *h) noexcept nogil:
    if h.last_offset_delta < 0:
        return BAD_OFFSET_DELTA
    if h.base_offset < 0 or h.base_offset > INT64_MAX - h.last_offset_delta:
        return OFFSET_OVERFLOW
    if h.attributes & CODEC_MASK > LAST_CODEC:
        return UNKNOWN_CODEC
    if h.record_count < 0:
        return BAD_RECORD_COUNT
    if h.attributes & CODEC_MASK == 0 and h.record_count > (h.size - HEADER_SIZE) // MIN_RECORD_SIZE:
        return BAD_RECORD_COUNT
    if h.record_count - 1 > h.last_offset_delta:
        return BAD_OFFSET_DELTA
    return OK


cdef int check_sound(const uint8_t *p, int64_t left, BatchHeader *h) noexcept nogil:
    cdef int status = parse_header(p, left, h)
    if status == OK:
        status = check_fields(h)
    return check_crc(p, h) if status == OK else status


cdef int check_produced_fields(const BatchHeader *h, bint allow_control) noexcept nogil:
    cdef int status = check_fields(h)
    cdef bint without
    if status != OK:
        return status
    if h.record_count == 0:
        return BAD_RECORD_COUNT
    if h.last_offset_delta != h.record_count - 1:
        return BAD_OFFSET_DELTA
    if h.attributes & ~KNOWN_ATTRIBUTES or h.attributes & DELETE_HORIZON:
        return BAD_ATTRIBUTES
    if h.attributes & CONTROL and not allow_control:
        return CONTROL_FROM_CLIENT
    if h.attributes & LOG_APPEND_TIME or h.base_timestamp < -1 or h.max_timestamp < -1:
        return BAD_TIMESTAMP
    if h.producer_id < -1 or h.attributes & TRANSACTIONAL and h.producer_id < 0:
        return BAD_PRODUCER_FIELDS
    if h.producer_id >= 0 and h.producer_epoch < 0:
        return BAD_PRODUCER_FIELDS
    # A group coordinator writes the offsets of a transaction without sequence numbers.
    without = h.attributes & CONTROL or (allow_control and h.attributes & TRANSACTIONAL and h.base_sequence == -1)
    if h.producer_id >= 0 and h.base_sequence < 0 and not without:
        return BAD_PRODUCER_FIELDS
    return OK


cdef int check_produced_batch(const uint8_t *p, int64_t left, bint allow_control, bint check_sum,
                              BatchHeader *h, RecordScan *found) noexcept nogil:
    cdef int status = parse_header(p, left, h)
    if status == END:
        return SHORT_INPUT
    if status == OK and h.size != left:
        return TRAILING_BYTES
    if status == OK and check_sum:
        status = check_crc(p, h)
    if status == OK:
        status = check_produced_fields(h, allow_control)
    if status == OK and h.attributes & CODEC_MASK:
        return COMPRESSED
    if status == OK:
        return scan_records(p + HEADER_SIZE, h.size - HEADER_SIZE, h, True, found)
    return status


# ---- the records -----------------------------------------------------------------------------------------


cdef inline int _take_bytes(const uint8_t **p, int64_t *left, bint nullable, const uint8_t **data,
                            int64_t *size) noexcept nogil:
    # Read a length and that many bytes; a length of -1 is null. Advances p and left.
    cdef int32_t length = 0
    cdef int used = read_varint(p[0], left[0], &length)
    if used < 0:
        return used
    p[0] += used
    left[0] -= used
    if length < 0:
        if length != -1 or not nullable:
            return BAD_RECORD_LENGTH
        data[0] = NULL
        size[0] = 0
        return OK
    if length > left[0]:
        return BAD_RECORD_LENGTH
    data[0] = p[0]
    size[0] = length
    p[0] += length
    left[0] -= length
    return OK


cdef int parse_record_header(const uint8_t *p, int64_t left, const uint8_t **key, int64_t *key_size,
                             const uint8_t **value, int64_t *value_size, int64_t *used) noexcept nogil:
    cdef int64_t whole = left
    cdef int status = _take_bytes(&p, &left, False, key, key_size)
    if status == OK:
        status = _take_bytes(&p, &left, True, value, value_size)
    used[0] = whole - left
    return status


cdef int _check_record_headers(const RecordView *r) noexcept nogil:
    cdef const uint8_t *p = r.headers
    cdef int64_t left = r.headers_size
    cdef const uint8_t *data
    cdef int64_t size, used
    cdef int status
    cdef int32_t _
    if r.header_count < 0 or r.header_count > left // 2:
        return BAD_HEADER_COUNT
    for _ in range(r.header_count):
        status = parse_record_header(p, left, &data, &size, &data, &size, &used)
        if status != OK:
            return status
        p += used
        left -= used
    return OK if left == 0 else TRAILING_BYTES


cdef int parse_record(const uint8_t *p, int64_t left, RecordView *out, int64_t *used) noexcept nogil:
    cdef int32_t length = 0
    cdef int32_t delta = 0
    cdef int n = read_varint(p, left, &length)
    cdef int status
    if n < 0:
        return n
    if length < 0 or length > left - n:
        return BAD_RECORD_LENGTH
    used[0] = n + <int64_t>length
    p += n
    left = length
    if left < 1:
        return SHORT_INPUT
    p += 1                        # a record's attributes: unused in format v2
    left -= 1
    n = read_varlong(p, left, &out.timestamp_delta)
    if n < 0:
        return n
    p += n
    left -= n
    n = read_varint(p, left, &delta)
    if n < 0:
        return n
    out.offset_delta = delta
    p += n
    left -= n
    status = _take_bytes(&p, &left, True, &out.key, &out.key_size)
    if status != OK:
        return status
    status = _take_bytes(&p, &left, True, &out.value, &out.value_size)
    if status != OK:
        return status
    n = read_varint(p, left, &out.header_count)
    if n < 0:
        return n
    out.headers = p + n
    out.headers_size = left - n
    if out.header_count == 0 and out.headers_size == 0:
        return OK
    return _check_record_headers(out)


cdef int record_timestamp(const BatchHeader *h, int64_t delta, int64_t *timestamp) noexcept nogil:
    if h.attributes & LOG_APPEND_TIME:
        timestamp[0] = h.max_timestamp
        return OK
    if delta > 0 and h.base_timestamp > INT64_MAX - delta:
        return BAD_TIMESTAMP
    if delta < 0 and h.base_timestamp < INT64_MIN - delta:
        return BAD_TIMESTAMP
    timestamp[0] = h.base_timestamp + delta
    return OK


cdef int scan_records(const uint8_t *records, int64_t size, const BatchHeader *h, bint dense,
                      RecordScan *scan) noexcept nogil:
    cdef RecordView record
    cdef int64_t used = 0, timestamp = -1
    cdef int status
    cdef int32_t i
    scan.max_timestamp = -1
    scan.max_timestamp_delta = -1
    scan.last_offset_delta = -1
    if h.record_count < 0 or h.record_count > size // MIN_RECORD_SIZE:
        return BAD_RECORD_COUNT
    for i in range(h.record_count):
        if size == 0:
            return BAD_RECORD_COUNT
        status = parse_record(records, size, &record, &used)
        if status != OK:
            return status
        if dense:
            if record.offset_delta != i:
                return BAD_OFFSET_DELTA
        elif record.offset_delta <= scan.last_offset_delta:
            return BAD_OFFSET_DELTA
        scan.last_offset_delta = record.offset_delta
        status = record_timestamp(h, record.timestamp_delta, &timestamp)
        if status != OK:
            return status
        if dense and timestamp < -1:
            return BAD_TIMESTAMP
        if timestamp > scan.max_timestamp or i == 0:
            scan.max_timestamp = timestamp
            scan.max_timestamp_delta = record.offset_delta
        records += used
        size -= used
    if scan.last_offset_delta > h.last_offset_delta:
        return BAD_OFFSET_DELTA
    return OK if size == 0 else _what_follows(records, size)


cdef int _what_follows(const uint8_t *p, int64_t left) noexcept nogil:
    # Classify the bytes after the last record that the header counts: another record, or garbage.
    cdef RecordView record
    cdef int64_t used = 0
    return BAD_RECORD_COUNT if parse_record(p, left, &record, &used) == OK else TRAILING_BYTES


cdef int validate_records(const uint8_t *records, int64_t size, const BatchHeader *h,
                          bint dense) noexcept nogil:
    cdef RecordScan scan
    return scan_records(records, size, h, dense, &scan)


# ---- stamping --------------------------------------------------------------------------------------------


cdef void stamp(uint8_t *p, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
    store64(p, base_offset)
    store32(p + 12, leader_epoch)


cdef inline void _stamp_crc(uint8_t *p, int64_t size) noexcept nogil:
    store32(p + 17, <int32_t>crc32c(p + CRC_START, size - CRC_START))


cdef void stamp_log_append_time(uint8_t *p, int64_t size, int64_t timestamp) noexcept nogil:
    store16(p + 21, load16(p + 21) | LOG_APPEND_TIME)
    stamp_max_timestamp(p, size, timestamp)


cdef void stamp_max_timestamp(uint8_t *p, int64_t size, int64_t timestamp) noexcept nogil:
    store64(p + 35, timestamp)
    _stamp_crc(p, size)


cdef void write_header(uint8_t *p, const BatchHeader *h) noexcept nogil:
    stamp(p, h.base_offset, h.leader_epoch)
    p[16] = MAGIC
    store16(p + 21, h.attributes)
    store32(p + 23, h.last_offset_delta)
    store64(p + 27, h.base_timestamp)
    store64(p + 35, h.max_timestamp)
    store64(p + 43, h.producer_id)
    store16(p + 51, h.producer_epoch)
    store32(p + 53, h.base_sequence)
    store32(p + 57, h.record_count)


cdef void seal(uint8_t *p, int64_t size) noexcept nogil:
    _stamp_crc(p, size)
    publish32(p + 8, <int32_t>(size - LOG_OVERHEAD))


# ---- the Python edge -------------------------------------------------------------------------------------


cdef int64_t _parse_writable(uint8_t[::1] batch) except -1:
    cdef BatchHeader h
    h.size = 0
    if batch.shape[0] == 0:
        check(SHORT_INPUT, "stamping a record batch", 0)
    check(parse_header(&batch[0], batch.shape[0], &h), "stamping a record batch", 0)
    return h.size


def stamp_offsets(uint8_t[::1] batch not None, int64_t base_offset, int32_t leader_epoch):
    """Set the batch's base offset and leader epoch in place; both lie outside the CRC."""
    _parse_writable(batch)
    stamp(&batch[0], base_offset, leader_epoch)


def stamp_append_time(uint8_t[::1] batch not None, int64_t timestamp_ms):
    """Set LogAppendTime with this timestamp in place, and compute the CRC anew."""
    stamp_log_append_time(&batch[0], _parse_writable(batch), timestamp_ms)


def correct_max_timestamp(uint8_t[::1] batch not None, int64_t timestamp_ms):
    """Set the header's max timestamp to that of the records in place, and compute the CRC anew."""
    stamp_max_timestamp(&batch[0], _parse_writable(batch), timestamp_ms)


def stamp_crc(uint8_t[::1] batch not None):
    """Set the CRC to that of the batch's present bytes, for tools that change a batch."""
    _stamp_crc(&batch[0], _parse_writable(batch))


def replace_records(const uint8_t[::1] batch not None, const uint8_t[::1] section not None, int codec):
    """Return a copy of the batch with another records section, compressed with this codec, and all else unchanged.

    The section must hold the same records. Raises MessageTooLarge beyond 2 GiB.
    """
    cdef BatchHeader h
    cdef int64_t size = HEADER_SIZE + section.shape[0]
    cdef bytes made
    cdef uint8_t *p
    if batch.shape[0] == 0:
        check(SHORT_INPUT, "replacing the records of a batch", 0)
    check(parse_header(&batch[0], batch.shape[0], &h), "replacing the records of a batch", 0)
    if not 0 <= codec <= LAST_CODEC:
        check(UNKNOWN_CODEC, "replacing the records of a batch", codec)
    if size > INT32_MAX:
        check(BATCH_TOO_LARGE, f"replacing the records of a batch by {section.shape[0]} bytes")
    h.attributes = (h.attributes & ~CODEC_MASK) | codec
    made = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyBytes_AS_STRING(made)
    write_header(p, &h)
    if section.shape[0]:
        memcpy(p + HEADER_SIZE, &section[0], <size_t>section.shape[0])
    seal(p, size)
    return made
