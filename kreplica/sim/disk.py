"""SimDisk: the disk thread of a simulated node; its jobs are events of the node's loop.

A job is performed some time after it is submitted, and its owner is notified in a later event, so other
events of the node may come in between. Without a loop the test itself calls `perform_next` and `notify`.
Thread rule: one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kreplica._core.disk_thread import DiskJob, Lane
from kreplica.common.ports import Loop

Done = Callable[[DiskJob], object]


class SimDisk:
    """Implements `kreplica.common.ports.Disk`. `delay_ms()`: the time until the next job is performed."""

    def __init__(self, loop: Loop | None = None, delay_ms: Callable[[], int] | None = None) -> None:
        self._loop = loop
        self._delay_ms = delay_ms or (lambda: 0)
        self._jobs: deque[tuple[DiskJob, Done, Lane | None]] = deque()
        self._performed: deque[tuple[DiskJob, Done]] = deque()
        # The number of jobs performed before their event, because a caller waited for them.
        self._ahead = 0
        self._held: set[Lane] = set()
        self._missed = 0
        self._aside: deque[Callable[[], None]] = deque()
        self.is_stalled = False
        self.waiting_ms = 0.0

    def __len__(self) -> int:
        """Return the number of jobs not yet performed."""
        return len(self._jobs)

    @property
    def unnotified(self) -> int:
        """The number of performed jobs whose owner is not notified yet."""
        return len(self._performed)

    def submit(
        self,
        job: DiskJob,
        done: Done,
        lane: Lane | None = None,
        *,
        lazily: bool = False,  # noqa: ARG002
    ) -> bool:
        """Submit a job; see the port."""
        self._jobs.append((job, done, lane))
        if self._loop is not None:
            self._loop.post_later(self._step, self._delay_ms())
        return False

    def settle(self, lane: Lane) -> None:
        """Perform the lane's jobs now, and all jobs submitted before its last one; see the port."""
        while any(each is lane for _, _, each in self._jobs):
            self.perform_next()

    def is_finished(self, job: DiskJob) -> bool:
        """Return whether the job was performed; see the port."""
        return all(each is not job for each, _, _ in self._jobs)

    def free(self, lane: Lane) -> None:
        """Release the lane; see the port."""
        self._held.discard(lane)

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> bool:
        """Run a task on the side; see the port."""
        task()
        if self._loop is None:
            self._aside.append(done)
        else:
            self._loop.post_later(done, self._delay_ms())
        return False

    def stall(self, waiting_ms: float) -> None:
        """Stop performing jobs, and report that a job has waited for `waiting_ms`."""
        self.is_stalled, self.waiting_ms = True, waiting_ms

    def go_on(self) -> None:
        """Perform the remaining jobs, and continue."""
        assert self._loop is not None
        self.is_stalled, self.waiting_ms = False, 0.0
        for _ in range(self._missed):
            self._loop.post(self._step)
        self._missed = 0

    # ---- events -------------------------------------------------------------------------------------------

    def perform_next(self) -> None:
        """Perform the oldest job, without notifying its owner."""
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
        """Whether a task on the side has finished and its owner is not notified yet."""
        return bool(self._aside)

    def notify_aside(self) -> None:
        """Notify the owner of the oldest finished task on the side."""
        self._aside.popleft()()

    def notify(self) -> None:
        """Notify the owner of the oldest performed job."""
        job, done = self._performed.popleft()
        done(job)

    def _step(self) -> None:
        # Each submitted job adds one step, and each step notifies the owner of one.
        assert self._loop is not None
        if self.is_stalled:
            self._missed += 1
            return
        if not self._ahead:
            self.perform_next()
        self._ahead -= 1
        self._loop.post(self.notify)
