"""Small files that hold one JSON object, parsed strictly."""

from __future__ import annotations

import json

from kreplica.common.errors import InvalidFile


def parse_object(data: bytes, path: str) -> dict[str, object]:
    """Parse a file that holds one JSON object. Raises InvalidFile otherwise, and for a repeated name."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"{path}: is not a JSON object: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise InvalidFile(f"{path}: is not a JSON object")
    return value


def integer(fields: dict[str, object], name: str, least: int, most: int, path: str) -> int:
    """Return the integer field `name`. Raises InvalidFile if it is missing, not one, or out of range."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidFile(f"{path}: {name} is not an integer from {least} to {most}")
    return value


def string(fields: dict[str, object], name: str, path: str) -> str:
    """Return the string field `name`. Raises InvalidFile if it is missing or not a string."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidFile(f"{path}: {name} is not a string")
    return value


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is repeated")
    return fields
