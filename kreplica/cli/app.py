"""The subcommands of `kreplica`: names, arguments, options. Each is implemented in a file of its own.

That file is imported when the subcommand runs, so that `kreplica --help` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kreplica.cli.operator_commands import (
    broker_app,
    cluster_app,
    complete_profile,
    partition_app,
    profile_app,
)
from kreplica.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Chosen,
    Execute,
    Json,
    is_given,
    parsed,
    with_options,
)

if TYPE_CHECKING:
    from kreplica.cli.acl import Resources, Selection
    from kreplica.cli.quota import Entity
    from kreplica.common.isolation import Isolation

HELP_OPTIONS = ["-h", "--help"]

app = typer.Typer(
    help="A durable, replicated, partitioned log: inspect its files, check them, run nodes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP_OPTIONS},
)


def help_page(arguments: Sequence[str]) -> str | None:
    """Return the help page that the arguments ask for, or None: names of commands, then a help option.

    The page is the same as typer's. But to find a subcommand typer reads the options before it, for which it
    imports pydantic.
    """
    if not arguments or arguments[-1] not in HELP_OPTIONS:
        return None
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="kreplica", help_option_names=HELP_OPTIONS)
    for name in arguments[:-1]:
        command = getattr(command, "commands", {}).get(name)
        if command is None:
            return None
        context = typer.Context(command, parent=context, info_name=name)
    return context.get_help()


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("kreplica"))
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
    command_config: Annotated[
        str | None,
        typer.Option(
            "--command-config",
            envvar="KREPLICA_COMMAND_CONFIG",
            metavar="FILE",
            help="Properties for connections to a cluster, as Kafka's tools take them: how to log in.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            envvar="KREPLICA_PROFILE",
            metavar="NAME",
            help="Profile of the cluster; see `kreplica profile`.",
            autocompletion=complete_profile,
        ),
    ] = None,
) -> None:
    del version  # acted upon by its callback
    # Without a file nothing is imported, unless an earlier command of this process has used one.
    if command_config is not None or "kreplica.cli.client_config" in sys.modules:
        from kreplica.cli import client_config

        client_config.use(command_config)
    context.obj = Chosen(
        profile, command_config, is_given(context, "profile"), is_given(context, "command_config")
    )


Paths = Annotated[
    list[Path],
    typer.Argument(exists=True, help="Segments, other files of a log, or directories.", show_default=False),
]


class EngineName(StrEnum):
    LOCAL = "local"
    SPARK = "spark"


Engine = Annotated[
    EngineName, typer.Option("--engine", help="Run in this process, or on Spark (needs kreplica[spark]).")
]
Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Spark's master URL, such as local[4] or spark://host:7077."
    ),
]
DEFAULT_MASTER = "local[*]"


@app.command()
def dump(
    paths: Paths,
    deep: Annotated[
        bool, typer.Option("--deep", help="Print the records of segments too, not only the batches.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the contents of a log's files.

    Reads segments, indexes, snapshots, checkpoints and the small files beside them.
    """
    from kreplica.cli import dump as command

    for path in paths:
        if not command.is_known(path):
            raise typer.BadParameter(f"{path} is not a file of a log", param_hint="PATHS")
    raise typer.Exit(command.run(list(map(str, paths)), deep, as_json))


@app.command()
def verify(
    paths: Paths,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Json = False,
) -> None:
    """Check logs for damage and contradictions.

    Takes segments, partitions, log directories, or the directory of a cluster. Changes nothing. Exits with 1
    if it finds a problem, with 2 if there is nothing to check.
    """
    from kreplica.cli import verify as command

    for path in paths:
        if not command.is_log(path):
            raise typer.BadParameter(
                f"{path} is neither a segment nor a directory with logs", param_hint="PATHS"
            )
    command.warn_about_unchecked(paths)
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        raise typer.Exit(spark.verify(list(map(str, paths)), master, as_json))
    raise typer.Exit(command.run(list(map(str, paths)), as_json))


class ReadIsolation(StrEnum):
    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "txn_committed"
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def level(self) -> Isolation:
        """The level by the name that logs use."""
        from kreplica.common.isolation import isolation_level

        return isolation_level(self)


Directory = Annotated[
    Path,
    typer.Argument(exists=True, file_okay=False, help="A partition or a log directory.", show_default=False),
]


@app.command()
def diff(
    left: Directory,
    right: Directory,
    by_record: Annotated[
        bool, typer.Option("--records", help="Compare records where batches differ, as in compacted logs.")
    ] = False,
    isolation: Annotated[
        ReadIsolation,
        typer.Option(
            help="Compare only what such readers may read of both: replicated records (high_watermark or"
            " read_uncommitted), or those below the first open transaction (txn_committed or read_committed),"
            " with --records without aborted ones."
        ),
    ] = ReadIsolation.LOG_END,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Json = False,
) -> None:
    """Compare two replicas byte by byte.

    Takes two directories of one partition, of two nodes, or of two clusters. Exits with 1 if they differ,
    with 2 if they have nothing in common to compare.
    """
    from kreplica.cli import diff as command
    from kreplica.cli.verify import warn_about_unchecked

    pairs = command.pairs(left, right)
    if pairs is None:
        raise typer.BadParameter(
            "name two partitions, or the log directories of two nodes", param_hint="RIGHT"
        )
    if not any(pair.left is not None and pair.right is not None for pair in pairs):
        raise typer.BadParameter("the two sides have no partition in common", param_hint="RIGHT")
    warn_about_unchecked((left, right))
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        raise typer.Exit(spark.diff(str(left), str(right), by_record, isolation.level, master, as_json))
    raise typer.Exit(command.run(pairs, by_record, isolation.level, as_json))


