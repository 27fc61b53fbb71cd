"""The subcommands that make nodes and run them: names, arguments, options. What they do stands elsewhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def register(app: typer.Typer) -> None:
    """Add the subcommands to the command line."""
    app.command("format")(format_directories)
    app.command()(serve)


def format_directories(
    directory: Annotated[
        list[Path], typer.Option(help="The first has the metadata log; may be repeated.", show_default=False)
    ],
    node_id: Annotated[int, typer.Option(min=0, max=0x7FFFFFFF, help="The node's.", show_default=False)],
    cluster_id: Annotated[
        str | None, typer.Option(help="The same for all nodes; a new one if not given.")
    ] = None,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            metavar="ID@HOST:PORT:DIRECTORY-ID,...",
            help="The quorum's first voters, where they are to come and go; the same for all nodes.",
        ),
    ] = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="Leave a directory of this node as it is.")
    ] = False,
    is_recovery: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="Format nothing: mend an epoch of the quorum that is too large to be read or to go on from."
            " For every voter, while none of them runs.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Make directories those of a node: each gets its meta.properties, as Kafka writes it."""
    from kreplica.cli import format as command

    paths = [str(path.absolute()) for path in directory]
    if is_recovery:
        if cluster_id is not None or initial_controllers is not None or ignore_formatted:
            raise typer.BadParameter("--recover goes with --directory, --node-id and --json alone")
        raise typer.Exit(command.recover(paths, node_id, as_json))
    code = command.run(paths, node_id, cluster_id, ignore_formatted, as_json, initial_controllers)
    raise typer.Exit(code)


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Kafka's properties, in a .toml or a .properties file."
        ),
    ] = None,
    node_id: Annotated[int | None, typer.Option(min=0, max=0x7FFFFFFF, help="node.id.")] = None,
    directory: Annotated[list[Path] | None, typer.Option(help="log.dirs; may be repeated.")] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where clients connect; 127.0.0.1:9092.")
    ] = None,
    controller_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the quorum does, if not there.")
    ] = None,
    quorum: Annotated[
        str | None, typer.Option(metavar="ID@HOST:PORT,...", help="controller.quorum.voters.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="What clients are told to connect to.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A property; may be repeated.")
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, help="For development: so many nodes as processes, on ports from --listen upwards."
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus scrapes.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Of standard error.")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged, and all that is worse.")] = (
        LogLevel.INFO
    ),
) -> None:
    """Run a node as this process, on directories that were formatted; or, with --brokers, a whole cluster.

    A node prints a line when it is ready. SIGTERM or Ctrl-C ends it in order, a second one at once.
    """
    from kreplica.cli import serve as command
    from kreplica.cli import serve_properties

    options = command.ProcessOptions(
        log_format=log_format, log_level=log_level, metrics_listen=metrics_listen
    )
    paths = [str(path.absolute()) for path in directory or []]
    try:
        settings = serve_properties.from_config(None if config is None else str(config), setting or [])
        if brokers is not None:
            for name, value in (
                ("--node-id", node_id),
                ("--controller-listen", controller_listen),
                ("--quorum", quorum),
                ("--advertise", advertise),
            ):
                if value is not None:
                    raise ValueError(f"{name} is of one node, and --brokers makes several")
            if len(paths) != 1:
                raise ValueError("--brokers needs one --directory")
        properties = serve_properties.from_flags(
            settings, node_id, paths, listen, controller_listen, quorum, advertise
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if brokers is not None:
        from kreplica.cli import supervisor

        raise typer.Exit(supervisor.run(brokers, paths[0], listen, settings, options))
    raise typer.Exit(command.run(properties, options))
