"""The native way of Fetch requests; what it takes, and its contract: fetch_lane.pxd."""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from concurrent.futures import CancelledError

from kreplica._core.big_endian cimport load16, load32, load64, store16, store32, store64
from kreplica._core.client_account cimport ClientAccount
from kreplica._core.delayed_operations cimport DelayedOperations
from kreplica._core.fetch_session cimport CachedPartition, FetchSession
from kreplica._core.fields cimport (
    DAMAGES_EMPTY, EPOCH_ENTRIES, LOG_ACTIVE, LOG_CLOSED, LOG_DAMAGES, LOG_EPOCHS, LOG_LOCK, LOG_STATE, LOG_STOPPED_AT,
    STATE_ISR,
)
from kreplica._core.grants cimport Grants
from kreplica._core.leader_state cimport FetchClock, LeaderState, Replica, Term
from kreplica._core.log_lock cimport LogLock
from kreplica._core.log_segment cimport LogSegment
from kreplica._core.log_state cimport LogState
from kreplica._core.region cimport Slice, kr_load_acquire
from kreplica._core.varint cimport read_unsigned_varint, write_unsigned_varint

# The names of the reasons to decline a request, in the order of fetch_lane.pxd.
FETCHES_DECLINED = (
    "version", "layout", "consumer", "full", "forgets", "min bytes", "session", "busy", "quota", "partition",
    "wait", "rights",
)
assert len(FETCHES_DECLINED) == FETCH_DECLINES

cdef enum:
    FIRST_VERSION = 12                 # the first version with compact fields
    FIRST_WITH_IDS = 13                # ... that names topics by their ids
    FIRST_WITH_TAGGED_REPLICA = 15     # ... in which only a follower says who it is
    VERSION = 17                       # the version that nodes send
    OF_CONSUMER = 1                    # what `parse` returns for a consumer's request
    CONSUMER = -1                      # its replica id
    ONE = 2                            # the size of a compact array with one element
    NO_ELEMENT = 1                     # ... and of an empty one
    LONGEST_WAIT_MS = 300000           # limits how long the request's memory is held
    NANOSECONDS_PER_MS = 1000000
    ID_BYTES = 16
    ASKED_BYTES = 33                   # one partition of a request
    HEAD_BYTES = 19                    # an answer up to the number of topics
    COUNT_BYTES = 5                    # the most of the number of a topic's partitions
    PARTITION_BYTES = 40               # the most of a partition's answer up to its records
    FOLLOWER_TAG = 1                   # the field with the replica's id and epoch (KIP-903)
    FOLLOWER_BYTES = 13


# ---- reading -----------------------------------------------------------------------------------------------

# Return the size of the topic at p[at:size], its id or its name, or a negative number.
cdef int64_t size_of_topic(const uint8_t *p, int64_t size, int64_t at, bint has_ids) noexcept nogil:
    cdef uint32_t length
    cdef int used
    if has_ids:
        return ID_BYTES
    used = read_unsigned_varint(p + at, size - at, &length)
    return -1 if used < 0 or length < 2 else used + <int64_t> length - 1


# Read the topics at p[at:size] into request.asked; return the position behind them, or a negative number.
cdef int64_t parse_topics(const uint8_t *p, int64_t size, int64_t at, fetch_t *request) noexcept nogil:
    cdef uint32_t topics, count
    cdef int64_t topic, topic_size
    cdef int used
    cdef asked_t *asked
    used = read_unsigned_varint(p + at, size - at, &topics)
    if used < 0 or topics < 1:
        return -1
    at += used
    request.asked_count = 0
    for _ in range(1, topics):
        topic = at
        topic_size = size_of_topic(p, size, at, request.has_ids)
        if topic_size < 0 or size - at < topic_size + 1:
            return -1
        at += topic_size
        used = read_unsigned_varint(p + at, size - at, &count)
        if used < 0 or count < 1 or request.asked_count + <int64_t> count - 1 > MOST_PARTITIONS:
            return -1
        at += used
        # The partitions, and the count of the topic's unknown fields.
        if (count - 1) * <int64_t> ASKED_BYTES + 1 > size - at:
            return -1
        for _ in range(count - 1):
            asked = &request.asked[request.asked_count]
            request.asked_count += 1
            asked.at = p + at
            asked.topic = p + topic
            asked.topic_size = <int32_t> topic_size
            at += ASKED_BYTES
            if p[at - 1] != 0:
                return -1
        at += 1
        if p[at - 1] != 0:
            return -1
    return at


