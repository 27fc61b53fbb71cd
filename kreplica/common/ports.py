"""Ports: what the code below runtime/ and sim/ is given instead of taking it from the machine by itself.

Nothing in record/, log/, replica/, raft/, controller/ or broker/ reads the time, draws a random number, opens
a file or starts a thread: it gets a Clock, a Random, a Storage, a Scheduler as constructor arguments.
runtime/ has the real ones, sim/ the ones that a test drives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kreplica._core.disk_thread import DiskJob, Lane
from kreplica._core.region import Region
from kreplica.common.future import Future


class Clock(Protocol):
    """Two clocks, as every machine has: one that tells the date, one that only goes forward."""

    def time_ms(self) -> int:
        """Milliseconds since 1970. May go back."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment. Never goes back."""
        ...


class Random(Protocol):
    """Random numbers; `random.SystemRandom` and, with a seed, `random.Random` have these methods."""

    def randbytes(self, n: int) -> bytes:
        """`n` random bytes."""
        ...

    def randrange(self, stop: int, /) -> int:
        """A random integer from 0 to stop - 1."""
        ...

    def random(self) -> float:
        """A random number in [0, 1)."""
        ...


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Runs functions later; they must not block."""

    def schedule(
        self, name: str, task: Callable[[], None], delay_ms: int, period_ms: int | None = None
    ) -> Cancellable:
        """Run `task` after `delay_ms`, then every `period_ms` if that is given."""
        ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Storage(Protocol):
    """Files and directories. Every method raises KafkaStorageError (or a subclass) when the system refuses.

    Durability is explicit: bytes of a region last after `Region.flush`, the existence or the name of a file
    only after `sync_directory` of its parent.
    """

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """The file at `path` as a Region; `capacity` is the largest length it may grow to, in bytes."""
        ...

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """The whole file; InvalidFile if larger than `limit` bytes."""
        ...

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        """Write to path + '.tmp', flush it, rename it over `path`, and flush the directory.

        `flush_name`: False where the caller flushes the directory, once for several files.
        """
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Create or replace the file; nothing is flushed."""
        ...

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Write at byte `position` of the file, which is created if missing; nothing is flushed.

        After an error the bytes from `position` on are undefined, and the file is no longer than it was; the
        same call may be made again.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Flush the file's contents (fsync); its name needs `sync_directory`. Never retry a failed one."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def free_bytes(self, path: str) -> int:
        """What the file system of this file or directory has left; a quota may allow less."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in the directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents; nothing happens if it is there."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens if it is gone already."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def lock_directory(self, path: str, *, shared: bool = False) -> DirectoryLock:
        """Take the directory for one writer (Kafka's file '.lock'); raises LogDirLocked if it is taken.

        `shared`: together with others who take it so; none of them is the one writer.
        """
        ...

    def is_directory(self, path: str) -> bool: ...

    def is_locked(self, path: str) -> bool:
        """Whether another process holds the directory's lock; asks without taking it."""
        ...

    def boot_id(self) -> str:
        """What changes when the machine is started anew: files written since then cannot have lost pages."""
        ...

    def process_id(self) -> int: ...


class Workers(Protocol):
    """Does independent pieces of work, at the same time where the machine has the cores for it."""

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Do all tasks; returns when the last one is done. Raises what the first failing one raised, then."""
        ...


class Disk(Protocol):
    """Does the work of a disk for the loops of a node, job by job, in a thread that never holds them up.

    The jobs of a Lane build on each other: where one is not done (its status is not 0), those behind it come
    back held, having done nothing, until `free`.
    """

    def submit(
        self,
        job: DiskJob,
        done: Callable[[DiskJob], object],
        lane: Lane | None = None,
        *,
        lazily: bool = False,
    ) -> None:
        """Have the job done after those before it; then `done(job)` is called in the node's loop.

        `lazily`: within some ms will do, after jobs that come later.
        """
        ...

    def settle(self, lane: Lane) -> None:
        """Wait until no job of the lane is under way; who submitted them may not have heard yet."""
        ...

    def is_finished(self, job: DiskJob) -> bool:
        """Whether the job is done, or held, though who submitted it may not have heard yet."""
        ...

    def free(self, lane: Lane) -> None:
        """Do the jobs of a held lane again; none is under way."""
        ...

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> None:
        """Run a task that takes the processor and not the disk where no loop waits for it; then `done()` is
        called in the node's loop. The task does not raise."""
        ...

    @property
    def waiting_ms(self) -> float:
        """For how long the oldest job that is not done has been waiting; 0 where there is none."""
        ...


class Loop(Protocol):
    """What runs the steps of one object (a fetcher, a manager of requests), in the order they were posted.

    Two tasks of one loop never run at once, and none runs inside `post`. So what belongs to a loop alone
    needs no lock.
    """

    def post(self, task: Callable[[], None]) -> None:
        """Run `task` soon."""
        ...

    def post_later(self, task: Callable[[], None], delay_ms: int) -> Cancellable:
        """Run `task` in this loop after `delay_ms`."""
        ...

    def about_to_wait(self) -> None:
        """The loop's task is going to wait for the disk: whoever else can may run other loops meanwhile.

        Only a hint, for tasks of which somebody waits for several that wait so.
        """
        ...


class Transport(Protocol):
    """Carries requests to other nodes, and their answers back: entities of the package kio.

    In process the entities themselves are handed over; a field of records is then a pinned slice of the
    sender's log, or anything with its buffer interface.
    """

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request` to the node; the future gets the response entity.

        It fails with NetworkException when the node cannot be reached, the connection is lost, or no answer
        has come within `timeout_ms`; then the request may have been carried out or not. Requests of one
        sender to one node arrive in the order they were sent. What follows is left to the future's callback,
        which should do no more than post to a Loop.
        """
        ...

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when a connection from or to that node closes.

        That is a hint that the node died, and no proof; and one that died with its machine, or behind a cut
        network, closes nothing. The listener should do no more than post to a Loop.
        """
        ...
