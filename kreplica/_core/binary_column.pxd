# One column of Arrow's binary or binary_view layout in the making, and how a value gets into it. Who puts
# values has made room for them and, where rows are undone, sets `nulls` and the data's size back.

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from kreplica._core.scratch cimport Scratch, grow
from kreplica._core.status cimport OK

cdef enum:
    INLINE_BYTES = 12             # what a view holds itself
    VIEW_BYTES = 16

cdef struct binary_column:
    # Arrow's binary: int32 offsets and data. With views, its binary_view: 16 bytes each, and in `data` what
    # lies in no buffer of the caller's.
    Scratch validity              # a bit each, 1 is valid; its size is that of the rows
    Scratch offsets               # rows + 1 of them; or views, rows of them
    Scratch data
    int64_t nulls


cdef inline int room(Scratch *s, int64_t items, int64_t more, int64_t width) noexcept nogil:
    # Room for `more` items after `items` of this width.
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
    # Both ways, so that nothing is left behind when rows are undone.
    cdef uint8_t bit = <uint8_t>(1 << (row & 7))
    if valid:
        b.validity.data[row >> 3] |= bit
    else:
        b.validity.data[row >> 3] &= ~bit
        b.nulls += 1


cdef inline void put_bytes(binary_column *b, int64_t row, const uint8_t *data, int64_t size) noexcept nogil:
    # A value of a binary column, for which there is room.
    if size:
        memcpy(b.data.data + b.data.size, data, <size_t>size)
        b.data.size += size
    (<int32_t *>b.offsets.data)[row + 1] = <int32_t>b.data.size
    set_valid(b, row, data != NULL)


cdef inline void put_view(binary_column *b, int64_t row, const uint8_t *data, int64_t size,
                          const uint8_t *source, int32_t source_index) noexcept nogil:
    # A value of a binary_view column: its size, and the value itself if short, else its first four bytes, the
    # buffer that holds it, and where in that. Without a source it is copied to the column's own buffer,
    # number 0.
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
