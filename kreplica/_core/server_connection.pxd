# ServerConnection: a client's connection, from the bytes that its socket receives to the order of its answers.
#
#     socket --> FrameReader --frame--> LaneGate --declined--> Processor.receive (Python)
#                                          |                        |
#     socket <-- answers of a turn <-- PendingAnswer, one for each request, in their order
#
# A Processor is what the connections of one listener share. A request that a native lane takes is served without
# Python from its frame to its answer's bytes. Everything else, and what a listener decides about its connections
# (their number, idle ones, the memory of all requests), is Python's and called when it is due; see
# kreplica/runtime/tcp_server.py.
#
# Ownership: a connection owns its unsent answers; a PendingAnswer belongs to the lane or the handler that is to call
# it, too. Thread rule: the thread of that of the event loop; only a
# PendingAnswer may be called in any thread.

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.client_account cimport ClientAccount
from kreplica._core.frame_reader cimport FrameReader, ReceiveBuffer
from kreplica._core.grants cimport Grants
from kreplica._core.task_queue cimport TaskQueue


cdef class LaneGate:
    cdef object lanes
    cdef bint produces
    cdef bint fetches
    cdef object limits            # the quotas in force; None if no client has any

    # Return the request if a native lane has taken it, else None.
    cpdef object take(self, object frame, object answered, object connection)
    # `is_known`: whether the account of the client is; None as account: no quota applies to it.
    cdef object produce(self, object frame, int64_t size, object answered, object connection, Grants grants,
                        bint is_known, ClientAccount account)
    cdef object fetch(self, object frame, object answered, Grants grants, bint is_known, ClientAccount account)


cdef class RequestMemory:
    cdef readonly int64_t max_bytes
    cdef readonly int64_t under_way_bytes
    cdef public bint has_waiting  # connections wait for memory

    cdef int release(self, int64_t size) except -1


cdef class Processor:
    cdef object receive
    cdef TaskQueue tasks
    cdef LaneGate gate
    cdef RequestMemory memory
    cdef ReceiveBuffer received
    cdef int64_t min_frame_bytes
    cdef int64_t max_frame_bytes
    cdef int64_t max_requests
    cdef int64_t max_bytes
    cdef readonly int64_t activity  # counts requests and progress in sending, of all connections
    cdef list due                 # the connections whose answers are sent at the end of the turn


cdef class PendingAnswer:
    cdef ServerConnection connection
    cdef PendingAnswer next
    cdef int64_t size             # of the request
    cdef bint is_done
    cdef list buffers
    cdef object error
    cdef public int64_t throttle_ms  # for which no request is read after the answer; set it before the call
    cdef object under_way         # the work on the answer, which is cancelled when the connection closes


# Reading stops when an answer announces a throttle time. It resumes when that is over and all such answers are sent.
cdef enum:
    NOT_MUTED
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING
    MUTED_AND_THROTTLED
    MUTED_AND_RESPONSE_PENDING


cdef class ServerConnection:
    cdef readonly Processor processor
    cdef FrameReader reader
    cdef PendingAnswer first
    cdef PendingAnswer last
    cdef int64_t requests         # in flight, and their bytes
    cdef int64_t request_bytes
    cdef int64_t receiving_bytes  # received bytes of an incomplete large frame
    # Of requests whose answers are sent at the end of the turn, and of those answers.
    cdef int64_t answered_bytes
    cdef int64_t answer_bytes
    cdef readonly int64_t active  # the Processor's `activity` at its last request or progress in sending
    cdef public object transport
    cdef public object peer       # who the client is (security.peer.Peer)
    cdef public Grants grants     # what it has been allowed; None if nothing yet
    # Takes each frame while the client has not logged in, and later those of another login; None without logins.
    cdef object authenticator
    cdef readonly bint is_authenticated
    cdef readonly bint has_asked
    cdef public bint is_closed
    cdef public bint is_ending    # further input is ignored
    cdef bint is_refused          # it has sent a frame whose size is out of bounds; nothing behind it can be read
    cdef bint is_paused           # reading is paused
    cdef bint is_reader_slow      # the client does not read its answers fast enough
    cdef bint is_due              # it is in the Processor's `due`
    cdef int muting               # the state of throttling, see below
    cdef int64_t throttled_answers  # unsent answers that announce a throttle time
    # What the lanes charge for requests of this client id under these quotas. Without an account they are free; without
    # quotas that is not known.
    cdef ClientAccount account
    cdef object account_under
    cdef bytes account_client_id

    cdef bint has_account(self, object limits, const uint8_t *frame, Py_ssize_t size) noexcept
    cdef int begin_throttle(self, PendingAnswer answer) except -1
    cdef int note_muting(self, int event) except -1
    cdef void touch(self) noexcept
    cdef int serve(self) except -1
    cdef bint is_for_authenticator(self, object frame) except -1
    cdef int pass_on(self, object frame) except -1
    cdef int append(self, PendingAnswer answer) except -1
    cdef PendingAnswer pop(self)
    cdef bint has_enough(self) except -1
    cdef int hold(self) except -1
    cdef int finish(self, PendingAnswer answer) except -1
    cdef int send(self) except -1
    cdef int flush(self) except -1
