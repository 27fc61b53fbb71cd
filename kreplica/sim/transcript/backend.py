"""What a transcript needs of the cluster that it runs on: the simulated one, or one of real threads and
files.

`SimCluster` is the first; a script says nothing about which one it is. Times are milliseconds of the
cluster's own clock, which need not be the wall's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kreplica.common.future import Future
from kreplica.common.ports import Storage
from kreplica.sim.controller import ScriptedController

T = TypeVar("T")


class HeldMessage(Protocol):
    """A message that waits for the script to decide about it. `name`: "Fetch", for a request and its
    answer."""

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
    """A cluster that can be driven step by step. `is_real`: what is asked is done by real threads and
    files."""

    is_real: bool
    controller: ScriptedController

    @property
    def brokers(self) -> Mapping[int, object]:
        """By id, running or not."""
        ...

    # ---- brokers

    def add_broker(self, broker_id: int) -> object:
        """A new machine with an empty disk; it is not started."""
        ...

    def start(self, broker_id: int) -> None: ...

    def stop(self, broker_id: int) -> None: ...

    def kill(self, broker_id: int) -> None: ...

    def power_cut(self, broker_id: int, *, keeps_names: bool = False) -> None:
        """With `keeps_names`, names of files reach the disk though their contents do not."""
        ...

    def pause(self, broker_id: int) -> None: ...

    def resume(self, broker_id: int) -> None: ...

    def set_disk_fault(self, broker_id: int, fault: Callable[[str, str], None] | None) -> None:
        """Ask `fault(operation, path)` before each change of the broker's disk; it raises what is refused."""
        ...

    def disk(self, broker_id: int) -> tuple[Storage, str]:
        """The broker's files, and the directory that its logs are in; it may be down."""
        ...

    def program(self, broker_id: int) -> Any:
        """The Broker that runs there; None if it does not."""
        ...

    # ---- what happens

    def do(self, action: Callable[[], T]) -> T:
        """Call a broker's method, as something outside of it would."""
        ...

    def send(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send a client's request."""
        ...

    def settle(self) -> None:
        """Return when nothing is left to do that needs no time."""
        ...

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass, with all that happens in it."""
        ...

    def jump_date(self, broker_id: int, by_ms: int) -> None: ...

    def now_ms(self) -> int:
        """The monotonic time."""
        ...

    # ---- messages

    def hold(self, which: Callable[[HeldMessage], bool]) -> Callable[[], None]:
        """Hold such messages from now on; the answer is a function that ends this."""
        ...

    def held(self) -> Sequence[HeldMessage]:
        """The messages that are held, in the order they were sent."""
        ...

    def release(self, message: Any) -> None: ...

    def drop(self, message: Any) -> None: ...

    def cut(self, sender: int, receiver: int, *, both_ways: bool = True) -> None: ...

    def heal(self, sender: int, receiver: int) -> None: ...

    def heal_all(self) -> None: ...

    def disconnect(self, node_id: int) -> None: ...

    def close(self) -> None:
        """End its threads and close its files."""
        ...
