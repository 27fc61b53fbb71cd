"""The tasks of an event loop's thread; purpose, ownership and thread rule: task_queue.pxd."""

from collections import deque

cimport cython

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef enum:
    AT_ONCE = 64
    TURNS_A_LOOK = 17              # how often to look for others; odd, so that it is not always the last of several

# Tasks to run before sockets and timers get their turn: this many, or the first after which so much time has
# passed. Work in steps, such as taking 1,000 roles, posts its next step after each.
TASKS_OF_A_TURN = AT_ONCE
TURN_S = 0.01
cdef double TURN = TURN_S


cdef class TaskQueue:
    """Posted tasks. A subclass overrides `wake_soon()` and `look_soon()`, which schedule `run_tasks` and `look` behind
    the callbacks of this turn of the loop, and `report(name, error)`, which takes a task's error and raises what must
    end the thread.
    """

    def __cinit__(self, *_arguments, **_options):
        self.tasks = deque()

    def begin_here(self, monotonic):
        """Note that the caller's thread is the loop's. `monotonic()`: the time in s."""
        self.thread = PyThread_get_thread_ident()
        self.monotonic = monotonic

    def is_current(self):
        """Whether the caller runs in the loop's thread."""
        return PyThread_get_thread_ident() == self.thread

    def post(self, task):
        """Run `task` soon. If it belongs to no node, its error is reported as the event loop's."""
        self.put(task)

    cdef int put(self, object task) except -1:
        self.tasks.append(task)
        if not self.is_woken:
            self.is_woken = True
            self.wake_soon()
        return 0

    def begin_turn(self):
        """Note a callback of a socket or the disk, and defer tasks posted from now on until `end_turn`.

        Call in the loop's thread, and call `end_turn` if this returns True. The tasks of a callback that comes alone
        thus save a round trip through the event loop. If others come in the same turn of the loop, this returns False:
        the tasks of all of them then run together behind the last one, and share writes and wake-ups.
        """
        self.callbacks += 1
        if self.is_woken or self.is_shared:
            return False
        self.is_woken = True
        return True

    def end_turn(self):
        """Run tasks posted since `begin_turn`, as many as a turn takes; never raises a task's error."""
        self.turns += 1
        if self.turns % TURNS_A_LOOK == 0:
            self.callbacks = 1
            self.look_soon()
        self.run()

    def look(self):
        """Note whether other callbacks came in the turn of the loop that is over."""
        self.is_shared = self.callbacks > 1

    def run_tasks(self):
        """Run the posted tasks of one turn; leave the rest to the next turn of the event loop."""
        if self.is_shared:
            self.look()
        self.callbacks = 0
        self.run()

    cdef int run(self) except -1:
        cdef object tasks = self.tasks
        cdef double until = <double> self.monotonic() + TURN
        cdef int _
        try:
            for _ in range(AT_ONCE):
                if not tasks:
                    self.is_woken = False
                    return 0
                try:
                    tasks.popleft()()
                except BaseException as error:
                    self.report("event loop", error)
                if <double> self.monotonic() > until:
                    break
        except BaseException:
            # Run the other tasks even so.
            self.wake_soon()
            raise
        self.wake_soon()
        return 0


cdef class LifeOfTasks:
    """The tasks of one life of a node in the queue `thread`; after `is_alive` has become False none of them runs."""

    def __init__(self, TaskQueue thread not None):
        self.thread = thread
        self.is_alive = True

    def run_task(self, name, task):
        """Run a task of this life, unless the life has ended; call in the loop's thread."""
        self.run(name, task)

    cdef int run(self, object name, object task) except -1:
        if not self.is_alive:
            return 0
        try:
            task()
        except BaseException as error:
            self.thread.report(name, error)
        return 0


@cython.final
@cython.freelist(64)
cdef class LifeTask:
    # A posted task of a life.
    cdef LifeOfTasks life
    cdef object name
    cdef object task

    def __call__(self):
        self.life.run(self.name, self.task)


cdef class PostingLoop:
    """Posts the tasks of one object of a life. `name`: under which their errors are reported."""

    def __init__(self, LifeOfTasks life not None, name not None):
        self.life = life
        self.name = name

    def post(self, task):
        """Run `task` soon."""
        cdef LifeTask posted = LifeTask.__new__(LifeTask)
        posted.life, posted.name, posted.task = self.life, self.name, task
        self.life.thread.put(posted)