@app.command()
def repair(
    directory: Directory,
    peer: Annotated[
        Path | None,
        typer.Option(
            "--from",
            exists=True,
            file_okay=False,
            metavar="PEER",
            help="The same directory of another replica, from which lost records are restored.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the changes. Without this, only print them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Mend damaged logs, and keep every valid record.

    Without --apply it only prints what it would do. Exits with 1 if a problem is left.
    """
    from kreplica.cli import repair as command

    if not command.is_log(directory):
        raise typer.BadParameter(f"{directory} contains no log", param_hint="DIRECTORY")
    if peer is not None and not command.is_log(peer):
        raise typer.BadParameter(f"{peer} contains no log", param_hint="--from")
    raise typer.Exit(
        command.run(str(directory.absolute()), None if peer is None else str(peer.absolute()), apply, as_json)
    )


class Format(StrEnum):
    PARQUET = "parquet"
    ARROW = "arrow"
    JSONL = "jsonl"


@app.command()
def export(
    directories: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            file_okay=False,
            help="Directories of partitions; or of nodes, with --topic.",
            show_default=False,
        ),
    ],
    to: Annotated[Format, typer.Option("--to", help="The output format.", show_default=False)],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Output file, or - for standard output. On Spark: a directory."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Topic to export from a node's directory; may be repeated.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns to write, separated by commas.")] = None,
    from_offset: Annotated[int | None, typer.Option(min=0, help="First offset to write.")] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Offset to stop before.")] = None,
    from_time: Annotated[
        str | None, typer.Option(help="Earliest timestamp to write: ISO 8601, or ms since 1970.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(help="Timestamp to stop before: ISO 8601, or ms since 1970.")
    ] = None,
    isolation: Annotated[
        ReadIsolation | None,
        typer.Option(
            help="Which records count: all (log_end), replicated (high_watermark or read_uncommitted), or"
            " also without open and aborted transactions (txn_committed or read_committed). Default: log_end;"
            " on Spark high_watermark."
        ),
    ] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Skip damaged records with a warning.")
    ] = False,
    file_rows: Annotated[int | None, typer.Option(min=1, help="Maximum rows per file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")] = False,
    latest: Annotated[
        bool,
        typer.Option(
            "--latest", help="On Spark: write only the last value of each key, into a new directory."
        ),
    ] = False,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")] = False,
) -> None:
    """Export records to Parquet, Arrow or JSON lines.

    In JSON lines, keys and values that are not UTF-8 become key_base64 and value_base64. A damaged record
    is an error that names its offset; no file is left behind.

    On Spark, --out is a directory with Parquet files by topic and partition. Each run adds the records that
    are new since the last run, each once.
    """
    from kreplica.cli import export as command

    if engine is EngineName.SPARK:
        bounds = {"--from-offset": from_offset, "--to-offset": to_offset, "--from-time": from_time}
        _refuse_on_spark({**bounds, "--to-time": to_time, "--overwrite": overwrite or None}, to, isolation)
    elif latest:
        raise typer.BadParameter("needs --engine spark", param_hint="--latest")
    found = parsed(lambda: command.partitions(directories, topic or []))
    names = parsed(lambda: command.parse_columns(columns))
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        if out is None or out == "-":
            text = "name a directory; --engine spark writes several files"
            raise typer.BadParameter(text, param_hint="--out")
        code = spark.export(
            found,
            out,
            columns=names,
            committed=isolation is not None and isolation.level == "txn_committed",
            skip_damaged=skip_damaged,
            file_rows=file_rows,
            latest=latest,
            master=master,
            as_json=as_json,
        )
        raise typer.Exit(code)
    times = parsed(lambda: (command.parse_time(from_time), command.parse_time(to_time)))
    path = parsed(
        lambda: command.output_path(out, to, found, file_rows=file_rows, overwrite=overwrite, as_json=as_json)
    )
    level = (isolation or ReadIsolation.LOG_END).level
    wanted = command.Range(from_offset, to_offset, *times, level, skip_damaged)
    raise typer.Exit(command.run(found, to, path, names, wanted, file_rows=file_rows, as_json=as_json))


@app.command()
def offsets(
    directories: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            file_okay=False,
            help="Directories of partitions, nodes, clusters.",
            show_default=False,
        ),
    ],
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be repeated.")] = None,
    isolation: Annotated[
        ReadIsolation, typer.Option(help="Which records count; as for `export`.")
    ] = ReadIsolation.HIGH_WATERMARK,
    group: Annotated[
        str | None, typer.Option(help="Also show the offsets and lag of this consumer group.")
    ] = None,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Json = False,
) -> None:
    """Count records and show how far replicas are behind.

    Reads directories only, no running cluster. Shows gaps, each replica's offsets and lag, and with --group
    those of a consumer group. Records count up to the replica's own high watermark. A follower learns that of
    its leader a moment later, so after a stop its own may be lower: --isolation log_end counts all its
    records.
    """
    from kreplica.cli import offsets as command

    paths = [str(path.resolve()) for path in directories]
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        raise typer.Exit(spark.offsets(paths, topic or (), isolation.level, group, master, as_json))
    raise typer.Exit(command.run(paths, topic or (), isolation.level, group, as_json))


def _refuse_on_spark(given: Mapping[str, object], to: Format, isolation: ReadIsolation | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter(
                "does not work with --engine spark, which adds all records since its last run",
                param_hint=name,
            )
    if to is not Format.PARQUET:
        raise typer.BadParameter("--engine spark writes parquet only", param_hint="--to")
    if isolation is ReadIsolation.LOG_END:
        text = "--engine spark exports committed records only: use high_watermark or txn_committed"
        raise typer.BadParameter(text, param_hint="--isolation")


class Driver(StrEnum):
    NODES = "nodes"
    BROKERS = "brokers"
    QUORUM = "quorum"


@app.command()
def sim(
    seed: Annotated[int, typer.Option(help="First seed. A seed determines the whole run.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run, one after the other.")] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.001, help="Simulated minutes for each seed, instead of --events."),
    ] = None,
    events: Annotated[
        int, typer.Option(min=1, help="Number of events for each seed, without --minutes.")
    ] = 2_000,
    driver: Annotated[
        Driver,
        typer.Option(
            help="What to simulate: whole nodes, brokers with a scripted controller, or only a quorum."
        ),
    ] = Driver.NODES,
    reduce: Annotated[
        float, typer.Option(min=0, help="Seconds to search for a shorter run that fails in the same way.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Test simulated clusters with random faults.

    Load and faults are drawn from seeds, and every invariant is checked after each event. A violation exits
    with 1, and prints its seed and a shortened run. Any other failure exits with 2. The same seed gives the
    same event hash in every process.
    """
    from kreplica.cli import sim as command

    raise typer.Exit(command.run(driver, range(seed, seed + seeds), minutes, events, reduce, as_json))


# ---- nodes ---------------------------------------------------------------------------------------------


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@app.command("format")
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
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MECHANISM=[name=NAME,password=PASSWORD,...]",
            help="User who logs in by SCRAM from the first start on, the same on all nodes; may be repeated.",
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
    as_json: Json = False,
) -> None:
    """Prepare directories for a node.

    Each gets a meta.properties file with the ids of node and cluster, as Kafka writes it.
    """
    from kreplica.cli import format as command

    paths = [str(path.absolute()) for path in directory]
    if is_recovery:
        if cluster_id is not None or initial_controllers is not None or ignore_formatted or add_scram:
            raise typer.BadParameter("--recover takes only --directory, --node-id and --json")
        raise typer.Exit(command.recover(paths, node_id, as_json))
    code = command.run(
        paths, node_id, cluster_id, ignore_formatted, as_json, initial_controllers, add_scram or ()
    )
    raise typer.Exit(code)


@app.command()
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
        typer.Option(
            metavar="[HOST]:PORT", help="Address to listen on for clients. Default: 127.0.0.1:9092."
        ),
    ] = None,
    controller_listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST]:PORT", help="Address to listen on for the quorum. Default: that of --listen."
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
        typer.Option(
            metavar="HOST:PORT", help="Address for Prometheus metrics, health checks and the console."
        ),
    ] = None,
    console: Annotated[
        bool | None,
        typer.Option(
            "--console/--no-console",
            help="Serve a read-only console for browsers beside the metrics. Default: on, if only this "
            "machine reaches it and the node has no logins, encryption or access rules.",
        ),
    ] = None,
    console_password_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Ask for a login; the file has a line NAME:PASSWORD for each user.",
        ),
    ] = None,
    console_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which browsers may ask for it; may be repeated."),
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
        log_format=log_format,
        log_level=log_level,
        metrics_listen=metrics_listen,
        console=console,
        console_hosts=tuple(console_host or ()),
        console_password_file=console_password_file,
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


