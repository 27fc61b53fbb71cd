from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from kreplica._core.frame_reader import ReceiveBuffer
from kreplica._core.future_state import FutureState
from kreplica._core.task_queue import TaskQueue

class ClientCall:
    deadline: float
    def __init__(
        self, request: Any, kind: type[Any], encoded: Any, future: FutureState, *, is_answered: bool = True
    ) -> None: ...
    @property
    def request(self) -> Any: ...
    @property
    def kind(self) -> type[Any]: ...
    @property
    def encoded(self) -> Any: ...
    @property
    def future(self) -> Any: ...
    @property
    def number(self) -> int: ...
    def end(self, error: BaseException | None, response: Any = None) -> None: ...

class ClientConnection:
    socket: Any
    has_answered: bool
    used_at: float
    renews_at: float
    alarm_at: float
    def __init__(self, client_id: bytes, time: Callable[[], float]) -> None: ...
    @property
    def waiting(self) -> deque[ClientCall]: ...
    @property
    def in_flight(self) -> deque[ClientCall]: ...
    @property
    def load(self) -> int: ...
    @property
    def is_connected(self) -> bool: ...
    def send(self, call: ClientCall) -> None: ...
    def write(self, call: ClientCall) -> None: ...

class ClientSocket:
    bad_answer: ClassVar[type[Exception]]
    transport: Any
    is_closed: bool
    awaited: Any
    def __init__(
        self,
        connection: ClientConnection,
        tasks: TaskQueue,
        received: ReceiveBuffer,
        *,
        min_bytes: int,
        max_bytes: int,
    ) -> None: ...
    @property
    def connection(self) -> Any: ...
    def get_buffer(self, _size_hint: int) -> Any: ...
    def buffer_updated(self, nbytes: int) -> None: ...
