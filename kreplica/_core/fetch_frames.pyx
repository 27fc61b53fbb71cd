"""A follower's Fetch requests and the answers to them, written and read without message objects.

`write_fetch_request` writes the frame of a fetch. `read_fetch_answer` reads an answer that needs no decision. It
declines every other one with a Declined, and the caller reads that answer as a message. Both know one version of the
protocol, FETCH_VERSION. The input is untrusted: each length is checked before it is used. Records stay where they are:
an answer refers to its frame. Stateless; any thread may call.
"""

import enum

from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kreplica._core.big_endian cimport load16, load32, load64, store16, store32, store64
from kreplica._core.scratch cimport Scratch, reserve
from kreplica._core.varint cimport read_unsigned_varint, write_unsigned_varint

FETCH_VERSION = 17

cdef enum:
    FETCH = 1
    VERSION = 17
    SIZE_BYTES = 4                 # before a frame
    NUMBER_BYTES = 4               # the number of the request, before its answer
    ID_BYTES = 16
    MOST_VARINT_BYTES = 5
    REPLICA_STATE_TAG = 1
    REPLICA_STATE_BYTES = 13       # replica id, replica epoch, no tagged fields
    MOST_PARTITIONS = 262_144      # as for any message, see MessageReader


class Declined(enum.IntEnum):
    """Why an answer was left to the caller, who reads it as a message."""

    MALFORMED = 1                  # cut short, or with a length that is out of bounds: the reader raises the error
    REFUSED = 2                    # an error for the whole request, such as an unknown session
    PARTITION_REFUSED = 3          # an error for a partition
    TAGGED = 4                     # tagged fields: a diverging epoch, a snapshot, the current leader, unknown ones
    TRANSACTIONS = 5               # aborted transactions, which only a consumer asks for


cdef enum:
    MALFORMED = 1
    REFUSED = 2
    PARTITION_REFUSED = 3
    TAGGED = 4
    TRANSACTIONS = 5


# ---- the answer ------------------------------------------------------------------------------------------------------


cdef struct Input:
    const uint8_t *at
    int64_t left


cdef inline const uint8_t *take(Input *what, int64_t size) noexcept nogil:
    cdef const uint8_t *at = what.at
    if size < 0 or size > what.left:
        return NULL
    what.at += size
    what.left -= size
    return at


# Read a length or count as it is stored, one more than it is; -1 if it is malformed.
cdef inline int64_t take_count(Input *what) noexcept nogil:
    cdef uint32_t value = 0
    cdef int used = read_unsigned_varint(what.at, what.left, &value)
    if used < 0:
        return -1
    what.at += used
    what.left -= used
    return value


# Return 0 if no tagged fields follow, else why the answer is declined.
cdef inline int take_no_tags(Input *what) noexcept nogil:
    cdef int64_t count = take_count(what)
    return 0 if count == 0 else MALFORMED if count < 0 else TAGGED


cdef class PartitionAnswer:
    """A leader's answer for one partition, without an error and without a diverging epoch.

    `records`: a slice of the frame, or None if there is nothing new.
    """

    def __init__(self, int64_t high_watermark, int64_t log_start_offset, records):
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        self.records = records


cdef class FetchAnswer:
    """A leader's answer to one fetch: its session, and (topic id, partition, PartitionAnswer) for each partition."""

    def __init__(self, int32_t session_id, list partitions not None):
        self.session_id = session_id
        self.partitions = partitions


# Read one partition into `partitions`. Returns 0, or why the answer is declined. `apart`: see read_fetch_buffers.
cdef int read_partition(Input *what, bytes topic_id, object frame, const uint8_t *start, list apart,
                        list partitions) except -1:
    cdef const uint8_t *fixed = take(what, 30)
    cdef const uint8_t *data
    cdef int64_t size
    cdef object records = None
    if fixed == NULL:
        return MALFORMED
    if load16(fixed + 4) != 0:
        return PARTITION_REFUSED
    size = take_count(what)
    if size < 0:
        return MALFORMED
    if size > 1:
        return TRANSACTIONS
    if take(what, 4) == NULL:  # the preferred replica, for consumers
        return MALFORMED
    size = take_count(what) - 1
    if size > 0 and apart and apart[0][0] == what.at - start:
        records = apart.pop(0)[1]
        if len(records) != size:
            return MALFORMED
    elif size >= 0:
        data = take(what, size)
        if data == NULL:
            return MALFORMED
        if size:
            records = frame[data - start:data - start + size]
    elif size < -1:
        return MALFORMED
    partitions.append((topic_id, load32(fixed), PartitionAnswer(load64(fixed + 6), load64(fixed + 22), records)))
    return take_no_tags(what)


