from typing import Any

KINDS: dict[str, int]
MOST_TAGS: int

class MessageSchema:
    entity: type[Any]
    is_flexible: bool
    def __new__(
        cls, entity: type[Any], is_flexible: bool, fields: list[tuple[Any, ...]]
    ) -> MessageSchema: ...
