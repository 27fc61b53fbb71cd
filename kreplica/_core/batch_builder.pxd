# BatchBuilder: builds the bytes of one record batch from Python values.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kreplica._core.record cimport Record
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.record_columns cimport RecordColumns
from kreplica._core.scratch cimport Scratch

cdef struct PendingRecord:
    # One record between measure() and emit().
    const uint8_t *key            # NULL: null
    int64_t key_size
    const uint8_t *value          # NULL: null
    int64_t value_size
    const uint8_t *headers        # encoded; NULL: at headers_at in the header scratch
    int64_t headers_at
    int64_t headers_size
    int64_t timestamp
    int32_t header_count
    int32_t body_size             # the value of the record's length field


cdef class BatchBuilder:
    # Builds batches from Python values without an allocation per record; scratch memory is reused between calls.
    # measure() walks the records once and returns the batch's size; emit() writes it to `target`, the size field
    # last. The objects must not change in between (the GIL is held). Each measure() is followed by one emit() or
    # by release().
    cdef int codec_number
    cdef public object level
    cdef public bint log_append_time
    cdef public bint transactional
    cdef public bint control
    cdef public int64_t producer_id
    cdef public int16_t producer_epoch
    cdef public int32_t base_sequence
    cdef public int64_t delete_horizon_ms
    cdef public int64_t max_size
    cdef public str limit
    # The measured batch: its header except base offset, leader epoch and CRC, and the offset delta of the first
    # record with the largest timestamp.
    cdef BatchHeader h
    cdef int32_t max_timestamp_delta
    cdef int32_t first_delta      # the offset delta of the first record

    cdef Scratch pending          # PendingRecord after PendingRecord
    cdef Scratch headers
    cdef Scratch held             # Py_buffer after Py_buffer
    cdef Scratch section          # the records of a batch to be compressed
    cdef const uint8_t *compressed    # the compressed records; NULL: they are written uncompressed
    cdef int64_t compressed_size
    cdef object sequence          # keeps the borrowed bytes alive
    cdef object compressed_keeper

    cdef int64_t measure(self, object records, int64_t now_ms) except -1
    cdef int emit(self, uint8_t *target, int64_t base_offset, int32_t leader_epoch) except? -128
    # The part of emit() that touches `target`: it uses no Python object and needs no cleanup if interrupted
    # (kr_guard_call).
    cdef int write(self, uint8_t *target, int64_t base_offset, int32_t leader_epoch) noexcept nogil
    cdef void release(self) noexcept

    # The parts of measure() and write(), for records that join a batch which others began (record_accumulator):
    # gather() borrows the records, the only part that may run Python code; plan_records() returns their encoded size
    # behind a base timestamp and offset delta, and sets h.max_timestamp; write_records() writes them. release()
    # ends it.
    cdef int gather(self, object records, int64_t now_ms) except -1
    cdef int64_t plan_records(self, int64_t base, int32_t first_delta) except -1
    cdef void write_records(self, uint8_t *p) noexcept nogil

    cdef int _gather(self, int64_t now_ms) except -1
    cdef int _begin(self, Py_ssize_t count) except -1
    cdef int _gather_columns(self, RecordColumns columns, int64_t now_ms) except -1
    cdef int _gather_headers(self, RecordColumns columns, PendingRecord *r, int64_t row) except -1
    cdef int _gather_tuple(self, tuple item, PendingRecord *r, int64_t index) except -1
    cdef int _keep(self) except -1
    cdef int _gather_record(self, Record item, PendingRecord *r) except -1
    cdef int _borrow(self, object item, const uint8_t **data, int64_t *size, int64_t index,
                     str what) except -1
    cdef int64_t _plan(self, int64_t now_ms) except -1
    cdef int64_t _compress(self, int64_t size) except -1