cdef int read_topics(Input *what, object frame, const uint8_t *start, list apart, list partitions) except -1:
    cdef int64_t topics = take_count(what)
    cdef int64_t count
    cdef const uint8_t *topic_id
    cdef bytes name
    cdef int why
    if topics < 1 or topics - 1 > what.left:
        return MALFORMED
    while topics > 1:
        topics -= 1
        topic_id = take(what, ID_BYTES)
        if topic_id == NULL:
            return MALFORMED
        name = PyBytes_FromStringAndSize(<const char *> topic_id, ID_BYTES)
        count = take_count(what)
        if count < 1 or count - 1 > what.left or len(partitions) + count - 1 > MOST_PARTITIONS:
            return MALFORMED
        while count > 1:
            count -= 1
            why = read_partition(what, name, frame, start, apart, partitions)
            if why:
                return why
        why = take_no_tags(what)
        if why:
            return why
    why = take_no_tags(what)
    if why:
        return why
    return MALFORMED if what.left or apart else 0


def read_fetch_answer(frame not None, int64_t position):
    """Read the answer in `frame`. From `position` on it has the header's tagged fields and the body.

    Returns a FetchAnswer, or a Declined.
    """
    return read_answer(frame, position, [])


def read_fetch_buffers(list buffers not None, int64_t position):
    """Read the answer whose frame consists of `buffers`, as read_fetch_answer does.

    Records that are a buffer of their own, and not bytes, are handed over as they are.
    """
    cdef list joined = []
    cdef list apart = []             # (position in the joined buffers, records)
    cdef int64_t size = 0
    for each in buffers:
        if isinstance(each, bytes):
            joined.append(each)
            size += len(<bytes> each)
        else:
            apart.append((size, each))
    return read_answer(joined[0] if len(joined) == 1 else b"".join(joined), position, apart)


cdef object read_answer(object frame, int64_t position, list apart):
    cdef object view = memoryview(frame)
    cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(view)
    cdef const uint8_t *start = <const uint8_t *> buffer.buf
    cdef const uint8_t *head
    cdef Input what
    cdef list partitions = []
    cdef int why
    if not PyBuffer_IsContiguous(buffer, b"C") or not 0 <= position <= buffer.len:
        raise ValueError(f"position {position} of {buffer.len} bytes, which must be contiguous")
    what.at = start + position
    what.left = buffer.len - position
    why = take_no_tags(&what)
    if why:
        return Declined(why)
    head = take(&what, 10)  # throttle time, error, session
    if head == NULL:
        return Declined.MALFORMED
    if load16(head + 4) != 0:
        return Declined.REFUSED
    why = read_topics(&what, view, start, apart, partitions)
    if why:
        return Declined(why)
    return FetchAnswer(load32(head + 6), partitions)


# ---- the request -----------------------------------------------------------------------------------------------------


cdef int put_count(Scratch *into, int64_t count) except -1:
    reserve(into, MOST_VARINT_BYTES)
    into.size += write_unsigned_varint(into.data + into.size, <uint32_t> (count + 1))
    return 0


cdef uint8_t *room(Scratch *into, int64_t size) except NULL:
    reserve(into, size)
    cdef uint8_t *at = into.data + into.size
    into.size += size
    return at


cdef int put_id(Scratch *into, bytes topic_id) except -1:
    if len(topic_id) != ID_BYTES:
        raise ValueError(f"a topic id has {ID_BYTES} bytes, not {len(topic_id)}")
    memcpy(room(into, ID_BYTES), PyBytes_AS_STRING(topic_id), ID_BYTES)
    return 0


cdef int put_partition(Scratch *into, tuple asked, int32_t max_bytes) except -1:
    cdef int32_t partition, leader_epoch, last_fetched_epoch
    cdef int64_t fetch_offset, log_start_offset
    partition, fetch_offset, log_start_offset, leader_epoch, last_fetched_epoch = asked
    cdef uint8_t *at = room(into, 33)
    store32(at, partition)
    store32(at + 4, leader_epoch)
    store64(at + 8, fetch_offset)
    store32(at + 16, last_fetched_epoch)
    store64(at + 20, log_start_offset)
    store32(at + 28, max_bytes)
    at[32] = 0  # no tagged fields
    return 0


cdef int put_head(Scratch *into, int32_t number, bytes client_id) except -1:
    cdef uint8_t *at = room(into, 14 + len(client_id) + 1)
    store16(at + 4, FETCH)
    store16(at + 6, VERSION)
    store32(at + 8, number)
    store16(at + 12, <int> len(client_id))
    memcpy(at + 14, PyBytes_AS_STRING(client_id), len(client_id))
    at[14 + len(client_id)] = 0
    return 0


