"""Options and arguments that several subcommands of `kreplica` have. No state."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

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
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
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
