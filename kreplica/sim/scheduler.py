"""SimScheduler: the queue of everything that will happen in a simulation, and the hand that makes it happen.

`step` takes the next event, sets the time to its moment and runs it. Events of one moment come in an order
drawn from the seeded Random (so that a seed explores interleavings), or, with `shuffle` off, in the order
they were added (so that a script is read as it is written). The same seed gives the same events: `event_hash`
proves it across processes.

An event may belong to an Incarnation, which is one life of a node. What a dead one left in the queue never
happens; what a paused or busy one left waits for it. The scheduler keeps the queue; an incarnation is its
node's. Thread rule: one thread.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b

from kreplica.common.ports import Random
from kreplica.sim.clock import VirtualTime

NANOSECONDS_PER_MS = 1_000_000
# The node of an event that happens to no node: a fault, a client.
WORLD = -1
# Timers and turns of loops are the simulation's own; what counts as an event comes from outside a node.
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
        # Until then a slow disk keeps it: what it does next, it does after that moment.
        self.busy_until_ns = 0
        self.waiting: list[SimEvent] = []  # what came while it was paused

    def __repr__(self) -> str:
        return f"<node {self.node_id}, life {self.number}>"


class SimEvent:
    """Something that will happen; `cancel` keeps it from happening."""

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
    """The event queue, and the Scheduler port for whoever belongs to no node; see the module."""

    def __init__(self, time: VirtualTime, random: Random, *, shuffle: bool = True) -> None:
        self.time = time
        self.name = ""  # what an error's note begins with
        self.counts: Counter[str] = Counter()  # by kind
        self.steps = 0
        # Called after every event: there the invariants are checked.
        self.after_event: Callable[[SimEvent], object] | None = None
        self._random = random
        self._shuffle = shuffle
        self._queue: list[tuple[int, float, int, SimEvent]] = []
        self._added = 0
        self._hash = blake2b(digest_size=16)

    # ---- what is to happen --------------------------------------------------------------------------------

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
        """Let `action` happen after `delay_ns`, to the incarnation's node if one is given.

        A delay counts from the end of what keeps the incarnation busy.
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
        """The Scheduler port for one life of a node."""
        return NodeScheduler(self, incarnation)

    def loop(self, incarnation: Incarnation, name: str) -> SimLoop:
        """A Loop for an object of that life of a node."""
        return SimLoop(self, incarnation, name)

    def pause(self, incarnation: Incarnation) -> None:
        """Stall it, as a stopped process: what is due for it waits until `resume`."""
        incarnation.is_paused = True

    def resume(self, incarnation: Incarnation) -> None:
        """Let it go on; what it missed is due now, in the order it was."""
        incarnation.is_paused = False
        waiting, incarnation.waiting = incarnation.waiting, []
        for event in waiting:
            event.due_ns = max(event.due_ns, self.time.now_ns)
            self._push(event)

    # ---- time ---------------------------------------------------------------------------------------------

    def step(self, limit_ns: int | None = None) -> SimEvent | None:
        """Let the next event happen; None if there is none, or none up to the moment `limit_ns`.

        What an event raises is raised here, with the number of the event as a note.
        """
        event = self._next(limit_ns)
        if event is None:
            return None
        self.time.advance_to(event.due_ns)
        self.steps += 1
        self.counts[event.kind] += 1
        told = f"{self.time.now_ns} {event.kind} {event.node_id} {event.summary}\n"
        self._hash.update(told.encode())
        try:
            event.action()
            if self.after_event is not None:
                self.after_event(event)
        except Exception as error:
            error.add_note(f"{self.name}event {self.steps}: {event!r}")
            raise
        return event

    def run_due(self, limit: int = 1_000_000) -> int:
        """Let everything happen that is due now, and what follows from it at once; the number of events.

        AssertionError after `limit` of them: something goes round in circles.
        """
        for count in range(limit):
            if self.step(self.time.now_ns) is None:
                return count
        raise AssertionError(f"no quiet after {limit} events at {self.time.now_ns} ns")

    def run_for(self, duration_ms: int) -> None:
        """Let `duration_ms` pass, with all that happens in it."""
        stop_ns = self.time.now_ns + duration_ms * NANOSECONDS_PER_MS
        while self.step(stop_ns) is not None:
            pass
        self.time.advance_to(stop_ns)

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> bool:
        """Let events happen until `condition()` holds; False if it does not within `limit_ms`."""
        stop_ns = self.time.now_ns + limit_ms * NANOSECONDS_PER_MS
        while not condition():
            if self.step(stop_ns) is None:
                return False
        return True

    @property
    def events(self) -> int:
        """How many events there were, without timers and turns of loops."""
        return self.steps - sum(self.counts[kind] for kind in UNCOUNTED)

    @property
    def event_hash(self) -> str:
        """A hash of all that has happened: moment, kind, node and summary of each event, in order."""
        return self._hash.hexdigest()

    def _push(self, event: SimEvent) -> None:
        self._added += 1
        key = self._random.random() if self._shuffle else 0.0
        heapq.heappush(self._queue, (event.due_ns, key, self._added, event))

    def _next(self, limit_ns: int | None) -> SimEvent | None:
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
    """A task that waits for its time, once or periodically; `cancel` keeps it from running again."""

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
        """Never run it again; a run that has begun goes on."""
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
    """Implements `kreplica.common.ports.Loop`: each task is an event, one of a loop queued at a time."""

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
        # Events happen one by one, so a task of a timer never meets another one of the loop.
        return SimTimer(self._scheduler, self._incarnation, self._name, task, delay_ms)

    def about_to_wait(self) -> None:
        """Events happen one by one, so nothing else could run meanwhile."""

    def _queue_turn(self) -> None:
        self._scheduler.add("turn", self._name, self._turn, incarnation=self._incarnation)

    def _turn(self) -> None:
        try:
            self._tasks[0]()
        finally:
            self._tasks.popleft()
            if self._tasks:
                self._queue_turn()
