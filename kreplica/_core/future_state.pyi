from collections.abc import Callable, Iterable
from typing import Any

PENDING: str
CANCELLED: str
FINISHED: str

# The methods that concurrent.futures.Future has, too, are typed there.
class FutureState:
    _state: str
    _result: Any
    _exception: BaseException | None
    _callbacks: list[Callable[[Any], object]] | None
    _changed: Any
    _seen_by: list[Any] | None
    is_read: bool
    def __init__(self, prepared: Any = None) -> None: ...
    def prepare(self, result: Any) -> None: ...
    def finish(self) -> bool: ...
    def _resolve(self, state: str) -> bool: ...
    def _notify(self, callbacks: list[Callable[[Any], object]] | None) -> None: ...

def finish_states(futures: Iterable[Any]) -> list[tuple[Any, list[Callable[[Any], object]] | None]]: ...
def pass_on(answer: FutureState, done: FutureState) -> None: ...

class Then:
    def __init__(
        self,
        answer: FutureState,
        make: Callable[[Any], object],
        refuse: Callable[[BaseException], object] | None,
    ) -> None: ...
    def __call__(self, done: FutureState) -> None: ...

class Gathering:
    def __init__(self, parts: list[Any], whole: FutureState) -> None: ...
    def __call__(self, _done: FutureState) -> None: ...