# ---- clusters ------------------------------------------------------------------------------------------


topic_app = typer.Typer(help="Manage the topics of a Kafka-compatible cluster.", no_args_is_help=True)
quorum_app = typer.Typer(help="Show and change the metadata quorum of a cluster.", no_args_is_help=True)
group_app = typer.Typer(
    help="Show groups of consumers; reset and delete their offsets.",
    no_args_is_help=True,
)
transactions_app = typer.Typer(
    help="Show transactions; find and abort abandoned ones.",
    no_args_is_help=True,
)

user_app = typer.Typer(
    help="Show, add and remove users of a cluster who log in by SCRAM.", no_args_is_help=True
)

token_app = typer.Typer(
    help="Show, make and end delegation tokens. Programs log in by them for a user.", no_args_is_help=True
)

acl_app = typer.Typer(help="Show, add and remove the access rules of a cluster.", no_args_is_help=True)

quota_app = typer.Typer(help="Show, set and remove the quotas of clients.", no_args_is_help=True)

app.add_typer(cluster_app, name="cluster")
app.add_typer(broker_app, name="broker")
app.add_typer(topic_app, name="topic")
app.add_typer(partition_app, name="partition")
app.add_typer(quorum_app, name="quorum")
app.add_typer(group_app, name="group")
app.add_typer(transactions_app, name="transactions")
app.add_typer(user_app, name="user")
app.add_typer(token_app, name="token")
app.add_typer(acl_app, name="acl")
app.add_typer(quota_app, name="quota")
app.add_typer(profile_app, name="profile")

Name = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]
Names = Annotated[list[str], typer.Argument(help="Names of the topics.", show_default=False)]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-X", metavar="NAME=VALUE", help="Set a property of librdkafka; may be repeated."
    ),
]


# ---- user ------------------------------------------------------------------------------------------------


