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

cdef enum:
    COMPRESSED = 100              # beside Status: a batch whose records must be decompressed

cdef enum:
    MAGIC = 2
    HEADER_SIZE = 61
    LOG_OVERHEAD = 12             # baseOffset and batchLength
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
    KNOWN_ATTRIBUTES = 0x7F
    MIN_RECORD_SIZE = 7           # length, attributes, two deltas, two null lengths, no header

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

cdef struct RecordScan:
    # What a walk over the records finds that the header does not promise.
    int64_t max_timestamp         # of the records themselves; -1 without a record
    int64_t max_timestamp_delta   # offset delta of the first record that has it
    int64_t last_offset_delta     # of the last record; -1 without a record

# Read the header at p with `left` bytes there. END when left == 0; SHORT_INPUT when fewer bytes than a header
# are left; BAD_BATCH_LENGTH (also for the zeros behind the last batch), BAD_MAGIC. Checks that the whole
# batch lies within `left` (else BAD_BATCH_LENGTH).
cdef int parse_header(const uint8_t *p, int64_t left, BatchHeader *h) noexcept nogil
# The bare minimum for walking: base offset, size and last offset delta; same checks.
cdef int peek(const uint8_t *p, int64_t left, int64_t *base_offset, int64_t *size,
              int32_t *last_delta) noexcept nogil
# CRC and the plausibility of header fields (counts, deltas, overflow, codec); not the records.
cdef int validate_header(const uint8_t *p, const BatchHeader *h) noexcept nogil
cdef int check_crc(const uint8_t *p, const BatchHeader *h) noexcept nogil
# validate_header without the CRC.
cdef int check_fields(const BatchHeader *h) noexcept nogil
# What a leader asks of a producer's batch on top of check_fields: records, dense deltas, CreateTime, known
# attributes, a sequence number where there is a producer id, and no control batch unless `allow_control`.
cdef int check_produced_fields(const BatchHeader *h, bint allow_control) noexcept nogil
# Walk the uncompressed records section: deltas 0, 1, 2 ... when `dense` (a producer's batch), else ascending
# (a compacted one); counts, lengths, trailing bytes.
cdef int validate_records(const uint8_t *records, int64_t size, const BatchHeader *h,
                          bint dense) noexcept nogil
# The same, telling what it found.
cdef int scan_records(const uint8_t *records, int64_t size, const BatchHeader *h, bint dense,
                      RecordScan *scan) noexcept nogil
# All that a leader asks of p[0:left], as records.check_produced: exactly one batch, right in every field and
# record. COMPRESSED where all but the records was checked, which must be decompressed and scanned.
# `check_sum` False leaves the CRC to the caller, who copies.
cdef int check_produced_batch(const uint8_t *p, int64_t left, bint allow_control, bint check_sum,
                              BatchHeader *h, RecordScan *found) noexcept nogil
# One record at p[0:left], its headers checked too; *used gets its bytes.
cdef int parse_record(const uint8_t *p, int64_t left, RecordView *out, int64_t *used) noexcept nogil
# One header of a parsed record at p[0:left]; a NULL value is null. *used gets its bytes.
cdef int parse_record_header(const uint8_t *p, int64_t left, const uint8_t **key, int64_t *key_size,
                             const uint8_t **value, int64_t *value_size, int64_t *used) noexcept nogil
# The timestamp of a record of this batch: LogAppendTime's is the batch's. BAD_TIMESTAMP out of int64.
cdef int record_timestamp(const BatchHeader *h, int64_t delta, int64_t *timestamp) noexcept nogil
# Stamp what lies outside the CRC.
cdef void stamp(uint8_t *p, int64_t base_offset, int32_t leader_epoch) noexcept nogil
# Stamp LogAppendTime: attribute, max timestamp, and a new CRC.
cdef void stamp_log_append_time(uint8_t *p, int64_t size, int64_t timestamp) noexcept nogil
# Stamp the max timestamp that the records have, where a producer's header has another, and a new CRC.
cdef void stamp_max_timestamp(uint8_t *p, int64_t size, int64_t timestamp) noexcept nogil
# Write a whole header but for its size and CRC, which seal() adds when the records are there.
cdef void write_header(uint8_t *p, const BatchHeader *h) noexcept nogil
# Add the CRC, then publish the size: a writer that is killed before leaves a length of 0, the end of a log.
cdef void seal(uint8_t *p, int64_t size) noexcept nogil
