"""Settings: dataclasses whose fields are Kafka's properties, each with its type, range and description.

A field has its property's name with underscores for dots: `segment_bytes` is `segment.bytes`. Both names are
accepted wherever settings are given. Values may be Python values or text, as Kafka's tools send them.
docs/SETTINGS.md is generated from these fields. Stateless; any thread may call.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

from kreplica.common.dataclass import dataclass, field, fields, replace
from kreplica.common.errors import InvalidConfig
from kreplica.common.types import INT16_MAX, INT32_MAX, INT64_MAX

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_PLAIN = re.compile(r"[!-~]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """A value type with its range, like the types of Kafka's ConfigDef.

    `type`: ConfigDef's name for it. `valid`: a description of the range. `parse(value)` returns the field's
    value or raises ValueError with a text that completes "name=value ...".
    """

    type: str
    valid: str
    parse: Callable[[object], Any]


def int16(least: int, most: int = INT16_MAX) -> Kind:
    """Return the kind of a `short` in a range."""
    return _integer("short", least, most, INT16_MAX)


def int32(least: int, most: int = INT32_MAX, also: int | None = None) -> Kind:
    """Return the kind of an `int` in a range; `also`: one more allowed value, with a special meaning."""
    return _integer("int", least, most, INT32_MAX, also)


def int64(least: int, most: int = INT64_MAX, also: int | None = None) -> Kind:
    """Return the kind of a `long` in a range; `also`: one more allowed value, with a special meaning."""
    return _integer("long", least, most, INT64_MAX, also)


def number(least: float, most: float = math.inf, *, above: bool = False) -> Kind:
    """Return the kind of a `double` in a range; `above` excludes `least` itself."""

    def parse(value: object) -> float:
        try:
            parsed = float(value) if _is_number(value) else math.nan  # type: ignore[arg-type]
        except (ValueError, OverflowError):
            parsed = math.nan
        if math.isnan(parsed):
            raise ValueError("is not a number")
        if parsed < least or (above and parsed == least):
            raise ValueError(f"is not above {least:g}" if above else f"is below the minimum of {least:g}")
        if parsed > most:
            raise ValueError(f"is above the maximum of {most:g}")
        return parsed

    valid = f"above {least:g}" if above else f"{least:g} or more"
    return Kind("double", valid if most == math.inf else f"{least:g} to {most:g}", parse)


def _parse_boolean(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("is not true or false")
    return value


def _parse_text(value: object) -> str:
    # A TOML file may contain a name that is a number.
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ValueError("is not text")
    return str(value).strip()


BOOLEAN = Kind("boolean", "true or false", _parse_boolean)
TEXT = Kind("string", "any text", _parse_text)


def one_of(choices: Iterable[str]) -> Kind:
    """Return the kind of a `string` with these possible values."""
    known = tuple(choices)

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip() not in known:
            raise ValueError(f"is not one of {', '.join(each or 'nothing' for each in known)}")
        return value.strip()

    return Kind("string", ", ".join(known), parse)


def list_of(valid: str, is_valid: Callable[[list[str]], bool]) -> Kind:
    """Return the kind of a `list` checked by `is_valid(words)`; given as comma-separated text or items."""

    def parse(value: object) -> tuple[str, ...]:
        found = words(value)
        if not is_valid(found):
            raise ValueError(f"is not {valid}")
        return tuple(found)

    return Kind("list", valid, parse)


def optional(kind: Kind) -> Kind:
    """Return a kind that also allows None (Kafka's null), the default; None cannot be given as text."""

    def parse(value: object) -> Any:
        return None if value is None else kind.parse(value)

    return Kind(kind.type, kind.valid, parse)


def words(value: object) -> list[str]:
    """Split a list given as comma-separated text or as items; drop duplicates, keep the order."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Iterable):
        raise ValueError("is not a list")
    found = [str(item).strip() for item in items]
    return list(dict.fromkeys(word for word in found if word))


def setting(default: object, kind: Kind, doc: str, *, is_ours: bool = False) -> Any:
    """Declare a field of Settings. `is_ours`: Kafka has no such property."""
    return field(default=default, metadata={"kind": kind, "doc": doc, "is_ours": is_ours})


def checked(name: str, value: object, kind: Kind) -> Any:
    """Return the parsed value. Raises InvalidConfig with the name, the value and the range."""
    try:
        return kind.parse(value)
    except ValueError as error:
        raise InvalidConfig(f"{name}={_shown(value)} {error}") from None


class Settings:
    """Base class of frozen settings dataclasses. The constructor checks every value.

    Raises InvalidConfig for a value out of range and for values that contradict each other. PREFIX: the part
    of a property's name before its field's name, for fields that start with PREFIX_OF.
    """

    __slots__ = ()
    PREFIX: ClassVar[str] = ""
    PREFIX_OF: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, field_name, kind in _declared(type(self)):
            object.__setattr__(self, field_name, checked(name, getattr(self, field_name), kind))
        self.check_together()

    def check_together(self) -> None:
        """Raises InvalidConfig if two settings, each in its range, contradict each other."""

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """Return the defaults overridden by `settings`. Raises InvalidConfig."""
        return cls(**cls._changes(settings))

    @classmethod
    def normalized(cls, settings: Mapping[str, object]) -> dict[str, str]:
        """Return `settings` under Kafka's names, as text that `parse` accepts. Raises InvalidConfig."""
        texts = cls.parse(settings).properties()
        names = [cls.property_name(cls._field_name(name)) for name in settings]
        return {name: texts[name] for name in names if name in texts}

    def replace(self, settings: Mapping[str, object]) -> Self:
        """Return a copy with `settings` replaced, checked as `parse` does."""
        return replace(self, **self._changes(settings))  # type: ignore[type-var]

    def properties(self) -> dict[str, str]:
        """Return every setting that is not None under Kafka's name, as text that `parse` accepts."""
        values = {name: getattr(self, field) for name, field in _fields_by_name(type(self)).items()}
        return {name: as_text(value) for name, value in values.items() if value is not None}

    def overrides(self) -> dict[str, str]:
        """Return the settings that differ from the defaults, as `properties` does."""
        defaults = type(self)().properties()
        return {name: text for name, text in self.properties().items() if text != defaults.get(name)}

    @classmethod
    def property_name(cls, field_name: str) -> str:
        """Return Kafka's name of a field."""
        prefix = cls.PREFIX if field_name.startswith(cls.PREFIX_OF) else ""
        return prefix + field_name.replace("_", ".")

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """Return Kafka's names of all fields."""
        return frozenset(_fields_by_name(cls))

    @classmethod
    def _changes(cls, settings: Mapping[str, object]) -> dict[str, Any]:
        """Return the values by the field that each name means. Raises InvalidConfig."""
        changes: dict[str, Any] = {}
        for name, value in settings.items():
            field_name = cls._field_name(name)
            if field_name in changes:
                raise InvalidConfig(f"{cls.property_name(field_name)} is given twice")
            changes[field_name] = value
        return changes

    @classmethod
    def _field_name(cls, name: str) -> str:
        """Return the field that `name` means: a property's dotted name or a field's own name."""
        by_name = _fields_by_name(cls)
        if name in by_name:
            return by_name[name]
        if name in by_name.values():
            return name
        dotted = "." in name or "_" not in name
        known = list(by_name) if dotted else list(by_name.values())
        hint = "".join(f"; the nearest is {near!r}" for near in nearest(name[:80], known))
        raise InvalidConfig(f"there is no setting {name[:80]!r}{hint}")


# By class.
_DECLARED: dict[type[Settings], list[tuple[str, str, Kind]]] = {}
_FIELDS_BY_NAME: dict[type[Settings], dict[str, str]] = {}


def _declared(settings: type[Settings]) -> list[tuple[str, str, Kind]]:
    """Return the name of each property, its field and its kind."""
    known = _DECLARED.get(settings)
    if known is None:
        declared = fields(settings)  # type: ignore[arg-type]
        known = _DECLARED[settings] = [
            (settings.property_name(each.name), each.name, each.metadata["kind"]) for each in declared
        ]
    return known


def _fields_by_name(settings: type[Settings]) -> dict[str, str]:
    known = _FIELDS_BY_NAME.get(settings)
    if known is None:
        declared = _declared(settings)
        known = _FIELDS_BY_NAME[settings] = {name: field_name for name, field_name, _ in declared}
    return known


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known name that is most similar to an unknown one, if any is similar."""
    import difflib  # only for messages

    return difflib.get_close_matches(name, sorted(known), n=1)


def as_text(value: object) -> str:
    """Format a setting's value as text that its kind parses."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (tuple, frozenset)) else str(value)


def _integer(kind: str, least: int, most: int, most_of_kind: int, also: int | None = None) -> Kind:
    or_also = "" if also is None else f" or {also}"

    def parse(value: object) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("is not an integer")
        if value != also and value < least:
            raise ValueError(f"is below the minimum of {least:,}{or_also and f', and not{or_also[3:]}'}")
        if value != also and value > most:
            raise ValueError(f"is above the maximum of {most:,}")
        return value

    valid = f"{least:,} or more" if most == most_of_kind else f"{least:,} to {most:,}"
    return Kind(kind, valid + or_also, parse)


def _is_number(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """Return the value for an error message: short, and without printing a huge number."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str) and _PLAIN.fullmatch(value.strip()):
        return value.strip()
    return reprlib.repr(value)
