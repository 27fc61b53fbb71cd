# LogLock: the lock of one log, which also records whether a change of the log was interrupted.
#
# Python may raise an asynchronous exception between any two of its instructions: from a signal handler (Ctrl-C, a
# timeout), or by PyThreadState_SetAsyncExc. Code that changes a log in several calls of the core does so in
# `with lock, lock.step:`. A step ends normally, or with an error of the package's own tree, which means that it has
# changed nothing. Any other end leaves `broken` true, and the next thread that takes the lock calls `repair` first.
#
# This is not Python code, so no such exception strikes between taking the lock and the `with` block, nor between its
# end and the release.
#
# Thread rule: any thread; reentrant. In a forked child, taking the lock raises UseAfterFork: a thread that held it at
# the fork does not exist there to release it.
from libc.stdint cimport int64_t


cdef class LogLock:
    cdef void *lock
    cdef unsigned long owner      # the thread that holds it; a thread compares it only with its own id
    cdef int64_t depth            # how often that thread has taken it
    cdef int64_t steps            # steps in progress or interrupted; guarded by the lock
    cdef int generation           # the process that created it
    cdef readonly Step step
    cdef object repair
    cdef readonly object own_error

    cdef int take(self) except -1
    # Take the lock as a `with` block does: repair an interrupted change first. `give` ends it.
    cdef int enter(self) except -1
    # Take the lock if it is free and no change was interrupted; return whether it was taken.
    cdef bint try_take(self) except -1
    cdef void give(self) noexcept
    cdef int require_own(self) except -1
    cpdef look(self)


cdef class Step:
    cdef LogLock lock


cdef class SettledLock:
    cdef readonly LogLock lock
    cdef readonly object queue
