"""A client's connection; purpose, ownership and thread rule: server_connection.pxd."""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from kreplica._core.big_endian cimport load16
from kreplica._core.client_account cimport ClientAccount
from kreplica._core.frame_reader cimport FrameReader, ReceiveBuffer
from kreplica._core.produce_lane cimport LaneRequest
from kreplica._core.task_queue cimport TaskQueue

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef enum:
    PRODUCE = 0
    FETCH = 1
    SASL_HANDSHAKE = 17
    SASL_AUTHENTICATE = 36
    HEADER_BYTES = 10                  # of a request, up to its client id
    # Larger answers are sent at once, so that a client that does not read them is not read from, either.
    ANSWER_BYTES_A_TURN = 65536
    CONNECTIONS_A_TURN = 64            # those whose answers are sent before other tasks get their turn

cdef enum:
    THROTTLE_BEGUN
    RESPONSE_SENT
    THROTTLE_ENDED


cdef class LaneGate:
    """The native lanes of one listener, which take requests that need no decision.

    `lanes`: has the attributes `produce_lane` and `fetch_lane`, which may be None and may change, and `rules`: those in
    force for clients that have a ServerConnection, None without any. `produces`, `fetches`: whether the listener takes
    such requests.
    """

    def __init__(self, lanes, *, bint produces, bint fetches):
        self.lanes = lanes
        self.produces = produces
        self.fetches = fetches
        self.limits = None

    def limit(self, limits):
        """Take only requests of clients whose accounts under these quotas are known; None: of all clients."""
        self.limits = limits

    cpdef object take(self, object frame, object answered, object connection):
        """Return the request in `frame` if a native lane has taken it, else None.

        `answered(buffers, error)` is called once if it has, perhaps before this returns.
        """
        cdef Py_buffer view
        cdef object rules = self.lanes.rules
        cdef ServerConnection client = connection if isinstance(connection, ServerConnection) else None
        cdef Grants grants = None
        cdef ClientAccount account = None
        cdef bint is_known = True
        cdef Py_ssize_t size
        cdef int key
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        size = view.len
        key = -1 if size < 2 else load16(<const uint8_t *> view.buf)
        if self.limits is not None and client is not None:
            is_known = client.has_account(self.limits, <const uint8_t *> view.buf, size)
            if is_known:
                account = client.account
        PyBuffer_Release(&view)
        if rules is not None and client is not None:
            grants = client.grants
            if grants is None or grants.rules is not rules:
                return None
        if key == PRODUCE and self.produces and self.lanes.produce_lane is not None:
            return self.produce(frame, size, answered, connection, grants, is_known, account)
        if key == FETCH and self.fetches and self.lanes.fetch_lane is not None:
            return self.fetch(frame, answered, grants, is_known, account)
        return None

    cdef object produce(self, object frame, int64_t size, object answered, object connection, Grants grants,
                        bint is_known, ClientAccount account):
        cdef object lane = self.lanes.produce_lane
        cdef int64_t began_ns
        if is_known and account is None:
            return lane.take(frame, answered, connection, grants)
        began_ns = account.begin() if is_known else 0
        if not began_ns or not account.take_produced(size, began_ns):
            lane.decline_for_quota()
            return None
        request = lane.take(frame, answered, connection, grants)
        if request is None:
            account.give_back_produced(size, began_ns)
            return None
        account.note_time(began_ns)
        if isinstance(request, LaneRequest):
            (<LaneRequest> request).account = account
        return request

    cdef object fetch(self, object frame, object answered, Grants grants, bint is_known, ClientAccount account):
        # Followers are never limited, so the lane is asked in any case.
        cdef object lane = self.lanes.fetch_lane
        cdef int64_t began_ns
        if is_known and account is None:
            return lane.take(frame, answered, grants)
        began_ns = account.begin() if is_known else 0
        return lane.take(frame, answered, grants, not began_ns, account, began_ns)


cdef class RequestMemory:
    """Counts the bytes of requests in progress; a subclass overrides `go_on`."""

    def __init__(self, int64_t max_bytes):
        self.max_bytes = max_bytes

    @property
    def is_full(self):
        """Whether the requests in progress have reached the limit."""
        return self.under_way_bytes >= self.max_bytes

    def take(self, int64_t size):
        """Count a request in progress; the one that exceeds the limit is the last one read."""
        self.under_way_bytes += size

    def give_back(self, int64_t size):
        """Release the memory of an answered request."""
        self.release(size)

    cdef int release(self, int64_t size) except -1:
        self.under_way_bytes -= size
        if self.has_waiting and self.under_way_bytes < self.max_bytes:
            self.go_on()
        return 0