# Read the request at p[0:size], whose API key was checked. Returns 0, OF_CONSUMER, or the reason to decline it, negated
# and less 1.
cdef int parse(const uint8_t *p, int64_t size, fetch_t *request) noexcept nogil:
    cdef int64_t at
    cdef int16_t version
    cdef bint is_full
    cdef int malformed = -1 - FETCH_LAYOUT
    if size < 10:
        return malformed
    version = load16(p + 2)
    if not FIRST_VERSION <= version <= VERSION:
        return -1 - FETCH_VERSION
    request.correlation_id = load32(p + 4)
    at = 10 + (load16(p + 8) if load16(p + 8) > 0 else 0)  # the client id; -1 is null
    # The fields up to the topics, and an empty rest.
    if size - at < (29 if version < FIRST_WITH_TAGGED_REPLICA else 25) or load16(p + 8) < -1 or p[at] != 0:
        return malformed
    request.replica_id = CONSUMER
    if version < FIRST_WITH_TAGGED_REPLICA:
        if load32(p + at + 1) != CONSUMER:
            return -1 - FETCH_VERSION
        at += 4
    request.max_wait_ms = load32(p + at + 1)
    request.min_bytes = load32(p + at + 5)
    request.max_bytes = load32(p + at + 9)
    request.isolation = <int8_t> p[at + 13]
    request.session_id = load32(p + at + 14)
    request.session_epoch = load32(p + at + 18)
    request.has_ids = version >= FIRST_WITH_IDS
    at = parse_topics(p, size, at + 22, request)
    if at < 0 or size - at < 3:
        return malformed
    is_full = request.session_epoch <= 0 or request.session_id == 0
    if p[at] != NO_ELEMENT:
        return -1 - FETCH_FULL if is_full else -1 - FETCH_FORGETS
    if p[at + 1] != NO_ELEMENT:
        # A rack.
        return -1 - FETCH_CONSUMER
    at += 3
    if p[at - 1] == 0:
        # No tagged field, as a follower's would have.
        if request.session_id != 0 or request.session_epoch != -1 or request.asked_count == 0:
            return -1 - FETCH_CONSUMER
        return OF_CONSUMER if 0 <= request.isolation <= 1 else malformed
    if version != VERSION:
        return -1 - FETCH_VERSION
    if is_full:
        return -1 - FETCH_FULL
    if request.min_bytes != 1:
        return -1 - FETCH_MIN_BYTES
    if (p[at - 1] != 1 or size - at < 2 + FOLLOWER_BYTES or p[at] != FOLLOWER_TAG or p[at + 1] != FOLLOWER_BYTES
            or p[at + 1 + FOLLOWER_BYTES] != 0):
        return malformed
    request.replica_id = load32(p + at + 2)
    request.replica_epoch = load64(p + at + 6)
    return 0 if request.replica_id >= 0 else -1 - FETCH_CONSUMER


# Return the bytes that name a partition: its topic as in the request, an array's size of 1, the number.
cdef bytes key_of(const asked_t *asked):
    cdef bytes key = PyBytes_FromStringAndSize(NULL, asked.topic_size + 5)
    cdef char *p = PyBytes_AS_STRING(key)
    memcpy(p, asked.topic, asked.topic_size)
    p[asked.topic_size] = ONE
    memcpy(p + asked.topic_size + 1, asked.at, 4)
    return key


# ---- answering ---------------------------------------------------------------------------------------------

