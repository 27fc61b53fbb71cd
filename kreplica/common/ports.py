"""Ports: interfaces to the machine that code below runtime/ and sim/ gets as constructor arguments.

record/, log/, replica/, raft/, controller/ and broker/ do not read the time, draw random numbers, open files
or start threads themselves: they get a Clock, Random, Storage or Scheduler. runtime/ implements these for the
real machine; sim/ implements them under a test's control.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kreplica._core.disk_thread import DiskJob, Lane
from kreplica._core.region import Region
from kreplica.common.future import Future

NANOSECONDS_PER_MS = 1_000_000


class Clock(Protocol):
    """A wall clock and a monotonic clock."""

    def time_ms(self) -> int:
        """Return milliseconds since 1970. May go back."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary moment. Never goes back."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Return whole milliseconds of the monotonic clock."""
    return clock.monotonic_ns() // NANOSECONDS_PER_MS


class Random(Protocol):
    """Random numbers, with the methods of `random.SystemRandom` and of a seeded `random.Random`."""

    def randbytes(self, n: int) -> bytes:
        """Return `n` random bytes."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a random integer from 0 to stop - 1."""
        ...

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        ...


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Runs tasks later. Tasks must not block."""

    def schedule(
        self, name: str, task: Callable[[], None], delay_ms: int, period_ms: int | None = None
    ) -> Cancellable:
        """Run `task` after `delay_ms`, then every `period_ms` if that is given."""
        ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Storage(Protocol):
    """Files and directories. Every method raises KafkaStorageError (or a subclass) if the operation fails.

    Durability is explicit: the bytes of a region are durable after `Region.flush`; a file's existence and
    name after `sync_directory` of its parent.
    """

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """Open the file at `path` as a Region that may grow to `capacity` bytes."""
        ...

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """Return the file's contents. Raises InvalidFile if it is larger than `limit` bytes."""
        ...

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        """Write to path + '.tmp', flush it, rename it to `path`, and flush the directory.

        `flush_name=False`: the caller flushes the directory, once for several files.
        """
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Create or replace the file, without flushing it."""
        ...

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Write at byte `position` of the file without flushing; create the file if it is missing.

        After an error the bytes from `position` on are undefined and the file is not longer than before. The
        call may be retried.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Flush the file's contents (fsync); its name needs `sync_directory`. Never retry a failed flush."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def free_bytes(self, path: str) -> int:
        """Return the free bytes of the file system at this path; a quota may allow less."""
        ...

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system at this path."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents; do nothing if it exists."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; do nothing if it does not exist."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def lock_directory(self, path: str, *, shared: bool = False) -> DirectoryLock:
        """Lock the directory for one writer (Kafka's file '.lock'). Raises LogDirLocked if it is locked.

        `shared`: hold it together with other shared holders; no exclusive holder can lock it meanwhile.
        """
        ...

    def is_directory(self, path: str) -> bool: ...

    def is_locked(self, path: str) -> bool:
        """Whether another process holds the directory's lock; does not take it."""
        ...

    def boot_id(self) -> str:
        """Return an id that changes at each boot; files written since the boot cannot have lost pages."""
        ...

    def process_id(self) -> int: ...


class Workers(Protocol):
    """Runs independent tasks, in parallel where the machine has the cores."""

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks. When the last one is done, raises the error of the first one that failed."""
        ...


class Disk(Protocol):
    """Does disk work for a node's loops, job by job in a separate thread, so that no loop waits for it.

    `append_queue.InlineDisk` does it in the caller's turn instead.

    The jobs of a Lane build on each other. If one is not done (its status is not 0), the jobs behind it come
    back held and undone, until `free`.
    """

    def submit(
        self,
        job: DiskJob,
        done: Callable[[DiskJob], object],
        lane: Lane | None = None,
        *,
        lazily: bool = False,
    ) -> bool:
        """Queue the job behind earlier ones; when it is done, call `done(job)` in the node's loop.

        Returns True if the caller's turn was used to do it: it is done, and `done` is not called. `lazily`:
        it may be delayed by some ms and overtaken by later jobs.
        """
        ...

    def settle(self, lane: Lane) -> None:
        """Wait until no job of the lane is running; their `done` callbacks may still be pending."""
        ...

    def is_finished(self, job: DiskJob) -> bool:
        """Whether the job is done or held, even if its `done` callback is still pending."""
        ...

    def free(self, lane: Lane) -> None:
        """Accept jobs of a held lane again; no job of it is running."""
        ...

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> bool:
        """Run a CPU-bound task off the loops, then call `done()` in the node's loop. It must not raise.

        Returns True if it ran in the caller's turn; `done` is not called then.
        """
        ...

    @property
    def waiting_ms(self) -> float:
        """How long the oldest unfinished job has been waiting, in ms; 0 if there is no such job."""
        ...


class Loop(Protocol):
    """Runs the tasks of one object (a fetcher, a request manager) in the order they were posted.

    Two tasks of one loop never run at the same time, and none runs inside `post`. So state that only one loop
    uses needs no lock.
    """

    def post(self, task: Callable[[], None]) -> None:
        """Run `task` soon."""
        ...

    def post_later(self, task: Callable[[], None], delay_ms: int) -> Cancellable:
        """Run `task` in this loop after `delay_ms`."""
        ...

    def about_to_wait(self) -> None:
        """Announce that the current task will wait for the disk, so that idle threads may run other loops.

        Only a hint, for operations that wait for several such tasks.
        """
        ...


class Transport(Protocol):
    """Carries requests to other nodes and returns their responses, as messages.

    In one process the entities themselves are passed; a field of records is then a pinned slice of the
    sender's log, or another object with the buffer interface.
    """

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request` to the node; the future gets the response entity, or what an EncodedRequest reads.

        It fails with NetworkException if the node cannot be reached, the connection is lost, or no response
        arrives within `timeout_ms`; the request may then have been carried out or not. Requests from one
        sender to one node arrive in order. The future's callback should only post to a Loop.
        """
        ...

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when a connection from or to that node closes.

        This is a hint that the node died, not a proof. A node that dies with its machine, or behind a network
        partition, closes no connection. The listener should only post to a Loop.
        """
        ...