class Scram(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


User = Annotated[str, typer.Argument(help="Name of the user.", show_default=False)]


@user_app.command("list")
def user_list(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """List the users with their mechanisms."""
    from kreplica.cli import user as command

    raise typer.Exit(command.list_users(bootstrap, as_json))


@user_app.command("add")
def user_add(
    name: User,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    mechanism: Annotated[Scram, typer.Option("--mechanism", help="How the user logs in.")] = Scram.SHA_256,
    iterations: Annotated[
        int, typer.Option("--iterations", min=4096, max=16384, help="Cost of guessing the password.")
    ] = 4096,
    password: Annotated[
        str,
        typer.Option(
            prompt=True,
            hide_input=True,
            confirmation_prompt=True,
            envvar="KREPLICA_PASSWORD",
            help="Password; asked for if it is not given.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Add a user, or change a password."""
    from kreplica.cli import user as command
    from kreplica.security.sasl import Secret

    secret = Secret(password)
    raise typer.Exit(command.add(bootstrap, name, secret, mechanism.value, iterations, as_json))


@user_app.command("remove")
def user_remove(
    name: User,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    mechanism: Annotated[
        list[Scram] | None,
        typer.Option("--mechanism", help="Mechanism to remove; may be repeated. Default: all of them."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove a user. Connections that are logged in stay."""
    from kreplica.cli import user as command

    names = [each.value for each in mechanism or ()]
    raise typer.Exit(command.remove(bootstrap, name, names, as_json))


# ---- token -----------------------------------------------------------------------------------------------

MOST_DAYS = 36_500
TokenPassword = Annotated[
    str,
    typer.Option(
        prompt=True,
        hide_input=True,
        envvar="KREPLICA_PASSWORD",
        help="Password of the token; asked for if it is not given.",
    ),
]
Days = Annotated[
    float | None,
    typer.Option("--days", min=0, max=MOST_DAYS, help="Days from now. Default: the cluster's."),
]


@token_app.command("list")
def token_list(
    owner: Annotated[
        list[str] | None, typer.Argument(help="Owners, such as alice or User:alice.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """List the tokens that you may see, without their passwords."""
    from kreplica.cli import token as command

    raise typer.Exit(command.list_tokens(bootstrap, owner or (), as_json))


@token_app.command("create")
def token_create(
    owner: Annotated[
        str | None,
        typer.Argument(help="Whose token, such as alice or User:alice. Default: yours.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    renewer: Annotated[
        list[str] | None, typer.Option("--renewer", help="Who else may renew it; may be repeated.")
    ] = None,
    max_days: Annotated[
        float | None,
        typer.Option("--max-days", min=0, max=MOST_DAYS, help="Greatest age. Default: the cluster's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a token, and print it with its password. The password cannot be shown again."""
    from kreplica.cli import token as command

    raise typer.Exit(command.create(bootstrap, owner, renewer or (), max_days, as_json))


@token_app.command("renew")
def token_renew(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    days: Days = None,
    password: TokenPassword = "",
    as_json: Json = False,
) -> None:
    """Let a token expire later."""
    from kreplica.cli import token as command
    from kreplica.security.sasl import Secret

    raise typer.Exit(command.renew(bootstrap, Secret(password), days, as_json))


@token_app.command("expire")
def token_expire(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0, max=MOST_DAYS, help="Days from now. Default: at once."),
    ] = None,
    password: TokenPassword = "",
    as_json: Json = False,
) -> None:
    """Remove a token, or let it expire then. Connections that are logged in stay until their session ends."""
    from kreplica.cli import token as command
    from kreplica.security.sasl import Secret

    raise typer.Exit(command.expire(bootstrap, Secret(password), days, as_json))


# ---- acl -------------------------------------------------------------------------------------------------


class AclResources(NamedTuple):
    """The resources of access rules, as options."""

    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="Topic; may be repeated. * is all topics."),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME", help="Group; may be repeated. * is all groups."),
    ] = None
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", metavar="ID", help="Transactional id; may be repeated."),
    ] = None
    user: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="NAME", help="User for whom tokens are made; may be repeated."),
    ] = None
    token: Annotated[
        list[str] | None,
        typer.Option("--delegation-token", metavar="ID", help="Delegation token; may be repeated."),
    ] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster itself.")] = False
    prefix: Annotated[bool, typer.Option("--prefix", help="The names are prefixes of names.")] = False

    def named(self) -> Resources:
        """Return them as the command takes them."""
        from kreplica.cli.acl import Resources

        return Resources(
            topics=self.topic or (),
            groups=self.group or (),
            transactional_ids=self.transactional_id or (),
            users=self.user or (),
            tokens=self.token or (),
            cluster=self.cluster,
            prefix=self.prefix,
        )


class Permission(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class AclSelection(NamedTuple):
    """What else selects access rules, as options."""

    principal: Annotated[
        str | None,
        typer.Option("--principal", metavar="NAME", help="Rules of this one, such as alice or User:alice."),
    ] = None
    operation: Annotated[
        str | None,
        typer.Option("--operation", metavar="NAME", help="Rules for this operation, such as read."),
    ] = None
    permission: Annotated[
        Permission | None, typer.Option("--permission", help="Rules that allow, or that deny.")
    ] = None
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Rules for this address.")] = (
        None
    )

    def chosen(self) -> Selection:
        """Return it as the command takes it."""
        from kreplica.cli.acl import Selection

        return Selection(**self._asdict())


@acl_app.command("list")
@with_options(selection=AclSelection, resources=AclResources)
def acl_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    selection: AclSelection = AclSelection(),
    resources: AclResources = AclResources(),
    as_json: Json = False,
) -> None:
    """List the access rules: all of them, or those that fit all options."""
    from kreplica.cli import acl as command

    raise typer.Exit(command.list_rules(bootstrap, selection.chosen(), resources.named(), as_json))


