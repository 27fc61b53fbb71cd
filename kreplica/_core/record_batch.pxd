# The record batch, format v2 (magic 2), big-endian. Drawn only here and in docs/FORMATS.md:
#
#    0 baseOffset            8      27 baseTimestamp    8
#    8 batchLength           4      35 maxTimestamp     8      attributes: bits 0-2 codec (0 none, 1 gzip,
#   12 partitionLeaderEpoch  4      43 producerId       8      2 snappy, 3 lz4, 4 zstd), 3 LogAppendTime,
#   16 magic                 1      51 producerEpoch    2      4 transactional, 5 control, 6 deleteHorizon
#   17 crc                   4      53 baseSequence     4
#   21 attributes            2      57 recordCount      4      crc: CRC-32C over [21, end)
#   23 lastOffsetDelta       4      61 records                 total size = 12 + batchLength
#
# All functions here check a length against the bytes left before they use it, and return a Status.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    COMPRESSED = 100              # in addition to Status: a batch whose records must be decompressed

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
    MIN_RECORD_SIZE = 7           # length, attributes, two deltas, two null lengths, a header count of 0
    MAX_DECOMPRESSED = 268435456  # bytes; the limit of a batch without one of its own

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
    # What a walk over the records finds out beyond the header.
    int64_t max_timestamp         # of the records themselves; -1 without a record
    int64_t max_timestamp_delta   # offset delta of the first record that has it
    int64_t last_offset_delta     # of the last record; -1 without a record

# Read the header at p, where `left` bytes follow. Returns END if left == 0, SHORT_INPUT if fewer bytes than a header
# are left, BAD_MAGIC, or BAD_BATCH_LENGTH, also for the zeros after the last batch and for a batch that does not lie
# within `left`.
cdef int parse_header(const uint8_t *p, int64_t left, BatchHeader *h) noexcept nogil
cdef int check_crc(const uint8_t *p, const BatchHeader *h) noexcept nogil
# Check that the header's fields (counts, deltas, overflow, codec) are plausible.
cdef int check_fields(const BatchHeader *h) noexcept nogil
# Do what parse_header, check_fields and check_crc do: all that can be said of a batch without its place and records.
cdef int check_sound(const uint8_t *p, int64_t left, BatchHeader *h) noexcept nogil
# Check what a leader demands of a producer's batch beyond check_fields: records, dense deltas, CreateTime, known
# attributes, a sequence number if there is a producer id, and no control batch unless `allow_control`.
cdef int check_produced_fields(const BatchHeader *h, bint allow_control) noexcept nogil
# Check the uncompressed records section: counts, lengths, trailing bytes, and deltas, which are 0, 1, 2 ... if `dense`
# (a producer's batch), else ascending (a compacted one).
cdef int validate_records(const uint8_t *records, int64_t size, const BatchHeader *h,
                          bint dense) noexcept nogil
# Do the same, and return in `scan` what the records hold.
cdef int scan_records(const uint8_t *records, int64_t size, const BatchHeader *h, bint dense,
                      RecordScan *scan) noexcept nogil
# Check all that a leader demands of p[0:left], as records.check_produced does: exactly one batch, with valid fields
# and records. Returns COMPRESSED if all but the records is valid and these must be decompressed and scanned.
# `check_sum` False leaves the CRC to the caller, who computes it while copying.
cdef int check_produced_batch(const uint8_t *p, int64_t left, bint allow_control, bint check_sum,
                              BatchHeader *h, RecordScan *found) noexcept nogil
# Read the record at p[0:left] and check its headers; *used becomes its size in bytes.
cdef int parse_record(const uint8_t *p, int64_t left, RecordView *out, int64_t *used) noexcept nogil
# Read one header of a parsed record at p[0:left]. A NULL value is null; *used becomes the header's size in bytes.
cdef int parse_record_header(const uint8_t *p, int64_t left, const uint8_t **key, int64_t *key_size,
                             const uint8_t **value, int64_t *value_size, int64_t *used) noexcept nogil
# Compute the timestamp of a record of this batch; with LogAppendTime it is the batch's. BAD_TIMESTAMP if beyond int64.
cdef int record_timestamp(const BatchHeader *h, int64_t delta, int64_t *timestamp) noexcept nogil
# Set the fields outside the CRC.
cdef void stamp(uint8_t *p, int64_t base_offset, int32_t leader_epoch) noexcept nogil
# Set LogAppendTime: the attribute, the max timestamp and a new CRC.
cdef void stamp_log_append_time(uint8_t *p, int64_t size, int64_t timestamp) noexcept nogil
# Set the max timestamp of the records if the producer's header has another one, and a new CRC.
cdef void stamp_max_timestamp(uint8_t *p, int64_t size, int64_t timestamp) noexcept nogil
# Write the whole header except its size and CRC, which seal() adds once the records are written.
cdef void write_header(uint8_t *p, const BatchHeader *h) noexcept nogil
# Add the CRC, then publish the size. A writer killed before that leaves a length of 0, which is the end of a log.
cdef void seal(uint8_t *p, int64_t size) noexcept nogil
