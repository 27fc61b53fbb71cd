"""The subcommands of `kreplica`: names, arguments, options. Each is implemented in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kreplica.cli import cluster_app, serve_app

app = typer.Typer(
    help="A durable, replicated, partitioned log: inspect its files, check them, run nodes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("kreplica"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    del version  # acted upon by its callback


Paths = Annotated[
    list[Path],
    typer.Argument(exists=True, help="Segments, other files of a log, or directories.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


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


@app.command("isr-history")
def isr_history(
    directory: Annotated[
        Path,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="A node's log directory, or its metadata log.",
            show_default=False,
        ),
    ],
    topic: Annotated[str | None, typer.Option(help="Show only this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Show only this partition.")] = None,
    as_json: Json = False,
) -> None:
    """Print when the leaders and ISRs of partitions changed.

    Reads the metadata log; every node has a copy, and the node may run. The history survives restarts
    and goes back to the log's oldest snapshot. The last changes may not be committed yet.
    """
    from kreplica.cli import isr_history as command

    log = command.metadata_log_in(directory)
    if log is None:
        text = f"{directory} has no metadata log: name a node's log directory"
        raise typer.BadParameter(text, param_hint="DIRECTORY")
    raise typer.Exit(command.run(log, topic, partition, as_json))


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
    command.tell_what_is_left_out(paths)
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        raise typer.Exit(spark.verify(list(map(str, paths)), master, as_json))
    raise typer.Exit(command.run(list(map(str, paths)), as_json))


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
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Json = False,
) -> None:
    """Compare two replicas byte by byte.

    Takes two directories of one partition, of two nodes, or of two clusters. Exits with 1 if they differ,
    with 2 if they have nothing in common to compare.
    """
    from kreplica.cli import diff as command
    from kreplica.cli.verify import tell_what_is_left_out

    pairs = command.pairs(left, right)
    if pairs is None:
        raise typer.BadParameter(
            "name two partitions, or the log directories of two nodes", param_hint="RIGHT"
        )
    if not any(pair.left is not None and pair.right is not None for pair in pairs):
        raise typer.BadParameter("the two sides have no partition in common", param_hint="RIGHT")
    tell_what_is_left_out((left, right))
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        raise typer.Exit(spark.diff(str(left), str(right), by_record, master, as_json))
    raise typer.Exit(command.run(pairs, by_record, as_json))


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


class ReadIsolation(StrEnum):
    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "txn_committed"


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
            help="Which records count: all (log_end), replicated (high_watermark), or also without"
            " open and aborted transactions (txn_committed). Default: log_end; on Spark high_watermark."
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

    bounds = {"--from-offset": from_offset, "--to-offset": to_offset, "--from-time": from_time}
    if engine is EngineName.SPARK:
        _refuse_on_spark({**bounds, "--to-time": to_time, "--overwrite": overwrite or None}, to, isolation)
        raise typer.Exit(
            _export_on_spark(
                *(directories, topic, out, columns, isolation, skip_damaged, file_rows, latest),
                *(master, as_json),
            )
        )
    if latest:
        raise typer.BadParameter("needs --engine spark", param_hint="--latest")
    try:
        found = command.partitions(directories, topic or [])
        names = command.parse_columns(columns)
        times = command.parse_time(from_time), command.parse_time(to_time)
        path = command.output_path(out, to, found, file_rows=file_rows, overwrite=overwrite, as_json=as_json)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    level = isolation or ReadIsolation.LOG_END
    wanted = command.Range(from_offset, to_offset, *times, level, skip_damaged)
    raise typer.Exit(command.run(found, to, path, names, wanted, file_rows=file_rows, as_json=as_json))


@app.command()
def offsets(
    directories: Annotated[
        list[Path],
        typer.Argument(
            exists=True, file_okay=False, help="Directories of partitions or nodes.", show_default=False
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
    those of a consumer group.
    """
    from kreplica.cli import offsets as command

    paths = [str(path.resolve()) for path in directories]
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        raise typer.Exit(spark.offsets(paths, topic or (), isolation, group, master, as_json))
    raise typer.Exit(command.run(paths, topic or (), isolation, group, as_json))


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


def _export_on_spark(
    directories: list[Path],
    topics: list[str] | None,
    out: str | None,
    columns: str | None,
    isolation: ReadIsolation | None,
    skip_damaged: bool,
    file_rows: int | None,
    latest: bool,
    master: str,
    as_json: bool,
) -> int:
    from kreplica.cli import export as command
    from kreplica.cli import spark

    try:
        found = command.partitions(directories, topics or [])
        names = command.parse_columns(columns)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if out is None or out == "-":
        raise typer.BadParameter("name a directory; --engine spark writes several files", param_hint="--out")
    committed = isolation is ReadIsolation.TXN_COMMITTED
    wanted = spark.Wanted(found, names, committed, skip_damaged, file_rows)
    return spark.export(wanted, out, latest=latest, master=master, as_json=as_json)


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
        typer.Option(min=0.001, help="Simulated minutes for each seed; only with --driver nodes."),
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

    if minutes is not None and driver is not Driver.NODES:
        raise typer.BadParameter("needs --driver nodes", param_hint="--minutes")
    raise typer.Exit(command.run(driver, range(seed, seed + seeds), minutes, events, reduce, as_json))


serve_app.register(app)
cluster_app.register(app)
