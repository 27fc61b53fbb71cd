"""Options and arguments that several subcommands of `kreplica` have. No state.

The command line comes before the environment, and that before the profile in use.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


class Chosen(NamedTuple):
    """The profile and the file of properties that were chosen, and whether on the command line.

    It is the `obj` of the outermost context.
    """

    profile: str | None
    command_config: str | None
    is_profile_given: bool
    is_config_given: bool


def is_given(context: typer.Context, name: str, *sources: str) -> bool:
    """Return whether the parameter is on the command line, or from another of these sources of click's."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", *sources)


def _servers(context: typer.Context, value: str) -> str:
    """Return the servers of a command, and let its connections log in as their profile says."""
    chosen: Chosen = context.find_root().obj
    before_profile = () if chosen.is_profile_given else ("ENVIRONMENT",)
    if is_given(context, "bootstrap", *before_profile):
        return value
    from kreplica.cli.profiles import read_profiles

    known = read_profiles()
    name = known.current if chosen.profile is None else chosen.profile
    if not name:
        return value
    found = known.get(name)
    has_config = chosen.is_config_given or (chosen.command_config and not chosen.is_profile_given)
    if found.command_config is not None and not has_config:
        from kreplica.cli import client_config

        client_config.use_later(found.command_config)
    return found.bootstrap


Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        "--bootstrap-server",
        envvar="KREPLICA_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Addresses of some brokers. A profile may name them.",
        callback=_servers,
    ),
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Make the change. Without it, only print what would change.")
]

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*((?P<unit>[KMGT])(iB|B)?|B)?", re.IGNORECASE)


def parsed(parse: Callable[[], T], hint: str | None = None) -> T:
    """Return what `parse` returns; a ValueError becomes an error of usage, which names the option `hint`."""
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


def with_options(**groups: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of named tuples as options; as arguments it gets the tuples.

    `groups`: the tuple of each parameter that has one, by the parameter's name.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        parameters = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            parameters += _fields(groups[each.name]) if each.name in groups else [each]

        @wraps(command)
        def called(**given: Any) -> None:
            made = {
                name: group(**{field: given.pop(field) for field in group._fields})
                for name, group in groups.items()
            }
            command(**given, **made)

        # Typer reads the signature, in which an argument may come behind an option.
        by_name = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        called.__dict__["__signature__"] = inspect.Signature(by_name)
        return called

    return decorated


def _fields(group: Any) -> list[inspect.Parameter]:
    hints, defaults = get_type_hints(group, include_extras=True), group._field_defaults
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name])
        for name in group._fields
    ]


def parse_size(text: str) -> int:
    """Parse a number of bytes, such as 1000000, 20M or 1.5GiB, by powers of 1024. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    size = 0
    if found is not None:
        power = " KMGT".index(found["unit"].upper()) if found["unit"] else 0
        size = int(float(found["number"]) * 1024**power)
    if size < 1:
        raise ValueError(f"{text[:40]!r} is no number of bytes, such as 1000000 or 20MiB")
    return size
