"""Settings: dataclasses whose fields are Kafka's properties, each with its type, range and description.

A field has the name of its property with underscores for dots: `segment_bytes` is `segment.bytes`; both names
are accepted wherever settings come in. Values come as Python values or as text, as Kafka's tools send them.
docs/SETTINGS.md is generated from these fields. No state; any thread.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kreplica.common.errors import InvalidConfig
from kreplica.common.types import INT16_MAX, INT32_MAX, INT64_MAX

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_PLAIN = re.compile(r"[!-~]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values with its range, as Kafka's ConfigDef has them.

    `type`: ConfigDef's name of it. `valid`: the range in words. `parse(value)` returns the field's value;
    ValueError's text completes "name=value ...".
    """

    type: str
    valid: str
    parse: Callable[[object], Any]


def int16(least: int, most: int = INT16_MAX) -> Kind:
    """A `short` in a range."""
    return _integer("short", least, most, INT16_MAX)


def int32(least: int, most: int = INT32_MAX, also: int | None = None) -> Kind:
    """An `int` in a range; `also`: a value besides that stands for something else."""
    return _integer("int", least, most, INT32_MAX, also)


def int64(least: int, most: int = INT64_MAX, also: int | None = None) -> Kind:
    """A `long` in a range; `also`: a value besides that stands for something else."""
    return _integer("long", least, most, INT64_MAX, also)


def number(least: float, most: float = math.inf, *, above: bool = False) -> Kind:
    """A `double` in a range; `above`: the least is itself out of it."""

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
    # A file in TOML may have a name that is a number.
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ValueError("is not text")
    return str(value).strip()


BOOLEAN = Kind("boolean", "true or false", _parse_boolean)
TEXT = Kind("string", "any text", _parse_text)


def one_of(choices: Iterable[str]) -> Kind:
    """A `string` that is one of these."""
    known = tuple(choices)

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip() not in known:
            raise ValueError(f"is not one of {', '.join(known)}")
        return value.strip()

    return Kind("string", ", ".join(known), parse)


def list_of(valid: str, is_valid: Callable[[list[str]], bool]) -> Kind:
    """A `list` for which `is_valid(words)`; given as one text with commas, or as the items."""

    def parse(value: object) -> tuple[str, ...]:
        found = words(value)
        if not is_valid(found):
            raise ValueError(f"is not {valid}")
        return tuple(found)

    return Kind("list", valid, parse)


def optional(kind: Kind) -> Kind:
    """The kind, or None: Kafka's null, which is the default and cannot be given as text."""

    def parse(value: object) -> Any:
        return None if value is None else kind.parse(value)

    return Kind(kind.type, kind.valid, parse)


def words(value: object) -> list[str]:
    """The items of a list, given as one text with commas or as the items; each once, in the order given."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Iterable):
        raise ValueError("is not a list")
    found = [str(item).strip() for item in items]
    return list(dict.fromkeys(word for word in found if word))


def setting(default: object, kind: Kind, doc: str, *, is_ours: bool = False) -> Any:
    """A field of Settings. `is_ours`: Kafka has no such property."""
    return dataclasses.field(default=default, metadata={"kind": kind, "doc": doc, "is_ours": is_ours})


def checked(name: str, value: object, kind: Kind) -> Any:
    """The value as its field has it. Raises InvalidConfig, which gives the name, the value and the range."""
    try:
        return kind.parse(value)
    except ValueError as error:
        raise InvalidConfig(f"{name}={_shown(value)} {error}") from None


class Settings:
    """The base of frozen dataclasses of settings. Raises InvalidConfig for a value out of its range and for
    two that contradict each other, however the object is made.

    PREFIX: what stands before the field's name in the property's, where the field begins with PREFIX_OF.
    """

    __slots__ = ()
    PREFIX: ClassVar[str] = ""
    PREFIX_OF: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            parsed = checked(self.property_name(field.name), value, field.metadata["kind"])
            object.__setattr__(self, field.name, parsed)
        self.check_together()

    def check_together(self) -> None:
        """Raises InvalidConfig where two settings, each in its range, contradict each other."""

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """The defaults with `settings` over them; InvalidConfig names the one nearest to an unknown one."""
        return cls().replace(settings)

    @classmethod
    def normalized(cls, settings: Mapping[str, object]) -> dict[str, str]:
        """`settings` alone, under Kafka's names and as text that `parse` reads back. Raises InvalidConfig."""
        texts = cls.parse(settings).properties()
        names = [cls.property_name(cls._field_name(name)) for name in settings]
        return {name: texts[name] for name in names if name in texts}

    def replace(self, settings: Mapping[str, object]) -> Self:
        """This configuration with `settings` over it, checked as `parse` does."""
        changes: dict[str, Any] = {}
        for name, value in settings.items():
            field_name = self._field_name(name)
            if field_name in changes:
                raise InvalidConfig(f"{self.property_name(field_name)} is given twice")
            changes[field_name] = value
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def properties(self) -> dict[str, str]:
        """Every setting under Kafka's name, as text that `parse` reads back; none that is None."""
        values = {name: getattr(self, field) for name, field in _fields_by_name(type(self)).items()}
        return {name: as_text(value) for name, value in values.items() if value is not None}

    def overrides(self) -> dict[str, str]:
        """The settings that differ from the defaults, as `properties` gives them."""
        defaults = type(self)().properties()
        return {name: text for name, text in self.properties().items() if text != defaults.get(name)}

    @classmethod
    def property_name(cls, field_name: str) -> str:
        """Kafka's name of a field."""
        prefix = cls.PREFIX if field_name.startswith(cls.PREFIX_OF) else ""
        return prefix + field_name.replace("_", ".")

    @classmethod
    def property_names(cls) -> frozenset[str]:
        """Kafka's names of all fields."""
        return frozenset(_fields_by_name(cls))

    @classmethod
    def _field_name(cls, name: str) -> str:
        """The field that a property's dotted name or a field's own name means."""
        by_name = _fields_by_name(cls)
        if name in by_name:
            return by_name[name]
        if name in by_name.values():
            return name
        dotted = "." in name or "_" not in name
        known = list(by_name) if dotted else list(by_name.values())
        nearest = difflib.get_close_matches(name[:80], known, n=1)
        hint = "".join(f"; the nearest is {near!r}" for near in nearest)
        raise InvalidConfig(f"there is no setting {name[:80]!r}{hint}")


def _fields_by_name(settings: type[Settings]) -> dict[str, str]:
    fields = dataclasses.fields(settings)  # type: ignore[arg-type]
    return {settings.property_name(field.name): field.name for field in fields}


def as_text(value: object) -> str:
    """A setting's value as its kind reads it back."""
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
    """The value as a message may carry it: short, and without writing out a huge number."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str) and _PLAIN.fullmatch(value.strip()):
        return value.strip()
    return reprlib.repr(value)
