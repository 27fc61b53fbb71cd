"""The event queue of a simulation, its virtual time, and the timers and loops that add events.

Purpose, ownership and thread rule: event_queue.pxd.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from collections import deque
from hashlib import blake2b

# The date at which a simulation begins, in milliseconds: 2020-09-13, so that a forgotten zero is obvious.
START_DATE_MS = 1_600_000_000_000
# The node of an event that concerns no node: a fault, a client.
WORLD = -1

cdef enum:
    NANOSECONDS_PER_MS = 1_000_000
    KEPT_LINES = 1024             # lines that are hashed at once

# A longer delay is as good as never.
cdef int64_t LONGEST_NS = <int64_t>1 << 61


@cython.final
cdef class VirtualTime:
    """The monotonic time shared by all machines, in nanoseconds since the simulation's start."""

    cpdef object advance_to(self, int64_t moment_ns):
        """Advance the time to `moment_ns`; does nothing if that is past."""
        self.now_ns = max(self.now_ns, moment_ns)


@cython.final
cdef class VirtualClock:
    """Implements `kreplica.common.ports.Clock` for one machine."""

    def __init__(self, VirtualTime time=None, *, int64_t date_ms=START_DATE_MS):
        self.time = time or VirtualTime()
        self.date_offset_ms = date_ms - self.time.now_ns // NANOSECONDS_PER_MS

    def time_ms(self):
        """Return the date in milliseconds since 1970. `jump_date` can set it back."""
        return self.time.now_ns // NANOSECONDS_PER_MS + self.date_offset_ms

    def monotonic_ns(self):
        """Return nanoseconds since the simulation's start. Never goes back."""
        return self.time.now_ns

    def jump_date(self, int64_t by_ms):
        """Set this machine's date forward or back; the monotonic time does not change."""
        self.date_offset_ms += by_ms


@cython.final
cdef class Incarnation:
    """One life of a node, from a start to a kill.

    `busy_until_ns`: a slow disk blocks the node until then; its next events run after that moment.
    """

    def __init__(self, int64_t node_id, int64_t number=1):
        self.node_id = node_id
        self.number = number
        self.is_alive = True
        self.waiting = []

    def __repr__(self):
        return f"<node {self.node_id}, life {self.number}>"


@cython.final
cdef class SimEvent:
    """Something that will happen; `cancel` prevents it."""

    cpdef object cancel(self):
        """Prevent the event."""
        self.is_cancelled = True

    cdef bint before(self, SimEvent other) noexcept:
        if self.due_ns != other.due_ns:
            return self.due_ns < other.due_ns
        if self.key != other.key:
            return self.key < other.key
        return self.number < other.number

    def __repr__(self):
        return f"<{self.kind} at {self.due_ns} ns, node {self.node_id}: {self.summary}>"


