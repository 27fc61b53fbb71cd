# A column in Arrow's binary or binary_view layout under construction, and functions that add values. The caller
# has reserved the space, and resets `nulls` and the data's size when it undoes rows.

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from kreplica._core.scratch cimport Scratch, grow
from kreplica._core.status cimport OK

cdef enum:
    INLINE_BYTES = 12             # longest value stored in the view itself
    VIEW_BYTES = 16

cdef struct binary_column:
    # binary: int32 offsets and data. binary_view: views of 16 bytes, and in `data` the values that are in none of
    # the caller's buffers.
    Scratch validity              # one bit per row, 1 is valid
    Scratch offsets               # rows + 1 offsets, or one view per row
    Scratch data
    int64_t nulls


cdef inline int room(Scratch *s, int64_t items, int64_t more, int64_t width) noexcept nogil:
    # Reserve space for `more` items after `items` of this width.
    s.size = items * width
    return grow(s, more * width)


cdef inline int binary_room(binary_column *b, int64_t rows, int64_t more, bint views) noexcept nogil:
    cdef int status = room(&b.validity, (rows + 7) >> 3, (more >> 3) + 2, 1)
    if status == OK and views:
        return room(&b.offsets, rows, more, VIEW_BYTES)
    if status == OK:
        status = room(&b.offsets, rows, more + 1, sizeof(int32_t))
    if status == OK and rows == 0:
        (<int32_t *>b.offsets.data)[0] = 0
    return status


cdef inline void free_binary(binary_column *b) noexcept:
    free(b.validity.data)
    free(b.offsets.data)
    free(b.data.data)


cdef inline void set_valid(binary_column *b, int64_t row, bint valid) noexcept nogil:
    # Sets or clears the bit, so that undone rows leave nothing behind.
    cdef uint8_t bit = <uint8_t>(1 << (row & 7))
    if valid:
        b.validity.data[row >> 3] |= bit
    else:
        b.validity.data[row >> 3] &= ~bit
        b.nulls += 1


cdef inline void put_bytes(binary_column *b, int64_t row, const uint8_t *data, int64_t size) noexcept nogil:
    # Add a value of a binary column; the space is reserved.
    if size:
        memcpy(b.data.data + b.data.size, data, <size_t>size)
        b.data.size += size
    (<int32_t *>b.offsets.data)[row + 1] = <int32_t>b.data.size
    set_valid(b, row, data != NULL)


cdef inline void put_view(binary_column *b, int64_t row, const uint8_t *data, int64_t size,
                          const uint8_t *source, int32_t source_index) noexcept nogil:
    # Add a value of a binary_view column. A view holds the size and a short value itself, or else the first four
    # bytes, the number of the buffer that holds the value, and the position in it. Without a source the value is
    # copied into the column's own buffer, number 0.
    cdef uint8_t *view = b.offsets.data + row * VIEW_BYTES
    cdef int32_t *number = <int32_t *>view
    set_valid(b, row, data != NULL)
    number[0] = <int32_t>size
    if size <= INLINE_BYTES:
        memset(view + 4, 0, INLINE_BYTES)
        if size:
            memcpy(view + 4, data, <size_t>size)
        return
    memcpy(view + 4, data, 4)
    if source != NULL:
        number[2] = source_index
        number[3] = <int32_t>(data - source)
        return
    number[2] = 0
    number[3] = <int32_t>b.data.size
    memcpy(b.data.data + b.data.size, data, <size_t>size)
    b.data.size += size


cdef inline void put_binary(binary_column *b, int64_t row, const uint8_t *data, int64_t size, bint views,
                            const uint8_t *source, int32_t source_index) noexcept nogil:
    if views:
        put_view(b, row, data, size, source, source_index)
    else:
        put_bytes(b, row, data, size)
