"""The disk threads of a node on an event loop: one per log directory, so that a slow disk delays no other.

`NodeDisks` belongs to one life of a node: `leave` ends its threads, and jobs that have not started are never
done. The threads are native, see _core/disk_thread. Thread rule: any thread may call `disk`; results are
reported in the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from kreplica._core.disk_thread import DiskJob, DiskThread, Lane
from kreplica.common.locks import Lock
from kreplica.runtime.event_loop import NodeLoops

JOBS_A_TURN = 64


class ThreadedDisk:
    """Implements `kreplica.common.ports.Disk` with a native thread that notifies the event loop."""

    def __init__(self, life: NodeLoops, checks: Executor) -> None:
        self._life = life
        self._checks = checks
        self._loop = life.loop("checks")
        self._thread = DiskThread()
        self.settle = self._thread.settle
        self.is_finished = self._thread.is_finished
        self.free = self._thread.free
        # Finished jobs to report. Each turn of the loop reports only some, so that heartbeats are not
        # delayed.
        self._done: deque[DiskJob] = deque()
        self._is_waking = False
        life.thread.post(self._watch)

    def submit(
        self,
        job: DiskJob,
        done: Callable[[DiskJob], object],
        lane: Lane | None = None,
        *,
        lazily: bool = False,
    ) -> bool:
        """Queue a job; see the port."""
        job.done = done
        # The brief jobs of one turn of the loop wake the thread once.
        quietly = not lazily and job.is_brief and self._life.thread.is_current()
        self._thread.submit(job, lane, lazily=lazily, quietly=quietly)
        if quietly and not self._is_waking:
            self._is_waking = True
            self._life.thread.post(self._wake)
        return False

    def _wake(self) -> None:
        self._is_waking = False
        self._thread.wake()

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> bool:
        """Run a CPU-bound task; see the port.

        One thread, shared by all disks of the node, runs them in order.
        """

        def run() -> None:
            task()
            self._loop.post(done)

        self._checks.submit(run)
        return False

    @property
    def waiting_ms(self) -> float:
        """How long the oldest unfinished job has been waiting; see the port."""
        return self._thread.waiting_ms

    def stop(self) -> None:
        """End the thread after its current job."""
        self._life.thread.post(self._unwatch)
        self._thread.stop(at_once=True)

    def _watch(self) -> None:
        self._life.thread.loop.add_reader(self._thread.fileno(), self._take)

    def _unwatch(self) -> None:
        self._life.thread.loop.remove_reader(self._thread.fileno())

    def _take(self) -> None:
        is_reporting = bool(self._done)
        self._done.extend(self._thread.take())
        if is_reporting:
            return
        # What the reports post, such as answers to send, shares one turn.
        is_turn = self._life.thread.begin_turn()
        try:
            self._report()
        finally:
            if is_turn:
                self._life.thread.end_turn()

    def _report(self) -> None:
        life = self._life
        for _ in range(min(JOBS_A_TURN, len(self._done))):
            job = self._done.popleft()
            done, job.done = job.done, None
            if life.is_alive:
                try:
                    done(job)
                except Exception as error:
                    life.thread.on_error("disk", error)
        if self._done:
            life.thread.post(self._report)


class NodeDisks:
    """The disks of one life of a node, by log directory."""

    def __init__(self, life: NodeLoops) -> None:
        self._life = life
        self._checks = ThreadPoolExecutor(1, "kreplica-checks")
        self._lock = Lock()
        # Guarded by _lock:
        self._disks: dict[str, ThreadedDisk] = {}

    def disk(self, directory: str) -> ThreadedDisk:
        """Return the directory's disk."""
        with self._lock:
            found = self._disks.get(directory)
            if found is None:
                found = self._disks[directory] = ThreadedDisk(self._life, self._checks)
            return found

    def leave(self) -> None:
        """End the threads; the life's tasks have ended."""
        self._checks.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for disk in self._disks.values():
                disk.stop()