cdef class EventQueue:
    """The events of one simulation.

    `random.random()` orders the events of one moment if `shuffle` is set; else they keep the order in which they were
    added. `steps`: the number of events so far. `events`: the same without timers and turns of loops, which are
    internal to a node. `after_event`: called after every event. `name`: the prefix of an error's note.
    """

    def __init__(self, VirtualTime time not None, random, *, bint shuffle=True):
        self.time = time
        self.name = ""
        self.draw = random.random if shuffle else None
        self.heap = []
        self.hash = blake2b(digest_size=16)
        self.lines = []

    def add(self, str kind not None, str summary not None, action, *, delay_ns=0, Incarnation incarnation=None,
            int64_t node_id=WORLD):
        """Run `action` after `delay_ns`, on the incarnation's node if one is given.

        If the incarnation is busy, the delay counts from the end of that.
        """
        return self.new_event(kind, summary, action, delay_ns, incarnation, node_id)

    def pause(self, Incarnation incarnation not None):
        """Pause it, like a stopped process: its due events wait until `resume`."""
        incarnation.is_paused = True

    def resume(self, Incarnation incarnation not None):
        """Resume it; the events it missed are due now, in their order."""
        cdef SimEvent event
        incarnation.is_paused = False
        waiting, incarnation.waiting = incarnation.waiting, []
        for event in waiting:
            event.due_ns = max(event.due_ns, self.time.now_ns)
            self.push(event)

    cpdef SimEvent step(self, object limit_ns=None):
        """Run the next event; returns None without an event, or without one up to `limit_ns`.

        Raises what the event raises, with the event's number as a note.
        """
        cdef SimEvent event = self.next(INT64_MAX if limit_ns is None else limit_ns)
        if event is None:
            return None
        self.time.now_ns = max(self.time.now_ns, event.due_ns)
        self.record(event)
        try:
            event.action()
            if self.after_event is not None:
                self.after_event(event)
        except Exception as error:
            error.add_note(f"{self.name}event {self.steps}: {event!r}")
            raise
        return event

    @property
    def event_hash(self):
        """A hash of everything that has happened: moment, kind, node and summary of each event, in order."""
        self.hash_lines()
        return self.hash.hexdigest()

    # ---- the heap -----------------------------------------------------------------------------------------

    cdef SimEvent new_event(self, str kind, str summary, object action, int64_t delay_ns, Incarnation incarnation,
                            int64_t node_id):
        cdef SimEvent event = SimEvent.__new__(SimEvent)
        event.due_ns = self.time.now_ns
        if incarnation is not None:
            event.due_ns = max(event.due_ns, incarnation.busy_until_ns)
            node_id = incarnation.node_id
        event.due_ns += min(max(delay_ns, 0), LONGEST_NS)
        event.kind = kind
        event.node_id = node_id
        event.summary = summary
        event.action = action
        event.incarnation = incarnation
        self.push(event)
        return event

    cdef object push(self, SimEvent event):
        cdef list heap = self.heap
        cdef Py_ssize_t at = len(heap), parent
        self.added += 1
        event.number = self.added
        event.key = 0.0 if self.draw is None else self.draw()
        heap.append(event)
        while at > 0:
            parent = (at - 1) >> 1
            if not event.before(<SimEvent>heap[parent]):
                break
            heap[at] = heap[parent]
            at = parent
        heap[at] = event

    cdef SimEvent pop(self):
        """Remove and return the first event; there must be one."""
        cdef list heap = self.heap
        cdef SimEvent first = <SimEvent>heap[0], last = <SimEvent>heap.pop()
        cdef Py_ssize_t at = 0, child = 1, size = len(heap)
        if size == 0:
            return first
        while child < size:
            if child + 1 < size and (<SimEvent>heap[child + 1]).before(<SimEvent>heap[child]):
                child += 1
            if last.before(<SimEvent>heap[child]):
                break
            heap[at] = heap[child]
            at, child = child, 2 * child + 1
        heap[at] = last
        return first

    cdef SimEvent next(self, int64_t limit_ns):
        """Take the next event that may run out of the queue; events of paused or busy nodes wait."""
        cdef SimEvent event
        cdef Incarnation life
        while self.heap and (<SimEvent>self.heap[0]).due_ns <= limit_ns:
            event = self.pop()
            if event.is_cancelled:
                continue
            life = event.incarnation
            if life is None:
                return event
            if not life.is_alive:
                continue
            if life.is_paused:
                life.waiting.append(event)
            elif life.busy_until_ns > max(event.due_ns, self.time.now_ns):
                event.due_ns = life.busy_until_ns
                self.push(event)
            else:
                return event
        return None

    cdef object record(self, SimEvent event):
        self.steps += 1
        if event.kind != "timer" and event.kind != "turn":
            self.events += 1
        self.lines.append(f"{self.time.now_ns} {event.kind} {event.node_id} {event.summary}\n")
        if len(self.lines) == KEPT_LINES:
            self.hash_lines()

    def hash_lines(self):
        """Add the lines of the last events to the hash."""
        self.hash.update("".join(self.lines).encode())
        self.lines.clear()


@cython.final
cdef class SimTimer:
    """A task that runs later, once or periodically; `cancel` prevents further runs."""

    def __init__(self, EventQueue queue not None, Incarnation incarnation, str name not None, task, int64_t delay_ms,
                 period_ms=None):
        self.queue = queue
        self.incarnation = incarnation
        self.name = name
        self.task = task
        self.period_ms = period_ms
        self.arm(delay_ms)

    def cancel(self):
        """Prevent further runs; a run in progress continues."""
        self.event.cancel()
        self.period_ms = None

    cdef object arm(self, int64_t delay_ms):
        cdef int64_t delay_ns = min(delay_ms, LONGEST_NS // NANOSECONDS_PER_MS) * NANOSECONDS_PER_MS
        self.event = self.queue.new_event("timer", self.name, self.run, delay_ns, self.incarnation, WORLD)

    def run(self):
        """Run the task, and arm a periodic timer again."""
        self.task()
        if self.period_ms is not None:
            self.arm(self.period_ms)


@cython.final
cdef class SimLoop:
    """Implements `kreplica.common.ports.Loop`: each task is an event; at most one event of a loop is queued."""

    def __init__(self, EventQueue queue not None, Incarnation incarnation not None, str name not None):
        self.queue = queue
        self.incarnation = incarnation
        self.name = name
        self.tasks = deque()

    def post(self, task):
        """Run `task` soon."""
        self.tasks.append(task)
        if len(self.tasks) == 1:
            self.queue_turn()

    def post_later(self, task, int64_t delay_ms):
        """Run `task` in this loop after `delay_ms`."""
        # Events run one by one, so a timer's task never overlaps another task of the loop.
        return SimTimer(self.queue, self.incarnation, self.name, task, delay_ms)

    def about_to_wait(self):
        """Do nothing: events run one by one, so nothing else could run meanwhile."""

    cdef object queue_turn(self):
        self.queue.new_event("turn", self.name, self.turn, 0, self.incarnation, WORLD)

    def turn(self):
        """Run the oldest task."""
        try:
            self.tasks[0]()
        finally:
            self.tasks.popleft()
            if self.tasks:
                self.queue_turn()
