"""The disk threads of a node on an event loop: one for the appends of each log directory, so that a
directory whose disk stands still holds up no other.

`NodeDisks` is one life's: `leave` ends its threads, and what they had not begun is never done. The thread
itself is native, see _core/disk_thread. Thread rule: `disk` any thread; what is done is told in the event
loop.
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
    """Implements `kreplica.common.ports.Disk` by a native thread, whose notices the event loop watches."""

    def __init__(self, life: NodeLoops, checks: Executor) -> None:
        self._life = life
        self._checks = checks
        self._loop = life.loop("checks")
        self._thread = DiskThread()
        self.settle = self._thread.settle
        self.is_finished = self._thread.is_finished
        self.free = self._thread.free
        # Done, and not told yet: of many at once some in each turn of the loop, for which heartbeats wait.
        self._done: deque[DiskJob] = deque()
        life.thread.post(self._watch)

    def submit(
        self,
        job: DiskJob,
        done: Callable[[DiskJob], object],
        lane: Lane | None = None,
        *,
        lazily: bool = False,
    ) -> None:
        """As the port."""
        job.done = done
        self._thread.submit(job, lane, lazily=lazily)

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> None:
        """As the port; tasks run one at a time, by a thread that all disks of the node share."""

        def run() -> None:
            task()
            self._loop.post(done)

        self._checks.submit(run)

    @property
    def waiting_ms(self) -> float:
        """As the port."""
        return self._thread.waiting_ms

    def stop(self) -> None:
        """End the thread after the job that it is at."""
        self._life.thread.post(self._unwatch)
        self._thread.stop(at_once=True)

    def _watch(self) -> None:
        self._life.thread.loop.add_reader(self._thread.fileno(), self._take)

    def _unwatch(self) -> None:
        self._life.thread.loop.remove_reader(self._thread.fileno())

    def _take(self) -> None:
        is_telling = bool(self._done)
        self._done.extend(self._thread.take())
        if not is_telling:
            self._tell()

    def _tell(self) -> None:
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
            life.thread.post(self._tell)


class NodeDisks:
    """The disks of one life of a node, by log directory."""

    def __init__(self, life: NodeLoops) -> None:
        self._life = life
        self._checks = ThreadPoolExecutor(1, "kreplica-checks")
        self._lock = Lock()
        # Guarded by _lock:
        self._disks: dict[str, ThreadedDisk] = {}

    def disk(self, directory: str) -> ThreadedDisk:
        """That of the directory."""
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
