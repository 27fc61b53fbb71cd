# The record batch, format v2 (magic 2), big-endian. Drawn once, here and in docs/FORMATS.md:
#
#    0 baseOffset            8      27 baseTimestamp    8
#    8 batchLength           4      35 maxTimestamp     8      attributes: bits 0-2 codec (0 none, 1 gzip,
#   12 partitionLeaderEpoch  4      43 producerId       8      2 snappy, 3 lz4, 4 zstd), 3 LogAppendTime,
#   16 magic                 1      51 producerEpoch    2      4 transactional, 5 control, 6 deleteHorizon
#   17 crc                   4      53 baseSequence     4
#   21 attributes            2      57 recordCount      4      crc: CRC-32C over [21, end)
#   23 lastOffsetDelta       4      61 records                 total size = 12 + batchLength
#
# All functions here check a length against what is left before they use it, and return a Status.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kreplica._core.region cimport Slice

cdef enum:
    HEADER_SIZE = 61
    LOG_OVERHEAD = 12             # baseOffset and batchLength
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40

cdef struct BatchHeader:
    int64_t base_offset
    int64_t size                  # total bytes, header included
    int32_t leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count

cdef struct RecordView:
    # One record, pointing into the (decompressed) records section.
    int64_t offset_delta
    int64_t timestamp_delta
    const uint8_t *key            # NULL: null
    int64_t key_size
    const uint8_t *value          # NULL: null
    int64_t value_size
    const uint8_t *headers        # the first header's key length
    int64_t headers_size
    int32_t header_count

# Read the header at p with `left` bytes there. END when left == 0; SHORT_INPUT when fewer bytes than a header
# are left; BAD_BATCH_LENGTH, BAD_MAGIC. Checks that the whole batch lies within `left` (or BAD_BATCH_LENGTH).
cdef int parse_header(const uint8_t *p, int64_t left, BatchHeader *h) noexcept nogil
# The bare minimum for walking: base offset, size and last offset delta; same checks.
cdef int peek(
    const uint8_t *p, int64_t left, int64_t *base_offset, int64_t *size, int32_t *last_delta
) noexcept nogil
# CRC and the plausibility of header fields (counts, deltas, overflow, codec); not the records.
cdef int validate_header(const uint8_t *p, const BatchHeader *h) noexcept nogil
cdef int check_crc(const uint8_t *p, const BatchHeader *h) noexcept nogil
# Walk the uncompressed records section: deltas 0, 1, 2 ... when `dense` (a producer's batch), else ascending
# (a compacted one); counts, lengths, trailing bytes.
cdef int validate_records(
    const uint8_t *records, int64_t size, const BatchHeader *h, bint dense
) noexcept nogil
# One record at p[0:left]; *used gets its bytes.
cdef int parse_record(const uint8_t *p, int64_t left, RecordView *out, int64_t *used) noexcept nogil
# Stamp what lies outside the CRC.
cdef void stamp(uint8_t *p, int64_t base_offset, int32_t leader_epoch) noexcept nogil
# Stamp LogAppendTime: attribute, max timestamp, and a new CRC.
cdef void stamp_log_append_time(uint8_t *p, int64_t size, int64_t timestamp) noexcept nogil


cdef class BatchBuilder:
    # Builds batches from Python values without an allocation per record; scratch is reused from call to call.
    # measure() walks the records once and returns the batch's whole size; emit() writes it at `target`
    # (header last is the caller's affair: see log_segment). The objects must not change in between (the GIL
    # is held).
    cdef int64_t measure(self, object records, int64_t now_ms) except -1
    cdef int emit(self, uint8_t *target, int64_t base_offset, int32_t leader_epoch) except? -128