# Add the frame of an answer to `buffers`. `topics`: the partitions of each topic, by its id or name, as tuples of the
# number and what LaneFetch.read returns. `aborted`: the size of the array of aborted transactions, which is null or
# empty.
cdef int add_answer(list buffers, int32_t correlation_id, int32_t session_id, dict topics, uint8_t aborted) except -1:
    cdef object answers, data
    cdef Slice records
    cdef bytes head, topic
    cdef uint8_t *p
    cdef uint8_t text[4]
    cdef int64_t record_bytes, whole = 0
    cdef int used, at = 0             # bytes in `text`, which ends what was before
    cdef bint is_first
    buffers.append(None)
    for topic, answers in topics.items():
        is_first = True
        for number, data in answers:
            records = data[0]
            record_bytes = 0 if records is None else records.size
            head = PyBytes_FromStringAndSize(NULL, at + PyBytes_GET_SIZE(topic) + COUNT_BYTES + PARTITION_BYTES)
            p = <uint8_t *> PyBytes_AS_STRING(head)
            memcpy(p, text, at)
            p += at
            if is_first:
                memcpy(p, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
                p += PyBytes_GET_SIZE(topic)
                p += write_unsigned_varint(p, <uint32_t> len(answers) + 1)
                is_first = False
            store32(p, number)
            store16(p + 4, 0)                      # error
            store64(p + 6, data[1])
            store64(p + 14, data[2])
            store64(p + 22, data[3])
            p[30] = aborted
            store32(p + 31, -1)                    # no preferred replica
            p += 35
            p += write_unsigned_varint(p, <uint32_t> record_bytes + 1)
            head = head[:p - <uint8_t *> PyBytes_AS_STRING(head)]
            whole += len(head) + record_bytes
            buffers.append(head)
            if record_bytes:
                buffers.append(records)
            text[0] = 0                            # unknown fields of the partition
            at = 1
        text[at] = 0                               # ... of the topic
        at += 1
    text[at] = 0                                   # ... of the answer
    at += 1
    buffers.append(<bytes> text[:at])
    head = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + 5)
    p = <uint8_t *> PyBytes_AS_STRING(head)
    used = write_unsigned_varint(p + HEAD_BYTES, <uint32_t> len(topics) + 1)
    store32(p, <int32_t> (HEAD_BYTES - 4 + used + whole + at))
    store32(p + 4, correlation_id)
    p[8] = 0                                       # unknown fields of the header
    store32(p + 9, 0)                              # throttle time
    store16(p + 13, 0)                             # error
    store32(p + 15, session_id)
    buffers[0] = head[:HEAD_BYTES + used]
    return 0


# ---- the lane ----------------------------------------------------------------------------------------------


