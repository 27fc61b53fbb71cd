"""The connection to another node; purpose, ownership and thread rule: client_connection.pxd."""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from kreplica._core.big_endian cimport load32
from kreplica._core.fetch_frames cimport FetchFrames
from kreplica._core.frame_reader cimport FrameReader, ReceiveBuffer
from kreplica._core.future_state cimport FutureState
from kreplica._core.status cimport BAD_MESSAGE, check
from kreplica._core.task_queue cimport TaskQueue

from collections import deque

cdef enum:
    NUMBER_BYTES = 4


cdef class ClientCall:
    """A request and the future of its response.

    `encoded`: the same request if it is an EncodedRequest, else None. `is_answered`: whether a response comes.
    """

    def __init__(self, request, kind, encoded, FutureState future not None, *, bint is_answered=True):
        self.request = request
        self.kind = kind
        self.encoded = encoded
        self.future = future
        self.is_answered = is_answered

    cpdef object end(self, object error, object response=None):
        """Resolve the future with the error, or with the response if that is None; not if it is resolved."""
        if self.future.done():
            return
        if error is not None:
            self.future.to_error(error)
        else:
            self.future.to_result(response)


cdef class ClientConnection:
    """The calls of one connection. `time()`: the event loop's time in s.

    A subclass overrides `arm(at)`, which sets the alarm and `alarm_at`; `renew()`, which gives up a socket at
    `renews_at`; `wait_for_socket(call)`, for a call without a connection; `buffers_of(request, number)`, which returns
    the frame of a message; `response_in(call, frame)`, which returns the message in a frame; and `lost(socket, why)`.
    """

    def __init__(self, bytes client_id not None, time not None):
        self.client_id = client_id
        self.time = time
        self.waiting = deque()
        self.in_flight = deque()

    @property
    def load(self):
        """The number of unanswered requests."""
        return len(self.waiting) + len(self.in_flight)

    @property
    def is_connected(self):
        """Whether the connection has a socket."""
        return self.socket is not None

    def send(self, ClientCall call not None):
        """Write the request, or let it wait for a connection."""
        if not self.alarm_at or call.deadline < self.alarm_at:
            self.arm(call.deadline)
        if self.renews_at and self.socket is not None and not self.in_flight and self.time() >= self.renews_at:
            self.renew()
        if self.socket is not None:
            self.write(call)
        else:
            self.wait_for_socket(call)

    cpdef object write(self, ClientCall call):
        """Write the request; there must be a socket."""
        cdef object frame
        cdef object buffers = None
        self.numbers = call.number = 0 if self.numbers == INT32_MAX else self.numbers + 1
        try:
            if call.encoded is not None:
                frame = call.encoded.frame(call.number, self.client_id)
            else:
                buffers = self.buffers_of(call.request, call.number)
        except Exception as error:
            # Invalid fields concern only this caller, not the other requests on the connection.
            call.end(error)
            return
        self.used_at = self.time()
        # Before the write, whose failure may close the connection and end all calls.
        if call.is_answered:
            self.in_flight.append(call)
        if buffers is None:
            self.socket.transport.write(frame)
        else:
            self.socket.transport.writelines(buffers)
        if not call.is_answered:
            call.end(None)

    cdef int received(self, object frame) except -1:
        # Resolve the first call in flight. Raises InvalidRequest for a frame that is not its answer.
        cdef Py_buffer view
        cdef int32_t number = -1
        cdef ClientCall call
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        if view.len >= NUMBER_BYTES:
            number = load32(<const uint8_t *> view.buf)
        PyBuffer_Release(&view)
        call = self.in_flight[0] if self.in_flight else None
        if call is None or call.number != number:
            check(BAD_MESSAGE, f"a response to request {number}, which is not the next one")
        if isinstance(call.encoded, FetchFrames):
            response = (<FetchFrames> call.encoded).read(frame)
        elif call.encoded is not None:
            response = call.encoded.read(memoryview(frame))
        else:
            response = self.response_in(call, memoryview(frame))
        self.in_flight.popleft()
        self.used_at = self.time()
        self.has_answered = True
        call.end(None, response)
        return 0


cdef class ClientSocket:
    """A socket of `connection`, and the native part of a BufferedProtocol of asyncio.

    A subclass overrides `lost(why)`, called once when the peer or a bad frame ends it. `bad_answer`: the class of
    errors by which a frame ends it.
    """

    bad_answer = Exception

    def __init__(self, ClientConnection connection not None, TaskQueue tasks not None,
                 ReceiveBuffer received not None, *, int64_t min_bytes, int64_t max_bytes):
        self.connection = connection
        self.tasks = tasks
        self.reader = FrameReader(received, min_bytes=min_bytes, max_bytes=max_bytes)

    def take_answers_up_to(self, int64_t max_bytes):
        """Let an answer of more bytes end the connection, from the next one on."""
        self.reader.max_bytes = max_bytes

    def get_buffer(self, _size_hint):
        return self.reader.get_buffer()

    def buffer_updated(self, int64_t nbytes):
        cdef bint is_turn
        self.reader.buffer_updated(nbytes)
        is_turn = self.tasks.begin_turn()
        try:
            self.take_frames()
        except self.bad_answer as error:
            # The position of the next response is unknown.
            self.transport.abort()
            self.lost(str(error))
        finally:
            if is_turn:
                self.tasks.end_turn()

    cdef int take_frames(self) except -1:
        cdef object frame
        # A response may make its caller close the connection; what follows is then an answer to nothing.
        while not self.is_closed:
            frame = self.reader.next()
            if frame is None:
                return 0
            if self.awaited is None:
                self.connection.received(frame)
            elif not self.awaited.done():
                self.awaited.set_result(memoryview(bytes(frame)))
        return 0
