# ColumnBuilder: converts record batches to buffers in Arrow's columnar layout, without a Python object per record.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.binary_column cimport binary_column
from kreplica._core.record_batch cimport BatchHeader, RecordView
from kreplica._core.scratch cimport Scratch

cdef enum:
    # The columns to build.
    OFFSET = 1
    TIMESTAMP = 2
    TIMESTAMP_TYPE = 4
    KEY = 8
    VALUE = 16
    HEADERS = 32
    LEADER_EPOCH = 64
    PRODUCER_ID = 128

cdef struct columns_t:
    # All columns. Fixed-width columns have `rows` or `headers` entries.
    int64_t rows
    int64_t headers               # total number of headers
    Scratch offset
    Scratch timestamp
    Scratch timestamp_type        # one byte each: 0 create, 1 log append
    Scratch leader_epoch          # int32, from the records' batches
    Scratch producer_id           # int64
    binary_column key
    binary_column value
    Scratch header_lists          # rows + 1: the start of each row's headers among all
    binary_column header_key      # never null; its data is UTF-8
    binary_column header_value

cdef struct mark_t:
    # The ends of the columns, to undo a batch that turns out to be invalid.
    int64_t rows
    int64_t headers
    int64_t key_data
    int64_t key_nulls
    int64_t value_data
    int64_t value_nulls
    int64_t header_key_data
    int64_t header_value_data
    int64_t header_value_nulls

cdef struct walk_t:
    # A range of batches being added to the columns.
    const uint8_t *data
    int64_t size
    int64_t position              # of the next batch
    int64_t first                 # offsets: first <= offset < stop
    int64_t stop
    int64_t max_rows
    const uint8_t *source         # views refer to source[0:2 GiB], the buffer with this index
    int32_t source_index
    int64_t max_bytes             # of keys, values and headers
    int64_t next_offset           # the least base offset allowed for the next batch; -1: order is not checked
    int64_t following             # the base offset of what follows the data
    bint checked                  # the caller has checked CRC and header fields

cdef struct aborted_t:
    # A producer's aborted transaction: the offsets of its first record and of its marker.
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset


cdef class ColumnBuffer:
    # One buffer of a finished column, with the buffer protocol; it owns its memory.
    cdef uint8_t *data
    cdef readonly int64_t size


cdef class ColumnBuilder:
    cdef columns_t c
    cdef int projection
    cdef readonly bint views
    cdef bint busy
    cdef list sources             # the buffers that views refer to, after the column's own
    cdef public int64_t max_decompressed
    cdef public int64_t from_time         # ms: from_time <= timestamp < to_time
    cdef public int64_t to_time
    cdef public int64_t next_offset       # as in walk_t
    cdef readonly int64_t position        # where `extend` stopped in the last data
    cdef aborted_t *aborted               # the transactions given to hide_aborted, sorted
    cdef int64_t aborted_count

    cdef int extend_from(self, object data, walk_t *w) except -1
    # Append batches until the range ends (END), a column is FULL, or a batch needs the GIL (COMPRESSED, NEW_SOURCE);
    # w.position is then that batch's. Or return an error: nothing of that batch is appended.
    cdef int walk(self, walk_t *w) noexcept nogil
    # Advance past a batch.
    cdef void passed(self, walk_t *w, const BatchHeader *h) noexcept nogil
    cdef int append_compressed(self, walk_t *w) except? -128
    # Whether the batch's offsets fit between the batches before it and what follows.
    cdef int check_order(self, const walk_t *w, const BatchHeader *h) noexcept nogil
    # Whether the batch's transaction was aborted, or none of its records is in the requested time range.
    cdef bint is_hidden(self, const BatchHeader *h) noexcept nogil
    # The number of data bytes in the columns.
    cdef int64_t data_size(self) noexcept nogil
    # Append one batch's records; views may refer to them if `in_source`.
    cdef int append_records(self, const BatchHeader *h, const uint8_t *records, int64_t size, const walk_t *w,
                            bint in_source) noexcept nogil
    cdef int make_room(self, const BatchHeader *h, int64_t size) noexcept nogil
    cdef int put(self, const BatchHeader *h, const RecordView *r, const uint8_t *source,
                 int32_t source_index) noexcept nogil