cdef class FetchLane:
    """Takes incremental fetches of followers, and those of consumers that are answered at once.

    `owner`: the FetchManager, see its section about the lane. `clock`, `quota`: of the leader. `timer`: the
    DelayedOperationPurgatory of fetches. `delayed`: completes what waits for a high watermark. `bytes_out`: counts the
    records in answers to followers; an answer has at most `most_bytes`. `linger_ms`: how long new offsets wait for
    records. `kind`: LaneFetch, or a subclass, with which a test builds a bug in.
    """

    def __init__(self, owner, *, clock, quota, timer, DelayedOperations delayed not None, bytes_out, int64_t most_bytes,
                 int64_t linger_ms, kind=LaneFetch):
        self.owner = owner
        self.kind = kind
        self.monotonic_ns = clock.monotonic_ns
        self.quota = quota
        self.timer = timer
        self.purgatory = timer.native
        self.delayed = delayed
        self.bytes_out = bytes_out
        self.most_bytes = most_bytes
        self.linger_ms = linger_ms

    def declined(self, int reason):
        """Return how many requests were declined for a reason, an index into FETCHES_DECLINED."""
        if not 0 <= reason < FETCH_DECLINES:
            raise IndexError(reason)
        return self.declines[reason]

    def take(self, frame, answered, Grants grants=None, bint is_limited=False, ClientAccount account=None,
             int64_t began_ns=0):
        """Take the Fetch request in `frame`, without its size field; return the LaneFetch, None if declined.

        `answered(buffers, error)` is called once, perhaps before this returns. `grants`: what the client has been
        allowed; None: everything. `is_limited`: a quota may make it wait if it is a consumer.
        `account`: charged for what a consumer gets, and for the time since `began_ns`; None: no quota applies.
        """
        cdef fetch_t request
        cdef Py_buffer view
        cdef int status
        cdef LaneFetch fetch
        cdef FetchSession session = None
        cdef list buffers = []
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            status = parse(<const uint8_t *> view.buf, view.len, &request)
            if status == 0 and grants is not None and not grants.is_node:
                status = -1 - FETCH_RIGHTS
            elif status == 0:
                session = self.owner.sessions.by_id.get(request.session_id)
                status = -1 - FETCH_SESSION
                if session is not None and session.epoch == request.session_epoch:
                    status = self.begin(&request, session)
            elif status == OF_CONSUMER and is_limited:
                status = -1 - FETCH_QUOTA
            elif status == OF_CONSUMER:
                status = self.read(&request, grants, account, began_ns, buffers)
        finally:
            PyBuffer_Release(&view)
        if status < 0:
            self.declines[-1 - status] += 1
            return None
        self.taken += 1
        if buffers:
            answered(buffers, None)
            if account is not None:
                account.note_time(began_ns)
            return ANSWERED
        fetch = self.kind.__new__(self.kind)
        fetch.lane = self
        fetch.correlation_id = request.correlation_id
        fetch.replica_id = request.replica_id
        fetch.replica_epoch = request.replica_epoch
        fetch.max_wait_ms = request.max_wait_ms
        fetch.max_bytes = request.max_bytes
        fetch.answered = answered
        fetch.session = session
        fetch.too_little = []
        try:
            fetch.start()
        except BaseException:
            # The caller answers with the error.
            fetch.answered = None
            raise
        return fetch

    cdef int read(self, const fetch_t *request, Grants grants, ClientAccount account, int64_t began_ns,
                  list buffers) except -32:
        cdef object owner = self.owner
        cdef int64_t most = min(<int64_t> request.max_bytes, self.most_bytes)
        cdef int64_t limit = most if account is None else account.most_fetched(most)
        cdef int64_t size = 0
        cdef dict topics = {}
        cdef set keys = set()
        cdef const asked_t *asked
        cdef object read
        cdef bytes key
        cdef Slice records
        cdef int32_t number
        for number in range(request.asked_count):
            asked = &request.asked[number]
            key = key_of(asked)
            if key in keys:
                return -1 - FETCH_PARTITION
            keys.add(key)
            if grants is not None and key[:asked.topic_size] not in grants.readable:
                return -1 - FETCH_RIGHTS
            read = owner.read_for_consumer(
                key, request.has_ids, load64(asked.at + 8), load32(asked.at + 4), load32(asked.at + 16),
                max(min(<int64_t> load32(asked.at + 28), limit - size), 0), request.isolation, size == 0)
            if read is None:
                return -1 - FETCH_PARTITION
            records = read[0]
            if records is not None:
                size += records.size
            topics.setdefault(key[:asked.topic_size], []).append((load32(asked.at), read))
        if size < min(<int64_t> request.min_bytes, limit) and request.max_wait_ms > 0:
            return -1 - FETCH_WAIT
        if account is not None and not account.take_fetched(size, began_ns):
            return -1 - FETCH_QUOTA
        owner.count_consumed(size)
        return add_answer(
            buffers, request.correlation_id, request.session_id, topics, NO_ELEMENT if request.isolation else 0)

    cdef int begin(self, const fetch_t *request, FetchSession session) except -32:
        cdef list named = []
        cdef CachedPartition cached
        cdef const uint8_t *p
        cdef int32_t number
        if self.quota.is_active:
            return -1 - FETCH_QUOTA
        if not session.is_privileged:
            return -1 - FETCH_CONSUMER
        if session.parked is not None or session.to_name_again:
            return -1 - FETCH_BUSY
        for number in range(request.asked_count):
            cached = session.partitions.get(key_of(&request.asked[number]))
            if cached is None:
                return -1 - FETCH_SESSION
            named.append(cached)
        for number in range(request.asked_count):
            p = request.asked[number].at
            cached = named[number]
            if load32(p + 4) != cached.current_leader_epoch:
                cached.begin_epoch(load32(p + 4))
            cached.fetch_offset = load64(p + 8)
            cached.last_fetched_epoch = load32(p + 16)
            cached.log_start_offset = load64(p + 20)
            cached.max_bytes = load32(p + 28)
            cached.is_unanswered = True
            session.ready[cached] = None
        session.epoch = 1 if request.session_epoch == INT32_MAX else request.session_epoch + 1
        session.last_used_ms = self.now_ms()
        return 0

    cdef int64_t now_ms(self) except -1:
        return <int64_t> self.monotonic_ns() // NANOSECONDS_PER_MS

    cdef int64_t watch(self, LaneFetch fetch, int64_t wait_ms) except -1:
        cdef int64_t deadline_ms = self.now_ms() + wait_ms
        cdef int64_t handle
        # No offset completes a fetch, so each waits under a number of its own; the Python path counts upwards.
        self.watches -= 1
        handle = self.purgatory.watch(self.watches, 1, deadline_ms, fetch)
        if deadline_ms < self.purgatory.armed_ms:
            self.timer.arm(deadline_ms)
        return handle


