"""The subcommands of `kreplica`: names, arguments, options. What they do stands in files of their own."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="A durable, replicated, partitioned log: look into its files, check them, run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("kreplica"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # acted upon by its callback
