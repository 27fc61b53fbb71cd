# TaskQueue: the tasks posted to an event loop's thread, run there in order between socket events.
#
#     post, any thread --> tasks --run, at most 64 or 10 ms a turn--> the loop's thread
#           \--> wake, if no run is scheduled
#
# A task of a node belongs to one life of that node: LifeOfTasks runs it, unless the life has ended, and reports its
# error under the name of the PostingLoop that posted it.
#
# Ownership: an event loop's thread owns its queue, and is its only subclass (kreplica/runtime/event_loop.py). Thread
# rule: any thread may post; everything else happens in the loop's thread. The GIL guards the fields: nothing here
# releases it between a check and the change that depends on it.


cdef class TaskQueue:
    cdef object tasks             # a deque
    cdef unsigned long thread     # the loop's thread, once it runs
    cdef object monotonic         # the clock, from then on
    cdef bint is_woken            # a run is scheduled or under way
    # Several callbacks come in one turn of the loop, so tasks wait for all of them; and how many came lately.
    cdef bint is_shared
    cdef unsigned int callbacks
    cdef unsigned int turns

    cdef int put(self, object task) except -1
    cdef int run(self) except -1


cdef class LifeOfTasks:
    cdef readonly TaskQueue thread
    cdef public bint is_alive

    cdef int run(self, object name, object task) except -1


cdef class PostingLoop:
    cdef readonly LifeOfTasks life
    cdef readonly object name
