"""The cluster that a transcript runs on: the simulated one, or one of real threads and files.

A script does not depend on which one it is; `SimCluster` is the simulated one. Times are milliseconds of the
cluster's own clock, which need not be the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kreplica.common.future import Future
from kreplica.common.ports import Storage
from kreplica.sim.controller import ScriptedController

T = TypeVar("T")


class HeldMessage(Protocol):
    """A held message, which waits for the script. `name`: "Fetch" for both its request and its response."""

    @property
    def sender_id(self) -> int: ...

    @property
    def receiver(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def is_request(self) -> bool: ...

    @property
    def body(self) -> Any: ...


class Backend(Protocol):
    """A cluster that can be driven step by step. `is_real`: whether real threads and files do the work."""

    is_real: bool
    controller: ScriptedController

    @property
    def brokers(self) -> Mapping[int, object]:
        """All brokers by id, running or not."""
        ...

    # ---- brokers

    def add_broker(self, broker_id: int) -> object:
        """Add a machine with an empty disk, without starting it."""
        ...

    def start(self, broker_id: int) -> None: ...

    def stop(self, broker_id: int) -> None: ...

    def kill(self, broker_id: int) -> None: ...

    def power_cut(self, broker_id: int, *, keeps_names: bool = False) -> None:
        """Cut the power. With `keeps_names`, file names reach the disk although their contents do not."""
        ...

    def pause(self, broker_id: int) -> None: ...

    def resume(self, broker_id: int) -> None: ...

    def set_disk_fault(self, broker_id: int, fault: Callable[[str, str], None] | None) -> None:
        """Call `fault(operation, path)` before each change of the broker's disk; it raises to refuse the
        change."""
        ...

    def disk(self, broker_id: int) -> tuple[Storage, str]:
        """Return the broker's files and the directory of its logs; it may be down."""
        ...

    def program(self, broker_id: int) -> Any:
        """Return the Broker that runs there, None if none does."""
        ...

    # ---- events

    def do(self, action: Callable[[], T]) -> T:
        """Call a broker's method from outside."""
        ...

    def send(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send a request as a client."""
        ...

    def settle(self) -> None:
        """Wait until nothing is left to do that needs no time."""
        ...

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass, and run what happens in it."""
        ...

    def jump_date(self, broker_id: int, by_ms: int) -> None: ...

    def now_ms(self) -> int:
        """Return the monotonic time."""
        ...

    # ---- messages

    def hold(self, which: Callable[[HeldMessage], bool]) -> Callable[[], None]:
        """Hold matching messages from now on; returns a function that ends this."""
        ...

    def held(self) -> Sequence[HeldMessage]:
        """Return the held messages, in the order they were sent."""
        ...

    def release(self, message: Any) -> None: ...

    def drop(self, message: Any) -> None: ...

    def cut(self, sender: int, receiver: int, *, both_ways: bool = True) -> None: ...

    def heal(self, sender: int, receiver: int) -> None: ...

    def heal_all(self) -> None: ...

    def disconnect(self, node_id: int) -> None: ...

    def close(self) -> None:
        """End the cluster's threads and close its files."""
        ...
