# LogLock: the lock of one log, which also knows whether a change of the log was broken off.
#
# Python may raise an exception that is not the code's own between any two of its instructions: a signal's
# handler does (Ctrl-C, a time-out), and so does PyThreadState_SetAsyncExc. Code that changes a log in more than
# one call of the core does so in `with lock, lock.step:`. A step that ends in order, or with an error of the
# package's own tree, by which it has changed nothing, is over. Any other end leaves `broken` true, and the
# next thread that takes the lock calls `repair` before it goes on.
#
# Nothing here is Python code, so no such exception comes between taking the lock and the `with` block, nor
# between its end and the release.
#
# Thread rule: any thread; reentrant. In a child of the process that made the lock, taking it raises
# UseAfterFork: the thread that held it at the fork is not there to release it.
from libc.stdint cimport int64_t


cdef class LogLock:
    cdef void *lock
    cdef unsigned long owner      # the thread that holds it; only that thread finds its own number here
    cdef int64_t depth            # how often it has taken it
    cdef int64_t steps            # those under way; guarded by the lock
    cdef int generation           # the process that made it
    cdef readonly Step step
    cdef object repair
    cdef object own_error

    cdef int take(self) except -1
    cdef void give(self) noexcept
    cdef int require_own(self) except -1
    cpdef look(self)


cdef class Step:
    cdef LogLock lock


cdef class SettledLock:
    cdef readonly LogLock lock
    cdef object queue