# ---- one request -------------------------------------------------------------------------------------------


cdef class LaneFetch:
    """A follower's Fetch request on its native way; for its session and the purgatory it is like a DelayedFetch."""

    def start(self):
        """Answer the request if there is something to answer, or let it wait."""
        cdef FetchLane lane = self.lane
        cdef int64_t now_ms = lane.now_ms()
        cdef int64_t wait_ms = min(max(self.max_wait_ms, 0), LONGEST_WAIT_MS)
        cdef FetchClock clock = self.session.clock
        if now_ms > clock.last_fetch_time_ms:
            clock.previous_fetch_time_ms = clock.last_fetch_time_ms
            clock.last_fetch_time_ms = now_ms
        self.deadline_ms = now_ms + wait_ms
        if self.look(wait_ms == 0) or self.park():
            return
        if self.has_marks and lane.linger_ms <= wait_ms:
            self.linger()
        else:
            self.handle = lane.watch(self, wait_ms)
        if lane.purgatory.closed:
            self.expire()
        if self.answered is None:
            # Another thread has answered it meanwhile.
            self.end_wait()

    @property
    def may_linger(self):
        """Whether it has new offsets to report, which should not wait long."""
        return self.has_marks

    @property
    def linger_handle(self):
        """The handle of the end of lingering; 0 if it does not linger."""
        return self.lingering

    def linger(self):
        """Answer soon even if there is too little: more news may come until then and share the answer."""
        cdef FetchLane lane = self.lane
        self.lingering = lane.watch(self, lane.linger_ms)
        self.deadline_ms = min(self.deadline_ms, lane.now_ms() + lane.linger_ms)

    def try_complete(self):
        """Read again after something moved. Return True if the fetch is answered now."""
        return self.session.unpark(self) and (self.look(False) or self.park())

    cdef int end_wait(self) except -1:
        if self.handle:
            self.lane.purgatory.cancel(self.handle)
        if self.lingering:
            self.lane.purgatory.cancel(self.lingering)
        return 0

    def expire(self):
        """Answer now, since the time is up. Return False if it is already answered."""
        if self.resumed is not None or not self.session.unpark(self):
            return False
        self.look(True)
        return True

    def abandon(self):
        """Answer with nothing: the session has ended, so no caller will try the fetch again."""
        self.deliver([], 0)

    def cancel(self):
        """Drop the answer: the client is gone. What was read stays ready. Return whether there was no answer yet."""
        if self.resumed is not None:
            return self.resumed.cancel()
        if self.answered is None:
            return False
        if self.session.unpark(self):
            self.session.put_back(self.too_little)
        return self.fail(CancelledError())

    def fail(self, error):
        """Close the request's connection because of `error`. Return whether the request had no answer yet."""
        answered, self.answered = self.answered, None
        if answered is not None:
            self.end_wait()
            answered(None, error)
        return answered is not None

    def respond(self, buffers):
        """Answer with what Python has made."""
        answered, self.answered = self.answered, None
        if answered is not None:
            answered(buffers, None)

    cdef int park(self) except -1:
        # Wait. Return whether something became ready meanwhile and has answered the fetch.
        cdef FetchSession session = self.session
        while not session.park(self):
            if session.parked is not None:
                # The fetcher has given up one of two fetches while this one was being read. Only one can wait.
                return self.look(True)
            if self.look(False):
                return True
        return False

    cdef int look(self, bint at_all) except -1:
        # Read the ready partitions. Return whether that has answered the fetch: with enough, or with anything if
        # `at_all`; or whether Python will.
        cdef FetchSession session = self.session
        cdef list ready = session.take_ready()
        cdef list result = []
        cdef list again = []
        cdef list terms = []
        cdef CachedPartition cached
        cdef object data
        cdef LeaderState partition
        cdef Term term
        cdef Slice records
        cdef int64_t size = 0
        cdef int64_t left = min(<int64_t> self.max_bytes, self.lane.most_bytes)
        cdef int64_t index = 0
        cdef bint is_first
        self.has_looked = False
        if self.too_little:
            ready = list(dict.fromkeys(self.too_little + ready))
            self.too_little = []
        if not ready and session.partitions and not at_all:
            # Nothing is new, as in every fetch of a follower that has caught up.
            self.has_marks = False
            return False
        if len(ready) > MOST_PARTITIONS or not session.partitions:
            session.put_back(ready)
            return self.hand_over(at_all)
        for cached in ready:
            partition = cached.partition
            terms.append(None if partition is None else partition.term)
            if not self.is_plain(cached):
                session.put_back(ready)
                return self.hand_over(at_all)
        for cached, term in zip(ready, terms, strict=True):
            # The first batch is returned even if it is larger than the fetcher's limit.
            is_first = size == 0
            if left <= 0 and not is_first:
                again += ready[index:]
                break
            index += 1
            data = self.read(cached, term, max(min(<int64_t> cached.max_bytes, left), 0), is_first)
            if data is None:
                session.put_back(ready)
                return self.hand_over(at_all)
            records = data[0]
            if records is not None:
                size += records.size
                left -= records.size
                result.append((cached, data))
            elif not is_first and cached.fetch_offset < data[4]:
                # There was no room for its next batch.
                again.append(cached)
            if records is None and (data[1] != cached.high_watermark_sent or data[3] != cached.log_start_sent):
                result.append((cached, data))
        if size == 0 and not at_all:
            self.too_little = [each[0] for each in result] + again
            self.has_marks = len(result) > 0
            return False
        if again:
            session.put_back(again)
        self.deliver(result, size)
        return True

    cdef int hand_over(self, bint at_all) except -1:
        # Let Python read the session's ready partitions and answer: now if `at_all`, else when the time is up.
        cdef object owner = self.lane.owner
        self.lane.declines[FETCH_PARTITION] += 1
        self.end_wait()
        self.resumed = owner.resume(self, 0 if at_all else max(self.deadline_ms - self.lane.now_ms(), 0))
        return True

    cpdef bint is_plain(self, CachedPartition cached) except -1:
        """Return whether the partition can be read natively, and only the follower's offsets and times change."""
        cdef LeaderState partition = cached.partition
        cdef int64_t fetch_offset = cached.fetch_offset
        cdef Term term
        cdef Replica replica
        cdef LogState state
        cdef object log, entries
        if partition is None:
            return False
        term = partition.term
        log = term.log
        if not term.leads or log is None or cached.current_leader_epoch != term.leader_epoch:
            return False
        if (LOG_CLOSED.of(log) or LOG_STOPPED_AT.of(log) is not None
                or not DAMAGES_EMPTY.of(LOG_DAMAGES.of(log))):
            return False
        replica = partition.replicas_by_id.get(self.replica_id)
        if replica is None or replica.fetch_clock is not self.session.clock:
            return False
        state = LOG_STATE.of(log)
        entries = EPOCH_ENTRIES.of(LOG_EPOCHS.of(log))
        if (not state.now.log_start_offset <= fetch_offset <= kr_load_acquire(&state.now.log_end_offset)
                or not entries or entries[len(entries) - 1].epoch != cached.last_fetched_epoch):
            return False
        # Records that are committed, or that the follower could not append, are checked before they are sent.
        if fetch_offset < kr_load_acquire(&state.now.log_end_offset) and (
                (<LogSegment> LOG_ACTIVE.of(log)).base_offset > fetch_offset or fetch_offset < state.now.high_watermark
                or replica.asks_again(fetch_offset)):
            return False
        return not cached.is_unanswered or (
            not partition.low_watermark_waiters
            and self.replica_id in STATE_ISR.of(partition.state)
            and replica.broker_epoch <= self.replica_epoch
            and self.is_registered(partition))

    cdef bint is_registered(self, LeaderState partition) except -1:
        # Return whether the follower is registered in the epoch that its fetch names. The answer is the same for all
        # partitions of one look.
        cdef object epoch
        if not self.has_looked:
            epoch = partition.alive_broker_epoch(self.replica_id)
            self.is_in_epoch = epoch is not None and epoch == self.replica_epoch
            self.has_looked = True
        return self.is_in_epoch

    cdef object read(self, CachedPartition cached, Term term, int64_t max_bytes, bint is_first):
        # Return (records, high watermark, last stable offset, log start, log end) of what was a plain case in this
        # term, after taking note of what the fetch says about the follower; None if Python has to read it.
        cdef LeaderState partition = cached.partition
        cdef object log
        cdef LogState state
        cdef int64_t fetch_offset = cached.fetch_offset
        cdef int64_t end, mark, stable, start
        cdef LogSegment segment
        cdef Slice records = None
        # Reading the other partitions may have let other code run.
        if term is None or partition is None or partition.term is not term:
            return None
        log = term.log
        state = LOG_STATE.of(log)
        end = kr_load_acquire(&state.now.log_end_offset)
        mark, stable, start = state.now.high_watermark, state.now.last_stable_offset, state.now.log_start_offset
        if fetch_offset < end:
            segment = LOG_ACTIVE.of(log)
            if segment.base_offset > fetch_offset:
                return None
            try:
                records = segment.read_below(fetch_offset, end, max_bytes, is_first)
            except (<LogLock> LOG_LOCK.of(log)).own_error:
                return None
            if records is None and is_first:
                return None
        if cached.is_unanswered and self.note(cached, partition, term, end):
            if records is not None:
                # This answer is sent without waiting. The next one has the new high watermark.
                cached.notify()
            else:
                mark, stable = state.now.high_watermark, state.now.last_stable_offset
        return records, mark, stable, start, end

    cdef bint note(self, CachedPartition cached, LeaderState partition, Term term, int64_t end) except -1:
        # Record what the fetch says about the follower. Return whether that has moved the high watermark.
        cdef bint has_moved = False
        cdef int64_t former_end
        cdef Replica replica
        cached.is_unanswered = False
        partition.leader_isr_update_lock.acquire()
        try:
            replica = partition.replicas_by_id.get(self.replica_id)
            if partition.term is not term or replica is None or replica.broker_epoch > self.replica_epoch:
                return False
            former_end = replica.log_end_offset
            replica.update_fetch_state(
                cached.fetch_offset, cached.log_start_offset, self.lane.now_ms(), end,
                self.replica_epoch)
            if former_end != replica.log_end_offset:
                has_moved = partition.increment_high_watermark(term.log, None)
        finally:
            partition.leader_isr_update_lock.release()
        if has_moved:
            cached.is_being_noted = True
            try:
                self.lane.delayed.high_watermark_moved(partition)
            finally:
                # Cleared before the offsets are read again, so that no change is missed.
                cached.is_being_noted = False
        return has_moved

    cdef int deliver(self, list result, int64_t size) except -1:
        # Answer with the partitions of `result`; their records have `size` bytes.
        cdef list buffers = []
        cdef dict topics = {}
        cdef CachedPartition cached
        cdef object data
        answered, self.answered = self.answered, None
        self.end_wait()
        if answered is None:
            return 0
        for cached, data in result:
            cached.high_watermark_sent = data[1]
            cached.log_start_sent = data[3]
            topics.setdefault(cached.topic_id.raw, []).append((cached.topic_partition.partition, data))
        add_answer(buffers, self.correlation_id, self.session.id, topics, 0)
        self.lane.bytes_out.count += size
        answered(buffers, None)
        return 0


# What `take` returns for a request that is answered: nothing is left to cancel.
cdef LaneFetch ANSWERED = LaneFetch.__new__(LaneFetch)
