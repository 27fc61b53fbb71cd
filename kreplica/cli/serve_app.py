"""The subcommands `format` and `serve`: names, arguments, options. They are implemented in other files."""

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
        list[Path],
        typer.Option(
            help="Log directory; may be repeated. The first holds the metadata log.", show_default=False
        ),
    ],
    node_id: Annotated[int, typer.Option(min=0, max=0x7FFFFFFF, help="Id of the node.", show_default=False)],
    cluster_id: Annotated[
        str | None, typer.Option(help="Id of the cluster, the same on all nodes. Default: a new id.")
    ] = None,
    initial_controllers: Annotated[
        str | None,
        typer.Option(
            metavar="ID@HOST:PORT:DIRECTORY-ID,...",
            help="First voters of a quorum whose voters can change later; the same on all nodes.",
        ),
    ] = None,
    ignore_formatted: Annotated[
        bool,
        typer.Option("--ignore-formatted", help="Skip directories that are already formatted for this node."),
    ] = False,
    is_recovery: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="Format nothing; lower a quorum epoch that has become too large. Stop all nodes, then run"
            " this on every voter.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Prepare directories for a node.

    Each gets a meta.properties file with the ids of node and cluster, as Kafka writes it.
    """
    from kreplica.cli import format as command

    paths = [str(path.absolute()) for path in directory]
    if is_recovery:
        if cluster_id is not None or initial_controllers is not None or ignore_formatted:
            raise typer.BadParameter("--recover takes only --directory, --node-id and --json")
        raise typer.Exit(command.recover(paths, node_id, as_json))
    code = command.run(paths, node_id, cluster_id, ignore_formatted, as_json, initial_controllers)
    raise typer.Exit(code)


def serve(
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File with Kafka's properties, .toml or .properties."),
    ] = None,
    node_id: Annotated[
        int | None, typer.Option(min=0, max=0x7FFFFFFF, help="Id of the node (node.id).")
    ] = None,
    directory: Annotated[
        list[Path] | None, typer.Option(help="Log directory (log.dirs); may be repeated.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address to listen on for clients. Default: 127.0.0.1:9092."),
    ] = None,
    controller_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address to listen on for the quorum. Default: that of --listen."
        ),
    ] = None,
    quorum: Annotated[
        str | None,
        typer.Option(metavar="ID@HOST:PORT,...", help="Voters of the quorum (controller.quorum.voters)."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address that clients connect to (advertised.listeners)."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Set a property; overrides --config; may be repeated."
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, help="For development: run this number of nodes as processes, on ports from --listen on."
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for Prometheus metrics and health checks."),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of the log on standard error.")
    ] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(help="Lowest level that is logged.")] = (LogLevel.INFO),
) -> None:
    """Run a node, or with --brokers a whole cluster.

    A node runs in this process, on directories that `kreplica format` has prepared; --brokers prepares its
    own. A node prints a line when it is ready. SIGTERM or Ctrl-C stops it in order, a second one at once.
    """
    from kreplica.cli import serve as command

    options = command.ProcessOptions(
        log_format=log_format, log_level=log_level, metrics_listen=metrics_listen
    )
    paths = [str(path.absolute()) for path in directory or []]
    try:
        settings = command.from_config(None if config is None else str(config), setting or [])
        if brokers is not None:
            for name, value in (
                ("--node-id", node_id),
                ("--controller-listen", controller_listen),
                ("--quorum", quorum),
                ("--advertise", advertise),
            ):
                if value is not None:
                    raise ValueError(f"{name} belongs to one node and cannot be used with --brokers")
            if len(paths) != 1:
                raise ValueError("--brokers needs exactly one --directory")
        properties = command.from_flags(
            settings, node_id, paths, listen, controller_listen, quorum, advertise
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if brokers is not None:
        from kreplica.cli import supervisor

        raise typer.Exit(supervisor.run(brokers, paths[0], listen, settings, options))
    raise typer.Exit(command.run(properties, options))