@acl_app.command("add")
@with_options(resources=AclResources)
def acl_add(
    principal: Annotated[
        str, typer.Argument(help="Who, such as alice or User:alice; User:* is everyone.", show_default=False)
    ],
    operations: Annotated[
        list[str], typer.Argument(help="What, such as read, write, describe or all.", show_default=False)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    resources: AclResources = AclResources(),
    deny: Annotated[bool, typer.Option("--deny", help="Forbid it, whatever other rules allow.")] = False,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Only from this address. Default: from everywhere."),
    ] = "*",
    as_json: Json = False,
) -> None:
    """Allow or deny operations on resources.

    Each operation on each resource is a rule of its own. A rule that exists already stays as it is.
    """
    from kreplica.cli import acl as command

    raise typer.Exit(
        command.add(
            bootstrap, principal, operations, resources.named(), deny=deny, host=host, as_json=as_json
        )
    )


@acl_app.command("remove")
@with_options(selection=AclSelection, resources=AclResources)
def acl_remove(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    selection: AclSelection = AclSelection(),
    resources: AclResources = AclResources(),
    everything: Annotated[bool, typer.Option("--all", help="Remove all rules of the cluster.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the access rules that fit all options, and show them."""
    from kreplica.cli import acl as command

    chosen, named = selection.chosen(), resources.named()
    raise typer.Exit(command.remove(bootstrap, chosen, named, everything=everything, as_json=as_json))


# ---- quota -----------------------------------------------------------------------------------------------


class QuotaEntity(NamedTuple):
    """Whose quotas a command is about, as options."""

    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="User.")] = None
    client_id: Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Client id.")] = None
    ip: Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Address of clients.")] = None
    default_user: Annotated[bool, typer.Option("--default-user", help="All users without a quota.")] = False
    default_client_id: Annotated[
        bool, typer.Option("--default-client-id", help="All client ids without a quota.")
    ] = False
    default_ip: Annotated[bool, typer.Option("--default-ip", help="All addresses without a quota.")] = False

    def named(self) -> Entity:
        """Return it as the command takes it."""
        from kreplica.cli.quota import Entity

        return Entity(**self._asdict())


@quota_app.command("list")
@with_options(entity=QuotaEntity)
def quota_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    entity: QuotaEntity = QuotaEntity(),
    as_json: Json = False,
) -> None:
    """List all quotas, or those of a user, client id or address."""
    from kreplica.cli import quota as command

    raise typer.Exit(command.list_quotas(bootstrap, entity.named(), as_json))


@quota_app.command("set")
@with_options(entity=QuotaEntity)
def quota_set(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Quotas, such as producer_byte_rate=1048576, consumer_byte_rate, request_percentage,"
            " controller_mutation_rate; of an address connection_creation_rate.",
            show_default=False,
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    entity: QuotaEntity = QuotaEntity(),
    as_json: Json = False,
) -> None:
    """Set quotas of a user, a client id, both, or an address. Others stay as they are."""
    from kreplica.cli import quota as command

    raise typer.Exit(command.set_quotas(bootstrap, entity.named(), settings, as_json))


@quota_app.command("remove")
@with_options(entity=QuotaEntity)
def quota_remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Quotas to remove. Default: all.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    entity: QuotaEntity = QuotaEntity(),
    as_json: Json = False,
) -> None:
    """Remove quotas of a user, a client id, both, or an address. Shows them."""
    from kreplica.cli import quota as command

    raise typer.Exit(command.remove(bootstrap, entity.named(), names or (), as_json))


# ---- topic -----------------------------------------------------------------------------------------------


