"""Small files that hold one JSON object, read with every doubt resolved against the file."""

from __future__ import annotations

import json

from kreplica.common.errors import InvalidFile


def parse_object(data: bytes, path: str) -> dict[str, object]:
    """The one JSON object in a file; InvalidFile for anything else, and for a name that comes twice in it."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"{path}: is no JSON object: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise InvalidFile(f"{path}: is no JSON object")
    return value


def integer(fields: dict[str, object], name: str, least: int, most: int, path: str) -> int:
    """The integer `name` of an object, in its range; InvalidFile if it is missing or anything else."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidFile(f"{path}: {name} is no integer from {least} to {most}")
    return value


def string(fields: dict[str, object], name: str, path: str) -> str:
    """The string `name` of an object; InvalidFile if it is missing or anything else."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidFile(f"{path}: {name} is no string")
    return value


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name comes twice")
    return fields
