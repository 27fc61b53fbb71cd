"""SimDisk: the disk thread of a simulated node, whose jobs are events of its loop like everything else.

A job is performed some time after it was submitted, and whoever submitted it hears of it in a later event,
so that all that a node does may come in between. With no loop nothing happens by itself: `perform_next` and
`tell` are then the test's to call. Thread rule: one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kreplica._core.disk_thread import DiskJob, Lane
from kreplica.common.ports import Loop

Done = Callable[[DiskJob], object]


class SimDisk:
    """Implements `kreplica.common.ports.Disk`. `delay_ms()`: how long the next job takes until it is
    performed."""

    def __init__(self, loop: Loop | None = None, delay_ms: Callable[[], int] | None = None) -> None:
        self._loop = loop
        self._delay_ms = delay_ms or (lambda: 0)
        self._jobs: deque[tuple[DiskJob, Done, Lane | None]] = deque()
        self._performed: deque[tuple[DiskJob, Done]] = deque()
        # How many were performed before their step came, since somebody waited for them.
        self._ahead = 0
        self._held: set[Lane] = set()
        self._missed = 0
        self._aside: deque[Callable[[], None]] = deque()
        self.is_stalled = False
        self.waiting_ms = 0.0

    def __len__(self) -> int:
        """How many jobs are not performed."""
        return len(self._jobs)

    @property
    def untold(self) -> int:
        """How many jobs are performed of which nobody has heard."""
        return len(self._performed)

    def submit(
        self,
        job: DiskJob,
        done: Done,
        lane: Lane | None = None,
        *,
        lazily: bool = False,  # noqa: ARG002
    ) -> None:
        """As the port."""
        self._jobs.append((job, done, lane))
        if self._loop is not None:
            self._loop.post_later(self._step, self._delay_ms())

    def settle(self, lane: Lane) -> None:
        """As the port: what was submitted before the lane's last job is performed, too."""
        while any(each is lane for _, _, each in self._jobs):
            self.perform_next()

    def is_finished(self, job: DiskJob) -> bool:
        """As the port."""
        return all(each is not job for each, _, _ in self._jobs)

    def free(self, lane: Lane) -> None:
        """As the port."""
        self._held.discard(lane)

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> None:
        """As the port."""
        task()
        if self._loop is None:
            self._aside.append(done)
        else:
            self._loop.post_later(done, self._delay_ms())

    def stall(self, waiting_ms: float) -> None:
        """Do nothing any more, and tell that it has been so for `waiting_ms`."""
        self.is_stalled, self.waiting_ms = True, waiting_ms

    def go_on(self) -> None:
        """Do what is left, and go on."""
        assert self._loop is not None
        self.is_stalled, self.waiting_ms = False, 0.0
        for _ in range(self._missed):
            self._loop.post(self._step)
        self._missed = 0

    # ---- its events ---------------------------------------------------------------------------------------

    def perform_next(self) -> None:
        """Perform the oldest job; nobody hears of it yet."""
        job, done, lane = self._jobs.popleft()
        if lane is not None and lane in self._held:
            job.hold()
        else:
            job.run()
            if job.status and lane is not None:
                self._held.add(lane)
        self._performed.append((job, done))
        self._ahead += 1

    @property
    def has_aside(self) -> bool:
        """Whether something was done aside of which nobody has heard."""
        return bool(self._aside)

    def tell_aside(self) -> None:
        """Tell of the oldest task that was done aside."""
        self._aside.popleft()()

    def tell(self) -> None:
        """Tell of the oldest job that was performed."""
        job, done = self._performed.popleft()
        done(job)

    def _step(self) -> None:
        # Each job that was submitted brings one step, and each step tells of one.
        assert self._loop is not None
        if self.is_stalled:
            self._missed += 1
            return
        if not self._ahead:
            self.perform_next()
        self._ahead -= 1
        self._loop.post(self.tell)
