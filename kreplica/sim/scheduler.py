"""SimScheduler: the virtual time of a simulation, and the event queue that advances it.

`step` takes the next event, sets the time to its moment and runs it. Events of one moment run in a random
order from the seeded Random (so that a seed explores interleavings), or, with `shuffle` off, in the order
they were added (so that a script runs as written). The same seed gives the same events: `event_hash` proves
it across processes.

An event may belong to an Incarnation, one life of a node. Events of a dead incarnation never run; those of a
paused or busy one wait for it. The scheduler owns the queue; the node owns its incarnation. All machines
share one monotonic time. Each has its own date (VirtualClock), which a test may set forward or back. Thread
rule: one thread.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b

from kreplica.common.ports import NANOSECONDS_PER_MS, Random

# The date at which a simulation begins, in milliseconds: 2020-09-13, so that a forgotten zero is obvious.
START_DATE_MS = 1_600_000_000_000


class VirtualTime:
    """The monotonic time shared by all machines, in nanoseconds since the simulation's start."""

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = 0

    def advance_to(self, moment_ns: int) -> None:
        """Advance the time to `moment_ns`; does nothing if that is past."""
        self.now_ns = max(self.now_ns, moment_ns)


class VirtualClock:
    """Implements `kreplica.common.ports.Clock` for one machine."""

    __slots__ = ("_date_offset_ms", "time")

    def __init__(self, time: VirtualTime | None = None, *, date_ms: int = START_DATE_MS) -> None:
        self.time = time or VirtualTime()
        self._date_offset_ms = date_ms - self.time.now_ns // NANOSECONDS_PER_MS

    def time_ms(self) -> int:
        """Return the date in milliseconds since 1970. `jump_date` can set it back."""
        return self.time.now_ns // NANOSECONDS_PER_MS + self._date_offset_ms

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the simulation's start. Never goes back."""
        return self.time.now_ns

    def jump_date(self, by_ms: int) -> None:
        """Set this machine's date forward or back; the monotonic time does not change."""
        self._date_offset_ms += by_ms


# The node of an event that concerns no node: a fault, a client.
WORLD = -1
# Timers and loop turns are internal; the event count includes only what comes from outside a node.
UNCOUNTED = frozenset({"timer", "turn"})

Action = Callable[[], object]


class Incarnation:
    """One life of a node, from a start to a kill."""

    __slots__ = ("busy_until_ns", "is_alive", "is_paused", "node_id", "number", "waiting")

    def __init__(self, node_id: int, number: int = 1) -> None:
        self.node_id = node_id
        self.number = number
        self.is_alive = True
        self.is_paused = False
        # A slow disk blocks the node until then; its next events run after that moment.
        self.busy_until_ns = 0
        self.waiting: list[SimEvent] = []  # the events that came due while it was paused

    def __repr__(self) -> str:
        return f"<node {self.node_id}, life {self.number}>"


class SimEvent:
    """Something that will happen; `cancel` prevents it."""

    __slots__ = ("action", "due_ns", "incarnation", "is_cancelled", "kind", "node_id", "summary")

    def __init__(
        self,
        due_ns: int,
        kind: str,
        node_id: int,
        summary: str,
        action: Action,
        incarnation: Incarnation | None,
    ) -> None:
        self.due_ns = due_ns
        self.kind = kind
        self.node_id = node_id
        self.summary = summary
        self.action = action
        self.incarnation = incarnation
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def __repr__(self) -> str:
        return f"<{self.kind} at {self.due_ns} ns, node {self.node_id}: {self.summary}>"


