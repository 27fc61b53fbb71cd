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
from functools import partial

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


cdef class ClientPeers:
    """The other nodes, by their ids, and the requests to them.

    `time()`: the event loop's time in s. `new_future()`: makes the future of a response. `encoded_kind`: the class of
    EncodedRequests. `produce_kind`: the class of requests that have no answer if their field `acks` is 0. A subclass
    overrides `_new_peer(node_id)`, which returns a ClientPeer.
    """

    def __init__(self, TaskQueue tasks not None, time not None, *, new_future not None, encoded_kind not None,
                 produce_kind not None):
        self.tasks = tasks
        self.time = time
        self.new_future = new_future
        self.encoded_kind = encoded_kind
        self.produce_kind = produce_kind
        self._peers = {}

    def send(self, node_id, request not None, *, int64_t timeout_ms):
        """Send `request` to the node and return the future of its response; see the port."""
        cdef FutureState future = self.new_future()
        cdef object kind = type(request)
        cdef ClientCall call = ClientCall.__new__(ClientCall)
        call.request, call.future = request, future
        if isinstance(request, self.encoded_kind):
            call.kind, call.encoded, call.is_answered = request.kind, request, True
        else:
            call.kind, call.is_answered = kind, kind is not self.produce_kind or request.acks != 0
        if self.tasks.is_current():
            self.put(node_id, call, timeout_ms)
        else:
            self.tasks.post(partial(self._put_later, node_id, call, timeout_ms))
        return future

    def _put_later(self, node_id, ClientCall call not None, int64_t timeout_ms):
        self.put(node_id, call, timeout_ms)

    cdef int put(self, object node_id, ClientCall call, int64_t timeout_ms) except -1:
        cdef ClientPeer peer
        if self._is_closed:
            return 0
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = self._new_peer(node_id)
        call.deadline = <double> self.time() + <double> (timeout_ms + 1) / 1000
        peer.connection_to(call.kind).send(call)
        return 0


cdef class ClientPeer:
    """One other node, and the connections to it: one for each lane, and several for fetches, which wait for records.

    `lane_names`: the lane by the kind of a request; None is the key of all others. A subclass overrides
    `_new_connection()`, and `_busy_fetch()`, which returns the connection for a fetch if none is idle.
    """

    def __init__(self, dict lane_names not None, fetch_lane not None):
        self.lane_names = lane_names
        self.fetch_lane = fetch_lane
        self.lanes = {}
        self.fetches = []

    def connection_for(self, kind):
        """Return the connection for a request of this kind; it need not be connected."""
        return self.connection_to(kind)

    cdef ClientConnection connection_to(self, object kind):
        cdef ClientConnection connection
        cdef object lane = self.lane_names.get(kind)
        if lane is None:
            lane = self.lane_names[None]
        if lane is self.fetch_lane:
            for connection in self.fetches:
                if not connection.in_flight and not connection.waiting:
                    return connection
            return self._busy_fetch()
        connection = self.lanes.get(lane)
        if connection is None:
            connection = self.lanes[lane] = self._new_connection()
        return connection
