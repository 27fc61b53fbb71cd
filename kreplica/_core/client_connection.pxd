# ClientConnection: this node's requests to another one, from the calls to the bytes and back.
#
#     send(ClientCall) --connected--> write --frame--> socket        in_flight, in the order of the answers
#           \--not connected--> wait_for_socket (Python)
#     socket --> ClientSocket, FrameReader --frame--> received --> the call's future
#
# ClientPeers has the connections to all other nodes, and finds the one for a request. A ClientSocket is one socket of a
# connection, and the native part of a BufferedProtocol of asyncio. Everything that opens, closes and times out
# connections is Python's; see kreplica/runtime/tcp_transport.py.
#
# Ownership: a connection owns its calls until they end. A frame is untrusted: one that is no answer to the first call
# in flight, or that cannot be read, closes the socket. Thread rule: the thread of the event loop.

from libc.stdint cimport int32_t, int64_t

from kreplica._core.frame_reader cimport FrameReader
from kreplica._core.future_state cimport FutureState
from kreplica._core.task_queue cimport TaskQueue


cdef class ClientCall:
    cdef readonly object request
    cdef readonly object kind         # the class of the request's message
    cdef readonly object encoded      # the request if it knows its own bytes, else None
    cdef readonly FutureState future
    cdef readonly int32_t number
    cdef public double deadline       # in the loop's time
    cdef bint is_answered             # whether an answer comes

    cpdef object end(self, object error, object response=*)


cdef class ClientConnection:
    cdef readonly object waiting      # calls that wait for the connection
    cdef readonly object in_flight    # calls that wait for their answer
    cdef public ClientSocket socket   # None without a connection
    cdef bytes client_id
    cdef object time                  # of the event loop
    cdef int32_t numbers
    cdef public bint has_answered     # the peer has answered on the current socket
    cdef public double used_at        # in the loop's time, like the next field
    cdef public double renews_at      # when an idle socket is given up for another login; 0: never
    cdef public double alarm_at       # when the first call is late; 0 while no alarm is set

    cpdef object write(self, ClientCall call)
    cdef int received(self, object frame) except -1


cdef class ClientSocket:
    cdef readonly ClientConnection connection
    cdef FrameReader reader
    cdef TaskQueue tasks
    cdef public object transport
    cdef public bint is_closed
    cdef public object awaited        # the future of the answer that a login waits for

    cdef int take_frames(self) except -1


cdef class ClientPeers:
    cdef TaskQueue tasks
    cdef object time                  # of the event loop
    cdef object new_future
    cdef object encoded_kind          # the class of requests that know their own bytes
    cdef object produce_kind          # the class of requests that may have no answer
    cdef public dict _peers           # ClientPeer by the node's id
    cdef public bint _is_closed

    cdef int put(self, object node_id, ClientCall call, int64_t timeout_ms) except -1


cdef class ClientPeer:
    cdef dict lane_names              # by the kind of requests
    cdef object fetch_lane
    cdef readonly dict lanes          # a connection by the name of its lane
    cdef readonly list fetches        # the connections of the lane of fetches

    cdef ClientConnection connection_to(self, object kind)