class SimScheduler:
    """The event queue, and the Scheduler port for objects that belong to no node."""

    def __init__(self, time: VirtualTime, random: Random, *, shuffle: bool = True) -> None:
        self.time = time
        self.name = ""  # the prefix of an error's note
        self.counts: Counter[str] = Counter()  # by kind
        self.steps = 0
        # Called after every event, to check the invariants.
        self.after_event: Callable[[SimEvent], object] | None = None
        self._random = random
        self._shuffle = shuffle
        self._queue: list[tuple[int, float, int, SimEvent]] = []
        self._added = 0
        self._hash = blake2b(digest_size=16)

    # ---- adding events ------------------------------------------------------------------------------------

    def add(
        self,
        kind: str,
        summary: str,
        action: Action,
        *,
        delay_ns: int = 0,
        incarnation: Incarnation | None = None,
        node_id: int = WORLD,
    ) -> SimEvent:
        """Run `action` after `delay_ns`, on the incarnation's node if one is given.

        If the incarnation is busy, the delay counts from the end of that.
        """
        begin_ns = self.time.now_ns
        if incarnation is not None:
            begin_ns = max(begin_ns, incarnation.busy_until_ns)
            node_id = incarnation.node_id
        event = SimEvent(begin_ns + max(delay_ns, 0), kind, node_id, summary, action, incarnation)
        self._push(event)
        return event

    def schedule(
        self, name: str, task: Callable[[], None], delay_ms: int, period_ms: int | None = None
    ) -> SimTimer:
        """Run `task` after `delay_ms`, then every `period_ms` if that is given."""
        return SimTimer(self, None, name, task, delay_ms, period_ms)

    def of(self, incarnation: Incarnation) -> NodeScheduler:
        """Return the Scheduler port for one life of a node."""
        return NodeScheduler(self, incarnation)

    def loop(self, incarnation: Incarnation, name: str) -> SimLoop:
        """Return a Loop for an object of that life of a node."""
        return SimLoop(self, incarnation, name)

    def pause(self, incarnation: Incarnation) -> None:
        """Pause it, like a stopped process: its due events wait until `resume`."""
        incarnation.is_paused = True

    def resume(self, incarnation: Incarnation) -> None:
        """Resume it; the events it missed are due now, in their order."""
        incarnation.is_paused = False
        waiting, incarnation.waiting = incarnation.waiting, []
        for event in waiting:
            event.due_ns = max(event.due_ns, self.time.now_ns)
            self._push(event)

    # ---- time ---------------------------------------------------------------------------------------------

    def step(self, limit_ns: int | None = None) -> SimEvent | None:
        """Run the next event; returns None without an event, or without one up to `limit_ns`.

        Raises what the event raises, with the event's number as a note.
        """
        event = self._next(limit_ns)
        if event is None:
            return None
        self.time.advance_to(event.due_ns)
        self.steps += 1
        self.counts[event.kind] += 1
        line = f"{self.time.now_ns} {event.kind} {event.node_id} {event.summary}\n"
        self._hash.update(line.encode())
        try:
            event.action()
            if self.after_event is not None:
                self.after_event(event)
        except Exception as error:
            error.add_note(f"{self.name}event {self.steps}: {event!r}")
            raise
        return event

    def run_due(self, limit: int = 1_000_000) -> int:
        """Run everything that is due now, and what follows from it at once; return the number of events.

        Raises AssertionError after `limit` events, because they seem to repeat endlessly.
        """
        for count in range(limit):
            if self.step(self.time.now_ns) is None:
                return count
        raise AssertionError(f"events at {self.time.now_ns} ns do not end: ran {limit} of them")

    def run_for(self, duration_ms: int) -> None:
        """Let `duration_ms` pass, and run the events in it."""
        stop_ns = self.time.now_ns + duration_ms * NANOSECONDS_PER_MS
        while self.step(stop_ns) is not None:
            pass
        self.time.advance_to(stop_ns)

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> bool:
        """Run events until `condition()` holds; returns False if it does not within `limit_ms`."""
        stop_ns = self.time.now_ns + limit_ms * NANOSECONDS_PER_MS
        while not condition():
            if self.step(stop_ns) is None:
                return False
        return True

    @property
    def events(self) -> int:
        """The number of events, without timers and loop turns."""
        return self.steps - sum(self.counts[kind] for kind in UNCOUNTED)

    @property
    def event_hash(self) -> str:
        """A hash of everything that has happened: moment, kind, node and summary of each event, in order."""
        return self._hash.hexdigest()

    def _push(self, event: SimEvent) -> None:
        self._added += 1
        key = self._random.random() if self._shuffle else 0.0
        heapq.heappush(self._queue, (event.due_ns, key, self._added, event))

    def _next(self, limit_ns: int | None) -> SimEvent | None:
        """Take the next event that may run out of the queue; events of paused or busy nodes wait."""
        queue = self._queue
        while queue and (limit_ns is None or queue[0][0] <= limit_ns):
            event = heapq.heappop(queue)[3]
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
                self._push(event)
            else:
                return event
        return None


class SimTimer:
    """A task that runs later, once or periodically; `cancel` prevents further runs."""

    __slots__ = ("_event", "_incarnation", "_name", "_period_ms", "_scheduler", "_task")

    def __init__(
        self,
        scheduler: SimScheduler,
        incarnation: Incarnation | None,
        name: str,
        task: Callable[[], None],
        delay_ms: int,
        period_ms: int | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._incarnation = incarnation
        self._name = name
        self._task = task
        self._period_ms = period_ms
        self._event: SimEvent | None = None
        self._arm(delay_ms)

    def cancel(self) -> None:
        """Prevent further runs; a run in progress continues."""
        if self._event is not None:
            self._event.cancel()
        self._period_ms = None

    def _arm(self, delay_ms: int) -> None:
        self._event = self._scheduler.add(
            "timer",
            self._name,
            self._run,
            delay_ns=delay_ms * NANOSECONDS_PER_MS,
            incarnation=self._incarnation,
        )

    def _run(self) -> None:
        self._task()
        if self._period_ms is not None:
            self._arm(self._period_ms)


class NodeScheduler:
    """Implements `kreplica.common.ports.Scheduler` for one life of a node."""

    def __init__(self, scheduler: SimScheduler, incarnation: Incarnation) -> None:
        self._scheduler = scheduler
        self._incarnation = incarnation

    def schedule(
        self, name: str, task: Callable[[], None], delay_ms: int, period_ms: int | None = None
    ) -> SimTimer:
        """Run `task` after `delay_ms`, then every `period_ms` if that is given."""
        return SimTimer(self._scheduler, self._incarnation, name, task, delay_ms, period_ms)


class SimLoop:
    """Implements `kreplica.common.ports.Loop`: each task is an event; at most one event of a loop is
    queued."""

    def __init__(self, scheduler: SimScheduler, incarnation: Incarnation, name: str) -> None:
        self._scheduler = scheduler
        self._incarnation = incarnation
        self._name = name
        self._tasks: deque[Callable[[], None]] = deque()

    def post(self, task: Callable[[], None]) -> None:
        """Run `task` soon."""
        self._tasks.append(task)
        if len(self._tasks) == 1:
            self._queue_turn()

    def post_later(self, task: Callable[[], None], delay_ms: int) -> SimTimer:
        """Run `task` in this loop after `delay_ms`."""
        # Events run one by one, so a timer's task never overlaps another task of the loop.
        return SimTimer(self._scheduler, self._incarnation, self._name, task, delay_ms)

    def about_to_wait(self) -> None:
        """Do nothing: events run one by one, so nothing else could run meanwhile."""

    def _queue_turn(self) -> None:
        self._scheduler.add("turn", self._name, self._turn, incarnation=self._incarnation)

    def _turn(self) -> None:
        try:
            self._tasks[0]()
        finally:
            self._tasks.popleft()
            if self._tasks:
                self._queue_turn()