@topic_app.command("list")
def topic_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    internal: Annotated[
        bool, typer.Option("--internal", help="Include internal topics, whose names begin with __.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List all topics.

    Shows for each how many partitions have no leader, or fewer in-sync replicas than replicas.
    """
    from kreplica.cli import topic as command

    raise typer.Exit(command.list_topics(bootstrap, internal, as_json))


@topic_app.command("describe")
def topic_describe(names: Names, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the partitions and settings of topics.

    Shows the leader, replicas, in-sync replicas and offsets of each partition, and the topic's own settings.
    """
    from kreplica.cli import topic as command

    raise typer.Exit(command.describe(bootstrap, names, as_json))


@topic_app.command("create")
def topic_create(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")] = 1,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            "-r",
            min=-1,
            help="Number of replicas of each partition; -1: the cluster's default.",
            show_default=True,
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="Setting of the topic; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    from kreplica.cli import stock_client
    from kreplica.cli import topic as command

    settings = parsed(lambda: stock_client.parse_properties(config or ()), "--config")
    raise typer.Exit(command.create(bootstrap, name, partitions, replicas, settings, as_json))


@topic_app.command("delete")
def topic_delete(names: Names, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Delete topics and all their records."""
    from kreplica.cli import topic as command

    raise typer.Exit(command.delete(bootstrap, names, as_json))


@topic_app.command("add-partitions")
def topic_add_partitions(
    name: Name,
    total: Annotated[
        int, typer.Argument(min=1, help="New number of partitions in total.", show_default=False)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Add partitions to a topic.

    Afterwards new records with the same key may go to another partition than before.
    """
    from kreplica.cli import topic as command

    raise typer.Exit(command.add_partitions(bootstrap, name, total, as_json))


@topic_app.command("config")
def topic_config(
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings to change.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="NAME", help="Reset this setting to its default; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a topic's settings, or print them."""
    from kreplica.cli import stock_client
    from kreplica.cli import topic as command

    changes = parsed(lambda: stock_client.parse_properties(settings or ()), "SETTINGS")
    raise typer.Exit(command.configure(bootstrap, name, changes, drop or (), as_json))


# ---- records ---------------------------------------------------------------------------------------------


@app.command()
def produce(
    topic: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", exists=True, dir_okay=False, help="Read this file instead of standard input."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Read lines as JSON objects, as `consume --json` writes them.")
    ] = False,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", help="Split each line into key and value at this text."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Append all records to this partition.")
    ] = None,
    keep_partitions: Annotated[
        bool,
        typer.Option("--keep-partitions", help="Append each record to the partition in its JSON object."),
    ] = False,
    properties: Properties = None,
    summary_json: Annotated[
        bool, typer.Option("--summary-json", help="Print the summary as a JSON object.")
    ] = False,
) -> None:
    """Append each line of the input as a record.

    Returns when all in-sync replicas have acknowledged all records. Exits with 1 if some were not
    acknowledged; the summary says how many.
    """
    from kreplica.cli import produce as command
    from kreplica.cli import stock_client

    if json and key_separator is not None:
        raise typer.BadParameter(
            "cannot be used with --json, where each object has its own key", param_hint="--key-separator"
        )
    if keep_partitions and (not json or partition is not None):
        raise typer.BadParameter(
            "needs --json, and cannot be used with --partition", param_hint="--keep-partitions"
        )
    separator = key_separator.encode().decode("unicode_escape").encode() if key_separator else None
    lines = command.Lines(json, separator, keep_partitions)
    given = parsed(lambda: stock_client.parse_properties(properties or ()), "--property")
    source = sys.stdin.buffer if file is None else file.open("rb")
    with source:
        raise typer.Exit(command.run(bootstrap, topic, source, lines, given, partition, summary_json))


@app.command()
def consume(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC|DIRECTORY...", help="A topic of a cluster, or log directories.", show_default=False
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[
        list[str] | None, typer.Option(help="Topic to read from a node's directory; may be repeated.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Where to start: earliest, latest, an offset, -N (N before the end), or @TIME.",
        ),
    ] = "earliest",
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Read only this partition; may be repeated."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this consumer group, and commit offsets."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more records until Ctrl-C.")
    ] = False,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Include records of open and aborted transactions.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="Print only the values, one a line.")] = False,
    properties: Properties = None,
    as_json: Json = False,
) -> None:
    """Print records of a cluster or of log directories.

    Directories can be read whether or not a node runs on them.
    """
    from kreplica.cli import consume as command
    from kreplica.cli import export, stock_client

    begin = parsed(lambda: command.parse_start(start, export.parse_time), "--from")
    wanted = command.Wanted(begin, tuple(partition or ()), limit, follow, not uncommitted)
    show = command.printer(sources[0], as_json=as_json, values=values)
    if _are_directories(sources):
        if group is not None:
            raise typer.BadParameter("works with a cluster only, not with directories", param_hint="--group")
        paths = [Path(each) for each in sources]
        found = parsed(lambda: command.directories(paths, topic or (), wanted.partitions), "DIRECTORY")
        raise typer.Exit(command.run_directories(found, wanted, show))
    if len(sources) > 1 or topic:
        raise typer.BadParameter(
            "name one topic of a cluster, or one or more directories", param_hint="TOPIC|DIRECTORY"
        )
    if group is not None and (partition or start != "earliest"):
        text = "cannot be used with --partition or --from: the cluster assigns partitions and offsets"
        raise typer.BadParameter(text, param_hint="--group")
    given = parsed(lambda: stock_client.parse_properties(properties or ()), "--property")
    raise typer.Exit(command.run(bootstrap, sources[0], group, wanted, given, show))


def _are_directories(sources: list[str]) -> bool:
    # No topic's name has a slash; a name without one may be both, and is a directory where there is one.
    return any("/" in each or Path(each).is_dir() for each in sources)


# ---- quorum ----------------------------------------------------------------------------------------------

VoterId = Annotated[
    int, typer.Option("--node-id", min=0, help="Id of the controller node.", show_default=False)
]
VoterDirectory = Annotated[
    str,
    typer.Option(
        "--directory-id", help="Id of the node's metadata directory, as `quorum describe` prints it."
    ),
]
ClusterId = Annotated[str | None, typer.Option("--cluster-id", help="Fail if the cluster has another id.")]


@app.command("isr-history")
def isr_history(
    directory: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="A node's log directory, or its metadata log, to read instead of asking the cluster.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[str | None, typer.Option(help="Show only this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Show only this partition.")] = None,
    as_json: Json = False,
) -> None:
    """Print when the leaders and ISRs of partitions changed.

    Asks the quorum's leader, as `kreplica watch` does, or reads the metadata log of a node, which may run;
    the last changes there may not be committed yet. The history survives restarts and goes back to the log's
    oldest snapshot.
    """
    from kreplica.cli import isr_history as command
    from kreplica.cli.watch import of_quorum
    from kreplica.metadata.metadata_loader import TreeReplay

    replay, source = TreeReplay(), bootstrap
    if directory is None:
        changes = of_quorum(bootstrap, from_beginning=True, timeout_s=0, replay=replay)
    else:
        log = parsed(partial(command.metadata_log_in, directory), "DIRECTORY")
        changes, source = command.MetadataFiles(log).changes(replay), str(log)
    show = partial(command.run, changes, replay, source, topic, partition, as_json)
    raise typer.Exit(parsed(show, "--bootstrap"))