cdef class Processor:
    """What the connections of one listener share.

    `receive(frame, peer, answered, connection)`: takes each frame that the `gate` declines; the work that it
    returns is cancelled if the connection closes before the answer. `tasks`: the event loop's. The limits are those
    of SocketServerConfig.
    """

    def __init__(self, receive, TaskQueue tasks not None, LaneGate gate, RequestMemory memory not None,
                 ReceiveBuffer received not None, *, int64_t min_frame_bytes, int64_t max_frame_bytes,
                 int64_t max_in_flight_requests, int64_t max_in_flight_bytes):
        self.receive = receive
        self.tasks = tasks
        self.gate = gate
        self.memory = memory
        self.received = received
        self.min_frame_bytes = min_frame_bytes
        self.max_frame_bytes = max_frame_bytes
        self.max_requests = max_in_flight_requests
        self.max_bytes = max_in_flight_bytes
        self.due = []

    def send_due(self):
        """Send what the connections have to send in this turn, each in one write."""
        cdef Py_ssize_t sent = 0
        cdef ServerConnection connection
        try:
            # Sending may let a connection go on, which adds it again.
            for sent in range(1, min(len(self.due), CONNECTIONS_A_TURN) + 1):
                connection = self.due[sent - 1]
                connection.is_due = False
                connection.send()
        finally:
            del self.due[:sent]
            if self.due:
                self.tasks.post(self.send_due)


@cython.final
@cython.freelist(256)
@cython.trashcan(True)
cdef class PendingAnswer:
    """A request's answer, in the order of its connection's requests. Call it once."""

    def __call__(self, list buffers, error):
        """Take the answer's buffers (None: no answer), and the error that then closes the connection, or None."""
        if self.is_done:
            return
        self.buffers = buffers
        self.error = error
        self.is_done = True
        self.under_way = None
        if PyThread_get_thread_ident() == self.connection.processor.tasks.thread:
            self.connection.finish(self)
        else:
            self.connection.processor.tasks.post(self.finish)

    def finish(self):
        """Let the connection send the answer."""
        self.connection.finish(self)


