# RecordColumns: records as Arrow columns, from which a batch is built.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef struct binary_source:
    # A column of Arrow's binary layout, already checked: the ends ascend within the data.
    const int32_t *ends           # row i lies in ends[i] to ends[i + 1]; NULL: there is no such column
    const uint8_t *data
    const uint8_t *validity       # one bit for each row, beginning at bit `first`; NULL: nothing is null
    int64_t first


cdef class RecordColumns:
    cdef readonly int64_t rows
    cdef binary_source key
    cdef binary_source value
    cdef const int64_t *timestamp         # ms; NULL: no such column
    cdef const uint8_t *timestamp_validity
    cdef int64_t timestamp_first
    cdef const int32_t *lists             # row i has the headers lists[i] to lists[i + 1]; NULL: no such column
    cdef const uint8_t *lists_validity
    cdef int64_t lists_first
    cdef binary_source header_key
    cdef binary_source header_value
    cdef list held                        # memoryviews that keep all of this alive and at its address

    cdef int load_binary(self, binary_source *s, object source, int64_t rows, str what) except -1
    cdef int load_timestamp(self, object source) except -1
    cdef int load_headers(self, object source) except -1
    # Return the bytes of a buffer and keep it alive; raises ValueError if they are fewer than `need`.
    cdef const uint8_t *hold(self, object buffer, int64_t need, str what) except? NULL


cdef inline bint is_valid(const uint8_t *validity, int64_t at) noexcept nogil:
    return validity == NULL or validity[at >> 3] >> (at & 7) & 1


cdef inline void value_at(const binary_source *s, int64_t row, const uint8_t **data,
                          int64_t *size) noexcept nogil:
    # Read a row's bytes; NULL if it is null or if there is no such column.
    data[0] = NULL
    size[0] = 0
    if s.ends != NULL and is_valid(s.validity, s.first + row):
        data[0] = s.data + s.ends[row]
        size[0] = s.ends[row + 1] - s.ends[row]