@app.command()
def watch(
    path: Annotated[str, typer.Argument(help="Path of a node; the nodes below it are watched too.")] = "/",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    directory: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Read a node's log directory instead of asking the cluster."
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the oldest change in the metadata log.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop after this many seconds without a change.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print changes of brokers, topics and settings as they come.

    Each change has a path, such as /brokers/topics/orders/partitions/0, and a version: its offset in the
    metadata log; of /controller the epoch. The quorum's leader is asked, at its own listener, which must be
    reachable from here. With --directory a metadata log is read, also while its node runs; its last changes
    may not be committed yet. Runs until it is stopped, or until --timeout.
    """
    from kreplica.cli import watch as command
    from kreplica.cli.isr_history import metadata_log_in

    parsed(partial(command.checked_path, path), "PATH")
    if directory is None:
        changes = command.of_quorum(bootstrap, from_beginning=from_beginning, timeout_s=timeout)
    else:
        log = parsed(partial(metadata_log_in, directory), "--directory")
        changes = command.of_directory(log, from_beginning=from_beginning, timeout_s=timeout)
    raise typer.Exit(parsed(partial(command.run, changes, path, as_json), "--bootstrap"))


@app.command()
def top(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: Json = False,
) -> None:
    """Show brokers, rates, lag and changes of ISRs, live.

    Refreshes the terminal until Ctrl-C. The cluster may be Kafka's. Rates are the differences between two
    looks; --json prints each frame as a line.
    """
    from kreplica.cli import top as command

    raise typer.Exit(parsed(lambda: command.run(bootstrap, interval, once, as_json), "--bootstrap"))


@quorum_app.command("describe")
def quorum_describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the leader, the voters and the observers.

    Shows for each how far it has replicated the metadata log.
    """
    from kreplica.cli import quorum as command

    raise typer.Exit(parsed(lambda: command.describe(bootstrap, as_json), "--bootstrap"))


@quorum_app.command("add-voter")
def quorum_add_voter(
    node_id: VoterId,
    directory_id: VoterDirectory,
    listener: Annotated[
        list[str],
        typer.Option(
            "--listener", metavar="NAME://HOST:PORT", help="Listener of the controller; may be repeated."
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
) -> None:
    """Make a running controller a voter.

    The controller must have caught up with the metadata log.
    """
    from kreplica.cli import quorum as command

    change = partial(command.add_voter, bootstrap, cluster_id, node_id, directory_id, listener)
    raise typer.Exit(parsed(change, "--listener, --bootstrap"))


@quorum_app.command("remove-voter")
def quorum_remove_voter(
    node_id: VoterId,
    directory_id: VoterDirectory,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
) -> None:
    """Remove a voter from the quorum."""
    from kreplica.cli import quorum as command

    change = partial(command.remove_voter, bootstrap, cluster_id, node_id, directory_id)
    raise typer.Exit(parsed(change, "--bootstrap"))


# ---- groups ----------------------------------------------------------------------------------------------

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", show_default=False)]


class GroupKind(StrEnum):
    """A kind of group."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class State(StrEnum):
    """A state of a group."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    NOT_READY = "NotReady"
    STABLE = "Stable"
    DEAD = "Dead"


@group_app.command("list")
def group_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    kinds: Annotated[
        list[GroupKind] | None,
        typer.Option("--type", help="List only groups of this type; may be repeated."),
    ] = None,
    states: Annotated[
        list[State] | None,
        typer.Option("--state", help="List only groups in this state; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the groups of a cluster, with their types and states."""
    from kreplica.cli import group as command

    names = [kind.value for kind in kinds or ()]
    wanted = [state.value for state in states or ()]
    listing = partial(command.list_groups, bootstrap, names, wanted, as_json)
    raise typer.Exit(parsed(listing, "--bootstrap"))


@group_app.command("describe")
def group_describe(
    group_ids: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP...", help="The groups' ids; by default all groups.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    members: Annotated[
        bool, typer.Option("--members", help="Show the members and what they are assigned, not the offsets.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show how far groups are behind, or their members."""
    from kreplica.cli import group as command

    show = partial(command.describe, bootstrap, group_ids or (), members, as_json)
    raise typer.Exit(parsed(show, "--bootstrap"))


@group_app.command("config")
def group_config(
    group_id: GroupId,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings to change.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="NAME", help="Reset this setting to its default; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a group's settings, or print them.

    The group need not exist yet.
    """
    from kreplica.cli import group as command
    from kreplica.cli import stock_client

    changes = parsed(lambda: stock_client.parse_properties(settings or ()), "SETTINGS")
    both = sorted({*changes} & {*drop} if drop else ())
    if both:
        raise typer.BadParameter(f"{both[0]} cannot be both set and dropped", param_hint="--drop")
    configure = partial(command.configure, bootstrap, group_id, changes, drop or (), as_json)
    raise typer.Exit(parsed(configure, "--bootstrap"))


@group_app.command("reset-offsets")
def group_reset_offsets(
    group_id: GroupId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1]",
            help="Reset this topic, or some of its partitions; may be repeated. By default all partitions"
            " with a committed offset.",
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_datetime: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d"],
            help="To the first record at this time or later; in UTC unless it has an offset.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            metavar="PnDTnHnMnS",
            help="To the first record of this duration before now, such as PT1H30M, or later.",
        ),
    ] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="By this number of offsets; forward, or back if it is negative.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="To the offsets in this file, lines of topic,partition,offset."
        ),
    ] = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Set the committed offsets of a group without members.

    The new offsets are printed first. They are set only with --execute. An offset outside the log becomes the
    nearest one inside.
    """
    from kreplica.cli import group as command
    from kreplica.cli.scope import parse_scope

    asked = {
        "earliest": to_earliest or None,
        "latest": to_latest or None,
        "datetime": to_datetime,
        "duration": by_duration,
        "offset": to_offset,
        "shift": shift_by,
        "file": from_file,
    }
    given = [how for how, value in asked.items() if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            "give one of --to-earliest, --to-latest, --to-datetime, --by-duration, --to-offset, --shift-by"
            " and --from-file"
        )
    offsets, how = None, given[0]
    value = to_offset if to_offset is not None else shift_by or 0
    if to_datetime is not None:
        moment = to_datetime if to_datetime.tzinfo else to_datetime.replace(tzinfo=UTC)
        value = round(moment.timestamp() * 1000)
    if by_duration is not None:
        how, value = "datetime", parsed(partial(command.parse_duration, by_duration), "--by-duration")
    if from_file is not None:
        offsets = parsed(partial(command.parse_file, from_file.read_text().splitlines()), "--from-file")
    scope = parsed(partial(parse_scope, topics or ()), "--topic")
    target = command.Target(how, value, offsets)
    reset = partial(command.reset_offsets, bootstrap, group_id, scope, target, execute, as_json)
    raise typer.Exit(parsed(reset, "--bootstrap"))


@group_app.command("delete")
def group_delete(
    group_ids: Annotated[
        list[str], typer.Argument(metavar="GROUP...", help="The groups' ids.", show_default=False)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Delete groups without members, and their offsets.

    The groups are printed first. They are deleted only with --execute.
    """
    from kreplica.cli import group as command

    delete = partial(command.delete_groups, bootstrap, group_ids, execute, as_json)
    raise typer.Exit(parsed(delete, "--bootstrap"))


@group_app.command("delete-offsets")
def group_delete_offsets(
    group_id: GroupId,
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1]",
            help="Delete the offsets of this topic, or of some of its partitions; may be repeated.",
            show_default=False,
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Delete committed offsets of a group.

    No member may subscribe to the topics. The offsets are printed first. They are deleted only with
    --execute.
    """
    from kreplica.cli import group as command
    from kreplica.cli.scope import parse_scope

    scope = parsed(partial(parse_scope, topics), "--topic")
    delete = partial(command.delete_offsets, bootstrap, group_id, scope, execute, as_json)
    raise typer.Exit(parsed(delete, "--bootstrap"))


# ---- transactions ----------------------------------------------------------------------------------------


@transactions_app.command("list")
def transactions_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="List only those in this state, such as Ongoing; may be repeated."),
    ] = None,
    producer_ids: Annotated[
        list[int] | None,
        typer.Option("--producer-id", min=0, help="List only those of this producer; may be repeated."),
    ] = None,
    longer_than: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="List only those that have been open for longer."),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="List only ids that match this regular expression as a whole.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the transactional ids, with their states.

    Exits with 1 if a coordinator did not answer.
    """
    from kreplica.cli import transactions as command
    from kreplica.common.types import INT64_MAX

    if longer_than is not None and not isfinite(longer_than):
        raise typer.BadParameter("it must be a number of seconds", param_hint="--longer-than")
    longer_than_ms = -1 if longer_than is None else int(min(longer_than * 1000, INT64_MAX))
    wanted = command.Wanted(states or (), producer_ids or (), longer_than_ms, pattern)
    raise typer.Exit(parsed(partial(command.list_transactions, bootstrap, wanted, as_json), "--bootstrap"))


@transactions_app.command("describe")
def transactions_describe(
    transactional_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The transactional ids.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show producers, timeouts and partitions of transactions.

    Of a transaction that is ending, the partitions are those without their marker.
    """
    from kreplica.cli import transactions as command

    raise typer.Exit(parsed(partial(command.describe, bootstrap, transactional_ids, as_json), "--bootstrap"))


@transactions_app.command("find-hanging")
def transactions_find_hanging(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[str | None, typer.Option(help="Look only at this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Look only at this partition.")] = None,
    broker_id: Annotated[
        int | None, typer.Option(help="Look only at partitions that this broker leads.")
    ] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            metavar="MINUTES",
            min=0,
            help="Show only transactions without a write for this time; 0 shows all.",
        ),
    ] = 15,
    as_json: Json = False,
) -> None:
    """List open transactions that no coordinator will end.

    They hide all later records from readers of committed records. Exits with 1 if a partition could not be
    checked.
    """
    from kreplica.cli import transactions as command

    find = partial(
        command.find_hanging, bootstrap, topic, partition, broker_id, max_transaction_timeout, as_json
    )
    raise typer.Exit(parsed(find, "--bootstrap"))


@transactions_app.command("abort")
def transactions_abort(
    topic: Annotated[str, typer.Option(help="Topic of the transaction.", show_default=False)],
    partition: Annotated[int, typer.Option(min=0, help="Partition of the transaction.", show_default=False)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="First offset of the transaction, as find-hanging prints it.")
    ] = None,
    producer_id: Annotated[int | None, typer.Option(min=0, help="Id of the producer that began it.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Abort it also if a coordinator will end the transaction.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Abort an open transaction in one partition.

    Its records stay hidden for good; later records become visible. Use this only if no producer and no
    coordinator will commit the transaction.
    """
    from kreplica.cli import transactions as command
    from kreplica.common.types import TopicPartition

    if start_offset is None and producer_id is None:
        raise typer.BadParameter("give --start-offset or --producer-id", param_hint="--start-offset")
    at = TopicPartition(topic, partition)
    abort = partial(command.abort, bootstrap, at, start_offset, producer_id, force, as_json)
    raise typer.Exit(parsed(abort, "--bootstrap"))