cdef class ServerConnection:
    """A client's connection, and the native part of a BufferedProtocol of asyncio.

    A subclass decides what to do at the beginning and the end. It overrides `begin(frame)`, called with the first
    frame, `end(error)`, called with the error for which the connection is closed, `wait_for_memory()`,
    `note_received(size)`, called when the number of bytes of an incomplete large frame has changed, and `mute(ms)`,
    which calls `throttle_ended` once that time and those of all other calls are over.
    """

    def __init__(self, Processor processor not None):
        self.processor = processor
        self.reader = FrameReader(
            processor.received, min_bytes=processor.min_frame_bytes, max_bytes=processor.max_frame_bytes)
        self.peer = None
        self.is_authenticated = True
        self.touch()

    @property
    def is_handled(self):
        """Whether its next answer is being worked on."""
        return self.first is not None and not self.first.is_done

    @property
    def is_busy(self):
        """Whether an answer is pending or not completely sent."""
        return self.first is not None or bool(self.transport.get_write_buffer_size())

    # ---- the login -------------------------------------------------------------------------------------------

    def require_login(self, authenticator, int64_t max_frame_bytes):
        """Let `authenticator.take(frame, answered)` answer requests, of at most `max_frame_bytes`, until `logged_in`.

        After that it gets only those of another login.
        """
        self.authenticator = authenticator
        self.is_authenticated = False
        # A token of a mechanism may be empty.
        self.reader.min_bytes = 0
        self.reader.max_bytes = max_frame_bytes

    def logged_in(self):
        """Serve the client's requests: its `peer` is known."""
        self.is_authenticated = True
        self.reader.min_bytes = self.processor.min_frame_bytes
        self.reader.max_bytes = self.processor.max_frame_bytes

    def session_ended(self):
        """Serve no request before another login."""
        self.is_authenticated = False

    # ---- the socket ------------------------------------------------------------------------------------------

    def get_buffer(self, _size_hint):
        return self.reader.get_buffer()

    def buffer_updated(self, int64_t nbytes):
        cdef int64_t receiving
        self.processor.tasks.callbacks += 1
        self.reader.buffer_updated(nbytes)
        self.serve()
        receiving = self.reader.receiving()
        if receiving != self.receiving_bytes:
            self.receiving_bytes = receiving
            self.note_received(receiving)
            if self.has_enough():
                self.hold()

    def pause_writing(self):
        self.is_reader_slow = True
        self.hold()

    def resume_writing(self):
        self.is_reader_slow = False
        self.touch()
        # Not directly: a write that fails inside this callback would make asyncio close a socket twice.
        self.processor.tasks.post(self.go_on)

    def go_on(self):
        """Resume reading, unless a limit still prevents it."""
        if not self.is_paused or self.is_ending or self.is_refused or self.has_enough():
            return
        self.is_paused = False
        # First serve what was received before the pause.
        self.serve()
        if not self.is_paused and not self.is_ending:
            self.transport.resume_reading()

    def give_up(self):
        """Cancel the work on all answers: the connection is closed. Nothing is served after this."""
        cdef list under_way = []
        if self.authenticator is not None:
            # The authenticator refers to the connection. Such a cycle would stay in memory until the garbage collector
            # runs, and strangers can make many.
            self.is_authenticated = False
            self.authenticator = None
        cdef PendingAnswer answer
        while self.first is not None:
            answer = self.pop()
            if answer.under_way is not None and not answer.is_done:
                under_way.append(answer.under_way)
        for each in under_way:
            each.cancel()

    # ---- requests --------------------------------------------------------------------------------------------

    cdef void touch(self) noexcept:
        self.processor.activity += 1
        self.active = self.processor.activity

    cdef int serve(self) except -1:
        cdef object frame
        cdef PendingAnswer refused
        while not self.is_ending and not self.is_refused:
            if self.has_enough():
                self.reader.keep()
                self.hold()
                return 0
            try:
                frame = self.reader.next()
            except Exception as error:
                # Earlier requests are answered first.
                self.is_refused = True
                refused = PendingAnswer.__new__(PendingAnswer)
                refused.error = error
                refused.is_done = True
                self.append(refused)
                self.hold()
                self.flush()
                return 0
            if frame is None:
                return 0
            self.pass_on(frame)
        return 0

    cdef int pass_on(self, object frame) except -1:
        cdef Processor processor = self.processor
        cdef PendingAnswer answer = PendingAnswer.__new__(PendingAnswer)
        cdef object under_way = None
        if not self.has_asked:
            self.has_asked = True
            self.begin(frame)
        self.touch()
        answer.size = len(frame)
        self.append(answer)
        processor.memory.under_way_bytes += answer.size
        try:
            if not self.is_authenticated or (self.authenticator is not None and self.is_for_authenticator(frame)):
                self.authenticator.take(memoryview(frame), answer)
                return 0
            if processor.gate is not None:
                under_way = processor.gate.take(frame, answer, self)
            if under_way is None:
                under_way = processor.receive(memoryview(frame), self.peer, answer, self)
        except Exception as error:
            # A handler's failure also ends the client's request.
            answer(None, error)
        if not answer.is_done:
            answer.under_way = under_way
        return 0

    def set_account(self, limits, bytes client_id not None, ClientAccount account):
        """Let lanes charge this account for this client's requests as long as `limits` are in force.

        None: they leave the client free.
        """
        self.account_under = limits
        self.account_client_id = client_id
        self.account = account

    cdef bint has_account(self, object limits, const uint8_t *frame, Py_ssize_t size) noexcept:
        cdef Py_ssize_t length
        if self.account_under is not limits or size < HEADER_BYTES:
            return False
        length = load16(frame + HEADER_BYTES - 2)
        if length < 0:
            length = 0
        return (length == PyBytes_GET_SIZE(self.account_client_id) and length <= size - HEADER_BYTES
                and memcmp(frame + HEADER_BYTES, PyBytes_AS_STRING(self.account_client_id), length) == 0)

    cdef bint is_for_authenticator(self, object frame) except -1:
        cdef Py_buffer view
        cdef int key = -1
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        if view.len >= 2:
            key = load16(<const uint8_t *> view.buf)
        PyBuffer_Release(&view)
        return key == SASL_HANDSHAKE or key == SASL_AUTHENTICATE

    cdef int append(self, PendingAnswer answer) except -1:
        answer.connection = self
        if self.first is None:
            self.first = answer
        else:
            self.last.next = answer
        self.last = answer
        self.requests += 1
        self.request_bytes += answer.size
        return 0

    cdef PendingAnswer pop(self):
        cdef PendingAnswer answer = self.first
        self.first = answer.next
        answer.next = None
        if self.first is None:
            self.last = None
        self.requests -= 1
        self.request_bytes -= answer.size
        return answer

    cdef bint has_enough(self) except -1:
        cdef RequestMemory memory = self.processor.memory
        if memory.under_way_bytes >= memory.max_bytes and (self.first is not None or self.receiving_bytes):
            self.wait_for_memory()
            return True
        if self.requests and not self.is_authenticated:
            # A client that has not logged in has one request in progress at most.
            return True
        return (self.muting != NOT_MUTED or self.is_reader_slow or self.requests >= self.processor.max_requests
                or self.request_bytes >= self.processor.max_bytes)

    cdef int hold(self) except -1:
        if not self.is_paused and not self.is_closed:
            self.is_paused = True
            self.transport.pause_reading()
        return 0

    # ---- throttling ------------------------------------------------------------------------------------------

    @property
    def is_muted(self):
        """Whether no request is read because the client is over a quota."""
        return self.muting != NOT_MUTED

    def throttle_ended(self):
        """Note that the throttle time is over; go on if the answers that announced it are sent."""
        self.note_muting(THROTTLE_ENDED)
        self.go_on()

    cdef int begin_throttle(self, PendingAnswer answer) except -1:
        if self.is_closed or self.is_ending:
            answer.throttle_ms = 0
            return 0
        self.throttled_answers += 1
        self.note_muting(THROTTLE_BEGUN)
        self.hold()
        self.mute(answer.throttle_ms)
        return 0

    cdef int note_muting(self, int event) except -1:
        # The states are those of KIP-219. A request in progress does not mute a connection here.
        cdef int before = self.muting
        if event == THROTTLE_BEGUN:
            self.muting = MUTED_AND_THROTTLED_AND_RESPONSE_PENDING
        elif event == THROTTLE_ENDED and before == MUTED_AND_THROTTLED:
            self.muting = NOT_MUTED
        elif event == THROTTLE_ENDED and before == MUTED_AND_THROTTLED_AND_RESPONSE_PENDING:
            self.muting = MUTED_AND_RESPONSE_PENDING
        elif event == RESPONSE_SENT and before == MUTED_AND_THROTTLED_AND_RESPONSE_PENDING:
            self.muting = MUTED_AND_THROTTLED
        elif event == RESPONSE_SENT and before == MUTED_AND_RESPONSE_PENDING:
            self.muting = NOT_MUTED
        else:
            raise AssertionError(f"event {event} of throttling in the state {before}")
        return 0

    # ---- answers ---------------------------------------------------------------------------------------------

    cdef int finish(self, PendingAnswer answer) except -1:
        # One write at the end of the turn takes all answers of the turn, unless they are large.
        cdef Processor processor = self.processor
        if not self.is_due:
            self.is_due = True
            if not processor.due:
                processor.tasks.post(processor.send_due)
            processor.due.append(self)
        if answer.throttle_ms:
            self.begin_throttle(answer)
        self.answered_bytes += answer.size
        if answer.buffers is not None:
            for buffer in answer.buffers:
                self.answer_bytes += len(buffer)
            if self.answer_bytes >= ANSWER_BYTES_A_TURN:
                self.send()
        return 0

    cdef int send(self) except -1:
        cdef int64_t size = self.answered_bytes
        self.answered_bytes = self.answer_bytes = 0
        self.flush()
        # Also for a closed connection: its requests' bytes were in use until now.
        self.processor.memory.release(size)
        return 0

    cdef int flush(self) except -1:
        cdef list ready = None
        cdef PendingAnswer answer
        while self.first is not None and self.first.is_done and not self.is_ending:
            answer = self.pop()
            if answer.throttle_ms:
                self.throttled_answers -= 1
                if not self.throttled_answers:
                    self.note_muting(RESPONSE_SENT)
            if answer.buffers is not None:
                ready = answer.buffers if ready is None else ready + answer.buffers
            if answer.error is not None:
                self.is_ending = True
                self.end(answer.error)
        if ready and not self.is_closed:
            if len(ready) == 1 and type(ready[0]) is bytes:
                self.transport.write(ready[0])
            else:
                self.transport.writelines(ready)
        if self.is_ending:
            if not self.is_closed:
                self.is_closed = True
                self.transport.close()
        elif self.is_paused:
            self.go_on()
        return 0
