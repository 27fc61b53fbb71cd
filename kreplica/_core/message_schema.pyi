from collections.abc import Callable, Sequence
from typing import Any

KINDS: dict[str, int]
MOST_TAGS: int

class MessageSchema:
    entity: type[Any]
    is_flexible: bool
    def __new__(
        cls,
        entity: type[Any],
        is_flexible: bool,
        fields: list[tuple[Any, ...]],
        absent: Sequence[tuple[str, Any]] = (),
        refuse: Callable[[str], BaseException] | None = None,
        make_unknown: Callable[[int, bytes], Any] | None = None,
    ) -> MessageSchema: ...
