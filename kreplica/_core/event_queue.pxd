# EventQueue: the events of a simulation, in the order of their moments (kreplica/sim/scheduler.py has the rules).
#
# Purpose: a run has tens of thousands of events a second; each is queued, taken, and recorded in the run's hash.
# Ownership: the queue owns its events, and an event its action; all are Python objects, so that a dropped cluster with
# its cycles is collected. Thread rule: one thread.

from libc.stdint cimport int64_t


cdef class VirtualTime:
    cdef public int64_t now_ns

    cpdef object advance_to(self, int64_t moment_ns)


cdef class VirtualClock:
    cdef readonly VirtualTime time
    cdef int64_t date_offset_ms


cdef class Incarnation:
    cdef readonly int64_t node_id
    cdef readonly int64_t number
    cdef public bint is_alive
    cdef public bint is_paused
    cdef public int64_t busy_until_ns
    cdef list waiting             # the events that came due while it was paused


cdef class SimEvent:
    cdef readonly int64_t due_ns
    cdef readonly str kind
    cdef readonly int64_t node_id
    cdef readonly str summary
    cdef readonly object action
    cdef readonly Incarnation incarnation
    cdef readonly bint is_cancelled
    # The order among events of one moment.
    cdef double key
    cdef int64_t number

    cpdef object cancel(self)
    cdef bint before(self, SimEvent other) noexcept


cdef class EventQueue:
    cdef readonly VirtualTime time
    cdef public str name
    cdef readonly int64_t steps
    cdef readonly int64_t events
    cdef public object after_event
    cdef object draw              # returns the key of a new event; None: events keep the order of their addition
    cdef list heap
    cdef int64_t added
    cdef object hash
    cdef list lines               # what the hash does not contain yet

    cdef SimEvent new_event(self, str kind, str summary, object action, int64_t delay_ns, Incarnation incarnation,
                            int64_t node_id)
    cdef object push(self, SimEvent event)
    cdef SimEvent pop(self)
    cdef SimEvent next(self, int64_t limit_ns)
    cdef object record(self, SimEvent event)
    cpdef SimEvent step(self, object limit_ns=*)


cdef class SimTimer:
    cdef EventQueue queue
    cdef Incarnation incarnation
    cdef str name
    cdef object task
    cdef object period_ms
    cdef SimEvent event

    cdef object arm(self, int64_t delay_ms)


cdef class SimLoop:
    cdef EventQueue queue
    cdef Incarnation incarnation
    cdef str name
    cdef object tasks             # a deque

    cdef object queue_turn(self)