cdef int put_fetch(Scratch *into, FetchSettings settings, int32_t session_id, int32_t session_epoch, dict asked,
                   dict forgotten) except -1:
    cdef uint8_t *at = room(into, 21)
    store32(at, settings.max_wait_ms)
    store32(at + 4, settings.min_bytes)
    store32(at + 8, settings.max_bytes)
    at[12] = 0  # everything, also what is not committed
    store32(at + 13, session_id)
    store32(at + 17, session_epoch)
    put_count(into, len(asked))
    for topic_id, partitions in asked.items():
        put_id(into, topic_id)
        put_count(into, len(partitions))
        for each in partitions:
            put_partition(into, each, settings.partition_max_bytes)
        room(into, 1)[0] = 0
    put_count(into, len(forgotten))
    for topic_id, numbers in forgotten.items():
        put_id(into, topic_id)
        put_count(into, len(numbers))
        for each in numbers:
            store32(room(into, 4), each)
        room(into, 1)[0] = 0
    at = room(into, 4 + REPLICA_STATE_BYTES)
    at[0] = 1  # an empty rack
    at[1] = 1  # one tagged field
    at[2] = REPLICA_STATE_TAG
    at[3] = REPLICA_STATE_BYTES
    store32(at + 4, settings.replica_id)
    store64(at + 8, settings.replica_epoch)
    at[16] = 0
    return 0


cdef class FetchSettings:
    """What all fetches of one follower from one leader have in common. `replica_epoch`: the broker epoch of replica
    `replica_id`."""

    def __init__(self, int32_t replica_id, int64_t replica_epoch, *, int32_t max_wait_ms, int32_t min_bytes,
                 int32_t max_bytes, int32_t partition_max_bytes):
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.partition_max_bytes = partition_max_bytes
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch


def write_fetch_request(int32_t number, bytes client_id not None, FetchSettings settings not None,
                        int32_t session_id, int32_t session_epoch, dict asked not None, dict forgotten not None):
    """Return the frame of a fetch, preceded by its size.

    `asked`: by topic id, a list of (partition, fetch offset, log start offset, leader epoch, last fetched epoch).
    `forgotten`: by topic id, a list of partitions. Raises ValueError for an id that is not one, OverflowError for a
    number that does not fit.
    """
    cdef Scratch into
    into.data = NULL
    into.size = 0
    into.capacity = 0
    if len(client_id) > 0x7FFF:
        raise ValueError(f"a client id of {len(client_id)} bytes; at most {0x7FFF} are allowed")
    try:
        put_head(&into, number, client_id)
        put_fetch(&into, settings, session_id, session_epoch, asked, forgotten)
        store32(into.data, <int32_t> (into.size - 4))
        return PyBytes_FromStringAndSize(<const char *> into.data, into.size)
    finally:
        free(into.data)


# ---- both ------------------------------------------------------------------------------------------------------------


cdef class SessionFetch:
    """One fetch: its session, and the partitions it names and forgets; `asked`, `forgotten`: as write_fetch_request."""

    def __init__(self, int32_t session_id, int32_t session_epoch, dict asked not None, dict forgotten not None):
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.asked = asked
        self.forgotten = forgotten


cdef class FetchFrames:
    """The frames of one fetch and its answer; the native part of an EncodedFetch, which has `read_message(frame)`.

    `declined`: a mapping that counts the answers that were left to `read_message`, by the reason.
    """

    def __init__(self, SessionFetch fetch not None, FetchSettings settings not None, declined not None):
        self.fetch = fetch
        self.settings = settings
        self.declined = declined

    def frame(self, int32_t number, bytes client_id not None):
        """Return the request with its header; see EncodedRequest."""
        cdef SessionFetch fetch = self.fetch
        return write_fetch_request(number, client_id, self.settings, fetch.session_id, fetch.session_epoch,
                                   fetch.asked, fetch.forgotten)

    def read(self, frame not None):
        """Return the answer in the frame; see EncodedRequest."""
        answer = read_fetch_answer(frame, NUMBER_BYTES)
        return answer if type(answer) is FetchAnswer else self.as_message(answer, frame)

    def read_buffers(self, list buffers not None):
        """Return the answer in the frame of these buffers; see EncodedRequest."""
        answer = read_fetch_buffers(buffers, SIZE_BYTES + NUMBER_BYTES)
        if type(answer) is FetchAnswer:
            return answer
        return self.as_message(answer, memoryview(b"".join(buffers))[SIZE_BYTES:])

    cdef object as_message(self, object why, object frame):
        self.declined[why] += 1
        return self.read_message(frame)
