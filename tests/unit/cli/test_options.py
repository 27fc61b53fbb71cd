"""Values of options."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from kreplica.cli.options import parse_size, with_options


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("20M", 20 << 20),
        ("20MiB", 20 << 20),
        ("1.5 gib", 3 << 29),
        ("7B", 7),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "1 parsec", "MiB", "0.1"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_size(text)


class Shared(NamedTuple):
    """Options that two commands share."""

    size: Annotated[int, typer.Option("--size", help="A size.")] = 3
    name: Annotated[str | None, typer.Option("--name")] = None


def test_commands_share_options() -> None:
    app = typer.Typer()
    seen: list[object] = []

    @app.command()
    @with_options(shared=Shared)
    def command(
        what: Annotated[str, typer.Argument()],
        shared: Shared = Shared(),
        last: Annotated[bool, typer.Option("--last")] = False,
    ) -> None:
        """Do something."""
        seen.append((what, shared, last))

    for arguments in (["a"], ["b", "--size", "4", "--last"], ["c", "--name", "x"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [("a", Shared(), False), ("b", Shared(size=4), True), ("c", Shared(name="x"), False)]
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert shown.index("--size") < shown.index("--name") < shown.index("--last")
    assert "Do something." in shown
    assert CliRunner().invoke(app, ["a", "--size", "large"]).exit_code == 2
