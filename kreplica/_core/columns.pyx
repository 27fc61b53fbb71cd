"""ColumnBuilder: converts record batches to columns in Arrow's memory layout, for Arrow, Spark, DuckDB and Polars.

It makes one pass over the bytes of many batches, without the GIL. CRC and all fields are checked, control batches are
left out, compressed ones are decompressed one at a time. Values are copied, or with `views` referred to where they
are: an Arrow binary_view column then keeps the mapped segment alive and costs no copy. Arrow itself is only
needed by `to_arrow`. Ownership: a builder owns its memory until `finish` hands it over. Thread rule: one thread at a
time.

Layout: https://arrow.apache.org/docs/format/Columnar.html
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from kreplica._core cimport codec
from kreplica._core.arrow import BinaryColumn as _BinaryColumn
from kreplica._core.arrow import Columns as _Columns
from kreplica._core.arrow import HeadersColumn as _HeadersColumn
from kreplica._core.big_endian cimport load64
from kreplica._core.binary_column cimport (
    VIEW_BYTES,
    binary_column,
    binary_room,
    free_binary,
    put_binary,
    put_bytes,
    room,
)
from kreplica._core.record cimport check_fault, fault_of
from kreplica._core.record_batch cimport (
    CODEC_MASK,
    COMPRESSED,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAX_DECOMPRESSED,
    MIN_RECORD_SIZE,
    BatchHeader,
    TRANSACTIONAL,
    RecordView,
    check_crc,
    check_fields,
    parse_header,
    parse_record,
    parse_record_header,
    record_timestamp,
)
from kreplica._core.scratch cimport Scratch, grow
from kreplica._core.status cimport (
    BAD_OFFSET_DELTA,
    BAD_RECORD_COUNT,
    BATCH_TOO_LARGE,
    END,
    FULL,
    NO_MEMORY,
    OFFSET_OVERFLOW,
    OFFSET_REGRESSION,
    OK,
    TRAILING_BYTES,
    check,
)

cdef enum:
    # Outcome of walk() that its caller handles, beside COMPRESSED and the outcomes of Status.
    NEW_SOURCE = 101

    HELD_GIL_BYTES = 16384        # below this size, releasing the GIL costs more than keeping it

_COLUMNS = {
    "offset": OFFSET,
    "timestamp": TIMESTAMP,
    "timestamp_type": TIMESTAMP_TYPE,
    "key": KEY,
    "value": VALUE,
    "headers": HEADERS,
    "leader_epoch": LEADER_EPOCH,
    "producer_id": PRODUCER_ID,
}
# The columns built by default.
_OF_RECORDS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")


# ---- memory ------------------------------------------------------------------------------------------------


@cython.final
cdef class ColumnBuffer:
    """A buffer of a finished column; `memoryview(buffer)` gives its bytes."""

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        pass


cdef ColumnBuffer _take(Scratch *s, int64_t size):
    # Hand over the memory; the scratch starts empty again.
    cdef ColumnBuffer taken = ColumnBuffer.__new__(ColumnBuffer)
    s.size = 0
    if grow(s, max(size, 1)) != OK:
        raise MemoryError("no memory for a column")
    taken.data = s.data
    taken.size = size
    s.data = NULL
    s.size = s.capacity = 0
    return taken


cdef void _mark(const columns_t *c, mark_t *m) noexcept nogil:
    m.rows = c.rows
    m.headers = c.headers
    m.key_data = c.key.data.size
    m.key_nulls = c.key.nulls
    m.value_data = c.value.data.size
    m.value_nulls = c.value.nulls
    m.header_key_data = c.header_key.data.size
    m.header_value_data = c.header_value.data.size
    m.header_value_nulls = c.header_value.nulls


cdef void _undo(columns_t *c, const mark_t *m) noexcept nogil:
    c.rows = m.rows
    c.headers = m.headers
    c.key.data.size = m.key_data
    c.key.nulls = m.key_nulls
    c.value.data.size = m.value_data
    c.value.nulls = m.value_nulls
    c.header_key.data.size = m.header_key_data
    c.header_value.data.size = m.header_value_data
    c.header_value.nulls = m.header_value_nulls


# ---- one value ---------------------------------------------------------------------------------------------


cdef void _mend_utf8(uint8_t *p, int64_t size) noexcept nogil:
    # Arrow's strings are UTF-8: replace bytes of a header's name that are not part of a valid character by a question
    # mark.
    cdef int64_t i = 0, length, k
    cdef uint8_t lead, low, high
    while i < size:
        lead = p[i]
        low, high = 0x80, 0xBF
        if lead < 0x80:
            i += 1
            continue
        if 0xC2 <= lead <= 0xDF:
            length = 2
        elif 0xE0 <= lead <= 0xEF:
            length = 3
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            length = 4
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            length = 1
        k = 1
        while k < length and i + k < size and low <= p[i + k] <= high:
            low, high = 0x80, 0xBF
            k += 1
        if length == 1 or k < length:
            p[i] = 63
            i += 1
        else:
            i += length


cdef int _put_headers(columns_t *c, const RecordView *r) noexcept nogil:
    # Add one row's headers, which parse_record has checked.
    cdef const uint8_t *p = r.headers
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef int64_t left = r.headers_size, key_size = 0, value_size = 0, used = 0
    cdef int32_t _
    if r.header_count:
        if (
            binary_room(&c.header_key, c.headers, r.header_count, False) != OK
            or binary_room(&c.header_value, c.headers, r.header_count, False) != OK
            or grow(&c.header_key.data, left) != OK
            or grow(&c.header_value.data, left) != OK
        ):
            return NO_MEMORY
        if max(c.header_key.data.size, c.header_value.data.size) + left > INT32_MAX:
            return FULL
    for _ in range(r.header_count):
        parse_record_header(p, left, &key, &key_size, &value, &value_size, &used)
        put_bytes(&c.header_key, c.headers, key, key_size)
        _mend_utf8(c.header_key.data.data + c.header_key.data.size - key_size, key_size)
        put_bytes(&c.header_value, c.headers, value, value_size)
        c.headers += 1
        p += used
        left -= used
    (<int32_t *>c.header_lists.data)[c.rows + 1] = <int32_t>c.headers
    return OK


# ---- the builder -------------------------------------------------------------------------------------------


@cython.final
cdef class ColumnBuilder:
    """Collects the records of many batches in columns.

    `columns` names those to build: offset, timestamp, timestamp_type, key, value, headers (the default), leader_epoch,
    producer_id. `views` makes key and value binary_view columns that refer to the data given to `extend`, which is
    kept alive. That saves the copy, but the bytes must not change (those of a pinned slice do not). Values in
    compressed batches are copied. A batch may decompress to `max_decompressed` bytes. Only records with a timestamp
    (ms) in from_time <= timestamp < to_time are included.

    Offsets are not covered by a batch's CRC. If `next_offset` is set, it is the least base offset allowed for the next
    batch, and a batch whose offsets do not fit between that and what follows is rejected.
    """

    def __cinit__(self, columns=None, *, bint views=False):
        self.views = views
        self.max_decompressed = MAX_DECOMPRESSED
        self.sources = []
        self.from_time = INT64_MIN
        self.to_time = INT64_MAX
        self.next_offset = -1
        for name in _OF_RECORDS if columns is None else columns:
            if name not in _COLUMNS:
                raise ValueError(f"unknown column {name!r}: use {', '.join(_COLUMNS)}")
            self.projection |= <int>_COLUMNS[name]

    def __dealloc__(self):
        free(self.c.offset.data)
        free(self.c.timestamp.data)
        free(self.c.timestamp_type.data)
        free(self.c.leader_epoch.data)
        free(self.c.producer_id.data)
        free(self.aborted)
        free(self.c.header_lists.data)
        free_binary(&self.c.key)
        free_binary(&self.c.value)
        free_binary(&self.c.header_key)
        free_binary(&self.c.header_value)

    def __len__(self):
        return self.c.rows

    @property
    def data_bytes(self):
        """The size of the collected keys, values and headers, without those that views refer to."""
        return self.data_size()

    def hide_aborted(self, transactions):
        """Leave out the records of these transactions from now on.

        Each is given as its producer id, the offset of its first record and the offset of its marker.
        """
        cdef aborted_t *found
        cdef list known = sorted(transactions)
        cdef int64_t i
        found = <aborted_t *>malloc(<size_t>max(len(known), 1) * sizeof(aborted_t))
        if found == NULL:
            raise MemoryError(f"no memory for {len(known)} transactions")
        try:
            for i in range(len(known)):
                found[i].producer_id, found[i].first_offset, found[i].last_offset = known[i][:3]
        except BaseException:
            free(found)
            raise
        free(self.aborted)
        self.aborted = found
        self.aborted_count = len(known)

    def extend(self, data, int64_t position=0, *, int64_t first=0, int64_t stop=INT64_MAX,
               int64_t max_rows=INT64_MAX, int64_t max_bytes=INT64_MAX, int64_t following=INT64_MAX,
               bint checked=False):
        """Append the records of the batches in `data[position:]` with first <= offset < stop.

        Returns the position reached. It is the length of `data`, unless the last batch reached `max_rows` or
        `max_bytes` of keys, values and headers, or a column is full (2 GiB of keys or values): then call `finish` and
        continue from there. `following` is the base offset of what follows `data`. `checked` skips the CRCs, which the
        caller has checked. Raises what reading a batch raises. The records of earlier batches then stay appended,
        except for MappedPageLost, and `position` is that of the bad batch.
        """
        cdef Py_buffer view
        cdef walk_t w
        cdef mark_t mark
        if self.busy:
            raise RuntimeError("the builder is in use by another thread")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        self.busy = True
        try:
            if not 0 <= position <= view.len:
                raise ValueError(f"position {position} is out of range: there are {view.len} bytes")
            w.data = <const uint8_t *>view.buf
            w.size = view.len
            w.position = position
            w.first = max(first, 0)
            w.stop = stop
            w.max_rows = max_rows
            w.max_bytes = max_bytes
            w.next_offset = self.next_offset
            w.following = following
            w.source = NULL
            w.source_index = 0
            w.checked = checked
            _mark(&self.c, &mark)
            try:
                self.extend_from(data, &w)
            finally:
                fault = fault_of(data)
                try:
                    check_fault(fault)
                except BaseException:
                    _undo(&self.c, &mark)
                    w.position, w.next_offset = position, self.next_offset
                    raise
                finally:
                    self.position, self.next_offset = w.position, w.next_offset
            return w.position
        finally:
            self.busy = False
            PyBuffer_Release(&view)

    def finish(self):
        """Return the columns as kreplica._core.arrow.Columns; the builder is empty again."""
        cdef int64_t rows = self.c.rows
        cdef int p = self.projection
        if self.busy:
            raise RuntimeError("the builder is in use by another thread")
        key = _take_binary(&self.c.key, rows, self.views, self.sources) if p & KEY else None
        value = _take_binary(&self.c.value, rows, self.views, self.sources) if p & VALUE else None
        offset = _take(&self.c.offset, rows * sizeof(int64_t)) if p & OFFSET else None
        timestamp = _take(&self.c.timestamp, rows * sizeof(int64_t)) if p & TIMESTAMP else None
        timestamp_type = _take(&self.c.timestamp_type, rows) if p & TIMESTAMP_TYPE else None
        epoch = _take(&self.c.leader_epoch, rows * <int64_t>sizeof(int32_t)) if p & LEADER_EPOCH else None
        producer_id = _take(&self.c.producer_id, rows * sizeof(int64_t)) if p & PRODUCER_ID else None
        headers = _take_headers(&self.c) if p & HEADERS else None
        self.c.rows = self.c.headers = 0
        self.sources = []
        return _Columns(rows, key, value, offset, timestamp, timestamp_type, headers, epoch, producer_id)

    cdef int extend_from(self, object data, walk_t *w) except -1:
        # Walk, and handle what the walk cannot.
        cdef int status
        while True:
            if w.size - w.position < HELD_GIL_BYTES:
                status = self.walk(w)
            else:
                with nogil:
                    status = self.walk(w)
            if status == COMPRESSED:
                status = self.append_compressed(w)
            elif status == NEW_SOURCE:
                # Views refer to this new source: the data from here on, as far as a 31-bit offset reaches.
                self.sources.append(memoryview(data)[w.position:w.position + INT32_MAX])
                w.source = w.data + w.position
                w.source_index = <int32_t>len(self.sources)
                continue
            if status == FULL and self.c.rows == 0:
                status = BATCH_TOO_LARGE
            if status == END or status == FULL:
                return 0
            check(status, "reading batches into columns", w.position)

    cdef int walk(self, walk_t *w) noexcept nogil:
        cdef BatchHeader h
        cdef int status
        while self.c.rows < w.max_rows and self.data_size() < w.max_bytes:
            status = parse_header(w.data + w.position, w.size - w.position, &h)
            if status == OK and w.next_offset >= 0:
                status = self.check_order(w, &h)
            if status != OK:
                return status
            if h.base_offset >= w.stop:
                w.position = w.size
                if w.next_offset >= 0:
                    w.next_offset = h.base_offset
                return END
            if 0 <= h.base_offset < w.first and w.first - h.base_offset > h.last_offset_delta >= 0:
                self.passed(w, &h)
                continue
            if not w.checked:
                status = check_crc(w.data + w.position, &h)
                if status == OK:
                    status = check_fields(&h)
                if status != OK:
                    return status
            if not h.attributes & CONTROL and not self.is_hidden(&h):
                if h.attributes & CODEC_MASK:
                    return COMPRESSED
                if self.views and (
                    w.source == NULL or w.data + w.position + h.size - w.source > INT32_MAX
                ):
                    return NEW_SOURCE
                status = self.append_records(
                    &h, w.data + w.position + HEADER_SIZE, h.size - HEADER_SIZE, w, self.views
                )
                if status != OK:
                    return status
            self.passed(w, &h)
        return FULL

    cdef void passed(self, walk_t *w, const BatchHeader *h) noexcept nogil:
        w.position += h.size
        if w.next_offset >= 0:
            w.next_offset = h.base_offset + h.last_offset_delta + 1

    cdef int check_order(self, const walk_t *w, const BatchHeader *h) noexcept nogil:
        cdef int64_t end = w.position + h.size
        cdef int64_t following = load64(w.data + end) if w.size - end >= 8 else w.following
        if h.base_offset < w.next_offset:
            return OFFSET_REGRESSION
        if h.last_offset_delta < 0 or h.base_offset > INT64_MAX - 1 - h.last_offset_delta:
            return OFFSET_OVERFLOW
        # Before a gap, the offset of this batch may be the damaged one.
        if h.base_offset > w.next_offset and w.next_offset < following <= h.base_offset + h.last_offset_delta:
            return OFFSET_REGRESSION
        return OK

    cdef bint is_hidden(self, const BatchHeader *h) noexcept nogil:
        cdef int64_t low = 0, high = self.aborted_count, middle
        if h.max_timestamp < self.from_time:
            return True
        if not h.attributes & TRANSACTIONAL:
            return False
        # The producer's last transaction that begins at or before the end of the batch.
        while low < high:
            middle = (low + high) >> 1
            if (self.aborted[middle].producer_id < h.producer_id
                    or (self.aborted[middle].producer_id == h.producer_id
                        and self.aborted[middle].first_offset <= h.base_offset + h.last_offset_delta)):
                low = middle + 1
            else:
                high = middle
        return (low > 0 and self.aborted[low - 1].producer_id == h.producer_id
                and h.base_offset <= self.aborted[low - 1].last_offset)

    cdef int64_t data_size(self) noexcept nogil:
        return (self.c.key.data.size + self.c.value.data.size + self.c.header_key.data.size
                + self.c.header_value.data.size)

    cdef int append_compressed(self, walk_t *w) except? -128:
        # Append the batch at the walk's position, which the walk has checked.
        cdef Py_buffer section
        cdef BatchHeader h
        cdef int status
        parse_header(w.data + w.position, w.size - w.position, &h)
        source = PyMemoryView_FromMemory(
            <char *>w.data + w.position + HEADER_SIZE, h.size - HEADER_SIZE, PyBUF_READ
        )
        records = codec.decompress(h.attributes & CODEC_MASK, source, self.max_decompressed, h.record_count)
        PyObject_GetBuffer(records, &section, PyBUF_SIMPLE)
        status = self.append_records(&h, <const uint8_t *>section.buf, section.len, w, False)
        PyBuffer_Release(&section)
        if status == OK:
            self.passed(w, &h)
        return status

    cdef int append_records(self, const BatchHeader *h, const uint8_t *records, int64_t size, const walk_t *w,
                            bint in_source) noexcept nogil:
        cdef RecordView record
        cdef mark_t mark
        cdef int64_t last = -1, used = 0
        cdef int status = self.make_room(h, size)
        cdef int32_t _
        _mark(&self.c, &mark)
        for _ in range(h.record_count):
            if status == OK:
                status = parse_record(records, size, &record, &used)
            if status == OK and not last < record.offset_delta <= h.last_offset_delta:
                status = BAD_OFFSET_DELTA
            if status != OK:
                break
            last = record.offset_delta
            records += used
            size -= used
            if w.first <= h.base_offset + last < w.stop:
                status = self.put(h, &record, w.source if in_source else NULL, w.source_index)
        if status == OK and size != 0:
            status = TRAILING_BYTES
        if status != OK:
            _undo(&self.c, &mark)
        return status

    cdef int make_room(self, const BatchHeader *h, int64_t size) noexcept nogil:
        # Reserve space for the most that `size` bytes of records can contain, so that adding values needs no checks.
        cdef columns_t *c = &self.c
        cdef int64_t more = h.record_count
        cdef int status = OK
        if more < 0 or more > size // MIN_RECORD_SIZE:
            return BAD_RECORD_COUNT
        if c.rows + more > INT32_MAX - 1 or max(c.key.data.size, c.value.data.size) + size > INT32_MAX:
            return FULL
        if self.projection & OFFSET:
            status |= room(&c.offset, c.rows, more, sizeof(int64_t))
        if self.projection & TIMESTAMP:
            status |= room(&c.timestamp, c.rows, more, sizeof(int64_t))
        if self.projection & TIMESTAMP_TYPE:
            status |= room(&c.timestamp_type, c.rows, more, 1)
        if self.projection & LEADER_EPOCH:
            status |= room(&c.leader_epoch, c.rows, more, sizeof(int32_t))
        if self.projection & PRODUCER_ID:
            status |= room(&c.producer_id, c.rows, more, sizeof(int64_t))
        if self.projection & KEY:
            status |= binary_room(&c.key, c.rows, more, self.views)
            status |= grow(&c.key.data, size)
        if self.projection & VALUE:
            status |= binary_room(&c.value, c.rows, more, self.views)
            status |= grow(&c.value.data, size)
        if self.projection & HEADERS:
            status |= room(&c.header_lists, c.rows, more + 1, sizeof(int32_t))
            if status == OK and c.rows == 0:
                (<int32_t *>c.header_lists.data)[0] = 0
        return OK if status == OK else NO_MEMORY

    cdef int put(self, const BatchHeader *h, const RecordView *r, const uint8_t *source,
                 int32_t source_index) noexcept nogil:
        cdef columns_t *c = &self.c
        cdef int64_t row = c.rows, timestamp = 0
        cdef int status
        status = record_timestamp(h, r.timestamp_delta, &timestamp)
        if status != OK or not self.from_time <= timestamp < self.to_time:
            return status
        if self.projection & OFFSET:
            (<int64_t *>c.offset.data)[row] = h.base_offset + r.offset_delta
        if self.projection & LEADER_EPOCH:
            (<int32_t *>c.leader_epoch.data)[row] = h.leader_epoch
        if self.projection & PRODUCER_ID:
            (<int64_t *>c.producer_id.data)[row] = h.producer_id
        if self.projection & TIMESTAMP:
            (<int64_t *>c.timestamp.data)[row] = timestamp
        if self.projection & TIMESTAMP_TYPE:
            c.timestamp_type.data[row] = h.attributes & LOG_APPEND_TIME != 0
        if self.projection & KEY:
            put_binary(&c.key, row, r.key, r.key_size, self.views, source, source_index)
        if self.projection & VALUE:
            put_binary(&c.value, row, r.value, r.value_size, self.views, source, source_index)
        if self.projection & HEADERS:
            status = _put_headers(c, r)
        c.rows += 1
        return status


# ---- finished columns --------------------------------------------------------------------------------------


cdef object _take_binary(binary_column *b, int64_t rows, bint views, list sources):
    cdef int64_t data_size = b.data.size
    if binary_room(b, rows, 0, views) != OK:
        raise MemoryError("no memory for a column")
    validity = _take(&b.validity, (rows + 7) >> 3) if b.nulls else None
    index = _take(&b.offsets, rows * VIEW_BYTES if views else (rows + 1) * <int64_t>sizeof(int32_t))
    data = [_take(&b.data, data_size)]
    if views:
        data += sources
    nulls, b.nulls = b.nulls, 0
    return _BinaryColumn(nulls, validity, index, data, views)


cdef object _take_headers(columns_t *c):
    if room(&c.header_lists, c.rows, 1, sizeof(int32_t)) != OK:
        raise MemoryError("no memory for a column")
    if c.rows == 0:
        (<int32_t *>c.header_lists.data)[0] = 0
    lists = _take(&c.header_lists, (c.rows + 1) * <int64_t>sizeof(int32_t))
    key = _take_binary(&c.header_key, c.headers, False, [])
    value = _take_binary(&c.header_value, c.headers, False, [])
    return _HeadersColumn(lists, c.headers, key, value)
