"""LocalEndpoint: one life of a node in a LocalNetwork, with its loops and timers.

They are the node's Transport, Scheduler and Loops. Their state belongs to the network, which reads and
changes it under its lock; calls are passed on to the network. Thread rule: any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kreplica.common.future import Future

Task = Callable[[], object]
Handler = Callable[[Any], Future[Any]]


class Network(Protocol):
    """The operations that an endpoint requests from its network."""

    def post(self, loop: LocalLoop, task: Task) -> None: ...

    def arm(self, timer: LocalTimer, delay_ms: int) -> LocalTimer: ...

    def cancel(self, timer: LocalTimer) -> None: ...

    def call_helpers(self) -> None: ...

    def send(self, sender: LocalEndpoint, node_id: int, request: Any, timeout_ms: int) -> Future[Any]: ...


class LocalLoop:
    """Implements `kreplica.common.ports.Loop`: a queue of tasks, run in order by one thread at a time.

    `is_apart`: its tasks may take long, and run in a dedicated thread.
    """

    __slots__ = ("_network", "endpoint", "is_apart", "is_queued", "name", "tasks")

    def __init__(
        self, network: Network, endpoint: LocalEndpoint, name: str, *, is_apart: bool = False
    ) -> None:
        self._network = network
        self.is_apart = is_apart
        self.endpoint = endpoint
        self.name = name
        # Guarded by the network's _lock; the thread that runs the queue takes from it.
        self.tasks: deque[Task] = deque()
        self.is_queued = False  # waits for a thread, or is being run by one

    def post(self, task: Task) -> None:
        """Run `task` soon."""
        self._network.post(self, task)

    def post_later(self, task: Task, delay_ms: int) -> LocalTimer:
        """Run `task` in this loop after `delay_ms`."""
        return self._network.arm(LocalTimer(self._network, self, task, None), delay_ms)

    def about_to_wait(self) -> None:
        """Let the helper threads run other loops that have tasks."""
        self._network.call_helpers()


class LocalTimer:
    """A task that runs at its time; `cancel` prevents further runs."""

    __slots__ = ("deadline_ms", "handle", "is_cancelled", "loop", "network", "period_ms", "task", "ticket")

    def __init__(self, network: Network, loop: LocalLoop, task: Task, period_ms: int | None) -> None:
        self.network = network
        self.loop = loop
        self.task = task
        self.period_ms = period_ms
        # Guarded by the network's _lock. A ticket of 0 means that it is not waiting.
        self.is_cancelled = False
        self.deadline_ms = self.ticket = self.handle = 0

    def cancel(self) -> None:
        """Prevent further runs; a current run continues."""
        self.network.cancel(self)

    def run(self) -> None:
        """Run the task; its loop calls this at the timer's time."""
        if self.is_cancelled:
            return
        try:
            self.task()
        finally:
            if self.period_ms is not None:
                self.network.arm(self, self.period_ms)


class LocalEndpoint:
    """One life of a node: implements the Transport and Scheduler ports, and creates the node's Loops."""

    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self.node_id = node_id
        # Guarded by the network's _lock:
        self.is_alive = True
        self.is_paused = False
        self.stalled: list[LocalLoop] = []  # loops with tasks, while the node is paused
        self.listeners: list[Callable[[int], object]] = []
        self.handle: Handler | None = None
        self.timeouts = LocalLoop(network, self, "timeout")
        self.links: dict[int, LocalLoop] = {}  # incoming requests, by sender
        self.runners: list[int] = []  # the threads that are running its queues

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request` to the node; see the port."""
        return self._network.send(self, node_id, request, timeout_ms)

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when a connection from or to that node closes; see the port."""
        self.listeners.append(listener)

    def loop(self, name: str) -> LocalLoop:
        """A Loop for an object of this life of the node."""
        return LocalLoop(self._network, self, name)

    def loop_apart(self, name: str) -> LocalLoop:
        """Return a Loop for tasks that take long; no other loop waits for its thread."""
        return LocalLoop(self._network, self, name, is_apart=True)

    def schedule(self, name: str, task: Task, delay_ms: int, period_ms: int | None = None) -> LocalTimer:
        """Run `task` after `delay_ms`, then, if given, every `period_ms` counted from the end of a run."""
        return self._network.arm(LocalTimer(self._network, self.loop(name), task, period_ms), delay_ms)
