from collections.abc import Callable

PERCENT_OF_NS: float

class RateBucket:
    quota: float
    is_gone: bool
    def __init__(
        self, samples: int, window_ms: int, quota: float, most_throttle_ms: int | None = None
    ) -> None: ...
    @property
    def used_ms(self) -> int: ...
    @property
    def burst(self) -> float: ...
    def rate(self, now_ms: int) -> float: ...
    def note(self, value: float, now_ms: int) -> None: ...
    def charge(self, value: float, now_ms: int) -> int: ...
    def take(self, value: float, now_ms: int) -> tuple[bool, int]: ...

class ClientAccount:
    def __init__(
        self,
        monotonic_ns: Callable[[], int],
        produced: RateBucket | None,
        fetched: RateBucket | None,
        time: RateBucket | None,
    ) -> None: ...
