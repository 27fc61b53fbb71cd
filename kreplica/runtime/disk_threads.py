"""The disk threads of a node on an event loop: one per log directory, so that a slow disk delays no other.

`NodeDisks` belongs to one life of a node: `leave` ends its threads, and jobs that have not started are never
done. The threads, and the way of jobs to and from them, are native, see _core/disk_thread. Thread rule: any
thread may call `disk`; results are reported in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from kreplica._core.disk_thread import DiskThread, LoopDisk
from kreplica.common.locks import Lock
from kreplica.runtime.event_loop import NodeLoops


class ThreadedDisk(LoopDisk):
    """Implements `kreplica.common.ports.Disk` with a native thread that notifies the event loop."""

    def __init__(self, life: NodeLoops, checks: Executor) -> None:
        thread = DiskThread()
        super().__init__(thread, life, life.thread)
        self._life = life
        self._checks = checks
        self._loop = life.loop("checks")
        self.settle = thread.settle
        self.is_finished = thread.is_finished
        self.free = thread.free
        life.thread.post(self._watch)

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
        return self.thread.waiting_ms

    def stop(self) -> None:
        """End the thread after its current job."""
        self._life.thread.post(self._unwatch)
        self.thread.stop(at_once=True)

    def _watch(self) -> None:
        self._life.thread.loop.add_reader(self.thread.fileno(), self.take)

    def _unwatch(self) -> None:
        self._life.thread.loop.remove_reader(self.thread.fileno())


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
