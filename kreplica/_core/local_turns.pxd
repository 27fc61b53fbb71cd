# Turns: runs the tasks and carries the requests of all nodes of a process; LocalNetwork extends it.
#
# Any thread may call anything. The state below changes in native code that runs no Python code between a check and its
# consequence, so the GIL makes that atomic and no lock is needed: tasks and requests are far more frequent than
# anything else that the network does. Threads that sleep are woken by LocalNetwork, under its lock, once the state has
# changed; so a thread that looks at the state under that lock before it sleeps misses nothing. A queue is run by one
# thread at a time.

from libc.stdint cimport int64_t


cdef class TaskQueue:
    cdef readonly object network  # the Turns
    cdef readonly Endpoint endpoint
    cdef readonly str name
    cdef readonly bint is_apart   # its tasks may take long, and run in a dedicated thread
    cdef readonly object tasks    # a deque
    cdef bint is_queued           # waits for a thread, or is being run by one


cdef class Endpoint:
    cdef readonly int node_id
    cdef public bint is_alive
    cdef public bint is_paused
    cdef public list stalled      # queues with tasks, while the node is paused
    cdef readonly list runners    # the threads that are running its queues
    cdef readonly dict links      # the queues of incoming requests, by sender
    cdef public object handle     # answers requests that are objects
    cdef public object serve_frame    # answers requests that are bytes, or None
    cdef public TaskQueue timeouts    # runs the timeouts of its calls


cdef class Call:
    cdef readonly Turns network
    cdef readonly Endpoint sender
    cdef readonly Endpoint receiver
    cdef readonly object request
    cdef readonly object future
    cdef readonly int64_t timeout_ms
    cdef readonly int64_t deadline_ms
    cdef readonly int64_t number

    cdef int take(self) except -1
    cdef bint ends(self) noexcept


cdef class Turns:
    cdef public object gate       # intercepts each message, if set
    cdef readonly object clock
    cdef object new_future
    cdef object encoded           # the type of requests that know their bytes
    cdef object peer              # who sends them, for a receiver that takes frames
    cdef object thread_local      # `depth`: the number of `draining` blocks that the thread is in
    cdef readonly dict lives      # endpoints by node
    cdef public set cut_links     # (sender, receiver) pairs whose messages are dropped
    cdef readonly dict calls      # pending calls by number
    cdef int64_t numbers
    cdef public int64_t calls_end_ms      # no call ends before this
    cdef readonly object ready    # deques of queues with tasks
    cdef readonly object ready_apart
    cdef readonly int64_t turns   # begun so far
    cdef readonly int running     # threads that are running a queue
    cdef public int callers       # callers' threads that post tasks and run their share
    cdef public int idlers        # threads in `wait_until_idle`
    cdef public bint is_in_turn   # the network's own thread runs tasks
    cdef public bint is_stopping

    cpdef post(self, TaskQueue queue, task)
    cpdef int make_ready(self, TaskQueue queue) except -1
    cdef TaskQueue begin_turn(self, object ready, object thread)
    cdef int end_turn(self, TaskQueue queue, object thread) except -1
    cdef int run_turn(self, TaskQueue queue) except -1
