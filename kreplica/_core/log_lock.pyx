"""The lock of one log, which detects interrupted changes; contract and thread rule: log_lock.pxd."""

from cpython.exc cimport PyErr_CheckSignals

from kreplica._core.region cimport kr_generation
from kreplica._core.status cimport FORKED, check

cdef extern from "pythread.h":
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int waits) nogil
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible) nogil
    void PyThread_release_lock(PyThread_type_lock lock) nogil
    unsigned long PyThread_get_thread_ident() nogil

# How often a thread that wants to change a log waits for the disk thread before it holds back new appends.
cdef int TRIES = 3


cdef class LogLock:
    """A reentrant lock that detects interrupted changes.

    `repair` is called, under the lock, by the first thread that takes the lock after a step was interrupted. If it
    raises, that thread gets the error, and the next one tries again. `own_error`: errors of this class mean that a
    step has changed nothing.
    """

    def __cinit__(self, repair, own_error):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        self.generation = kr_generation()
        self.repair = repair
        self.own_error = own_error
        self.step = Step(self)

    def __dealloc__(self):
        # If a thread of the parent process held the lock at the fork, it is left as it is.
        if self.lock != NULL and self.generation == kr_generation():
            PyThread_free_lock(self.lock)

    cdef int take(self) except -1:
        cdef unsigned long own = PyThread_get_thread_ident()
        cdef PyLockStatus status
        self.require_own()
        if self.owner == own and self.depth:
            self.depth += 1
            return 0
        if not PyThread_acquire_lock(self.lock, 0):
            while True:
                with nogil:
                    status = PyThread_acquire_lock_timed(self.lock, -1, 1)
                if status == PY_LOCK_ACQUIRED:
                    break
                # A signal arrived: its handler may end the wait.
                PyErr_CheckSignals()
        self.owner = own
        self.depth = 1
        return 0

    cdef bint try_take(self) except -1:
        cdef unsigned long own = PyThread_get_thread_ident()
        self.require_own()
        if self.steps:
            return False
        if self.owner == own and self.depth:
            self.depth += 1
            return True
        if not PyThread_acquire_lock(self.lock, 0):
            return False
        self.owner = own
        self.depth = 1
        if self.steps:
            self.give()
            return False
        return True

    cdef void give(self) noexcept:
        self.depth -= 1
        if self.depth == 0:
            self.owner = 0
            PyThread_release_lock(self.lock)

    cdef int enter(self) except -1:
        self.take()
        if self.steps and self.depth == 1:
            try:
                self.repair()
            except BaseException:
                self.give()
                raise
            self.steps = 0
        return 0

    def __enter__(self):
        self.enter()

    def __exit__(self, *_):
        self.give()

    cdef int require_own(self) except -1:
        if self.generation != kr_generation():
            check(FORKED, "using a log")
        return 0

    cpdef look(self):
        """Check the lock for a reader, which does not hold it.

        Raises UseAfterFork in a forked child; repairs an interrupted change.
        """
        self.require_own()
        if self.steps and self.depth == 0:
            self.enter()
            self.give()

    @property
    def is_forked(self):
        """Whether this is a forked child of the process that created the lock."""
        return self.generation != kr_generation()

    @property
    def broken(self):
        """Whether a step is in progress or was interrupted."""
        return self.steps != 0


cdef class Step:
    """A change of what the lock guards; the thread holds the lock."""

    def __cinit__(self, LogLock lock not None):
        self.lock = lock

    def __enter__(self):
        self.lock.steps += 1

    def __exit__(self, kind, error, trace):
        if kind is None or issubclass(kind, self.lock.own_error):
            self.lock.steps -= 1


cdef class SettledLock:
    """The lock of a log whose appends are made by a disk thread: while it is held, no append is in progress.

    `queue`: the log's AppendQueue.
    """

    def __cinit__(self, LogLock lock not None, queue):
        self.lock = lock
        self.queue = queue

    def __enter__(self):
        # Wait for a slow disk without holding the lock, since the loop needs the lock.
        cdef int _try
        for _try in range(TRIES):
            if not self.queue.is_under_way:
                break
            self.queue.wait()
        self.lock.__enter__()
        try:
            self.queue.settle()
        except BaseException:
            self.lock.give()
            raise

    def __exit__(self, *_):
        self.lock.give()
