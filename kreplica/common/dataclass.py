"""dataclass, field, fields, replace: those of the standard library, with methods compiled on first use.

`dataclasses.dataclass` takes about 0.7 ms a class, nearly all of it for the source of methods that many
processes never call; importing `dataclasses` takes 7 ms. Here the decorator only makes the class, with slots.
A method is compiled when it is first used. To type checkers, and to the functions of `dataclasses`, these
classes are dataclasses.

Supported are `frozen`, `kw_only` and `eq`, the fields' `default`, `default_factory` and `metadata`, and
`__post_init__`. A dataclass cannot inherit from another one. Stateless; any thread may call. Threads that are
the first to use a method at the same time compile it twice, to the same effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

MISSING: Any = object()

if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, replace
else:

    def dataclass(*, slots, frozen=False, kw_only=False, eq=True):
        """Return a decorator that makes a class with slots whose methods are compiled on first use."""
        assert slots, "a class without slots is one for dataclasses.dataclass"
        return lambda declared: _made(declared, is_frozen=frozen, is_kw_only=kw_only, has_eq=eq)

    def field(*, default=MISSING, default_factory=MISSING, metadata=None):
        """Declare a field with more than a default."""
        return _Field(default, default_factory, metadata or {})

    def fields(kind):
        """Return the fields of a dataclass or of its instance, in order: their names and metadata."""
        return kind._declared

    def replace(instance, **changes):
        """Return a copy of the instance with other values in some fields."""
        return instance.__replace__(**changes)


__all__ = ["MISSING", "dataclass", "field", "fields", "replace"]


class _Field:
    __slots__ = ("default", "default_factory", "metadata", "name")
    name: str

    def __init__(self, default: Any, default_factory: Any, metadata: dict[str, Any]) -> None:
        self.default = default
        self.default_factory = default_factory
        self.metadata = metadata


class _Later:
    """A class attribute that is made from the class when it is first used."""

    __slots__ = ("_make", "_name", "_owner")

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, kind: type) -> Any:
        setattr(self._owner, self._name, self._make(self._owner))
        return getattr(kind if instance is None else instance, self._name)


def _made(declared: type, *, is_frozen: bool, is_kw_only: bool, has_eq: bool) -> type:
    body = dict(declared.__dict__)
    assert not any(hasattr(base, "_declared") for base in declared.__bases__), declared
    names = [name for name, kind in body.get("__annotations__", {}).items() if "ClassVar" not in kind]
    body["_declared"] = tuple(_field(name, body.pop(name, MISSING)) for name in names)
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body["__slots__"] = names
    body["__match_args__"] = () if is_kw_only else tuple(names)
    body["__dataclass_fields__"] = _Later(lambda made: vars(_standard(made))["__dataclass_fields__"])
    body["__dataclass_params__"] = _Later(lambda made: vars(_standard(made))["__dataclass_params__"])
    body["__replace__"] = _Later(_replace)
    body.setdefault("__init__", _Later(_init))
    body.setdefault("__repr__", _Later(_repr))
    if has_eq:
        body.setdefault("__eq__", _Later(_eq))
        body.setdefault("__hash__", _Later(_hash) if is_frozen else None)
    if is_frozen:
        body |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        body |= {"__getstate__": _values, "__setstate__": _set_values}
    return type(declared)(declared.__name__, declared.__bases__, body)


def _field(name: str, declared: Any) -> _Field:
    made = declared if isinstance(declared, _Field) else _Field(declared, MISSING, {})
    made.name = name
    return made


# ---- methods that all classes share ------------------------------------------------------------------------


def _refuse_set(_self: object, name: str, _value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: object, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _values(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in self._declared]


def _set_values(self: Any, values: list[Any]) -> None:
    for each, value in zip(self._declared, values, strict=True):
        object.__setattr__(self, each.name, value)


# ---- attributes that are made on first use -----------------------------------------------------------------


def _standard(owner: Any) -> type:
    """Return a dataclass of the standard library with what its functions look for: fields and parameters."""
    import dataclasses

    body: dict[str, Any] = {"__annotations__": owner.__annotations__, "__doc__": owner.__doc__}
    for each in owner._declared:
        given = {"default": each.default, "default_factory": each.default_factory}
        given = {name: value for name, value in given.items() if value is not MISSING}
        body[each.name] = dataclasses.field(metadata=each.metadata, kw_only=not owner.__match_args__, **given)
    template = type(owner.__name__, (), {"__module__": owner.__module__, **body})
    is_frozen = owner.__setattr__ is _refuse_set
    made = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False, frozen=is_frozen)
    return made(template)


def _init(owner: Any) -> Any:
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters = [] if owner.__match_args__ or not owner._declared else ["*"]
    steps = []
    for each in owner._declared:
        name = value = given = each.name
        if each.default_factory is not MISSING:
            scope[f"make_{name}"] = each.default_factory
            value, given = f"make_{name}() if {name} is MISSING else {name}", f"{name}=MISSING"
        elif each.default is not MISSING:
            scope[f"default_{name}"] = each.default
            given = f"{name}=default_{name}"
        parameters.append(given)
        if owner.__setattr__ is _refuse_set:
            scope[f"set_{name}"] = getattr(owner, name).__set__
            steps.append(f"set_{name}(self, {value})")
        else:
            steps.append(f"self.{name} = {value}")
    if hasattr(owner, "__post_init__"):
        steps.append("self.__post_init__()")
    return _compiled(owner, "__init__", parameters, "\n    ".join(steps), scope)


def _replace(owner: Any) -> Any:
    names = [each.name for each in owner._declared]
    parameters = ["*", *(f"{name}=MISSING" for name in names)] if names else []
    values = ", ".join(f"{name}=self.{name} if {name} is MISSING else {name}" for name in names)
    return _compiled(owner, "__replace__", parameters, f"return type(self)({values})", {"MISSING": MISSING})


def _repr(owner: Any) -> Any:
    shown = ", ".join(f"{each.name}={{self.{each.name}!r}}" for each in owner._declared)
    return _compiled(owner, "__repr__", [], f"return f'{{type(self).__qualname__}}({shown})'", {})


def _eq(owner: Any) -> Any:
    same = f"{_tuple('self', owner)} == {_tuple('other', owner)}"
    return _compiled(
        owner, "__eq__", ["other"], f"return {same} if type(other) is type(self) else NotImplemented", {}
    )


def _hash(owner: Any) -> Any:
    return _compiled(owner, "__hash__", [], f"return hash({_tuple('self', owner)})", {})


def _tuple(variable: str, owner: Any) -> str:
    return f"({''.join(f'{variable}.{each.name}, ' for each in owner._declared)})"


def _compiled(owner: type, name: str, parameters: list[str], body: str, scope: dict[str, Any]) -> Any:
    exec(f"def {name}({', '.join(['self', *parameters])}):\n    {body or 'pass'}\n", scope)
    made = scope[name]
    made.__module__, made.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    return made
