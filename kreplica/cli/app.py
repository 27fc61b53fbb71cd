"""The subcommands of `kreplica`: names, arguments, options. What they do stands in files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kreplica.cli import cluster_app, serve_app

app = typer.Typer(
    help="A durable, replicated, partitioned log: look into its files, check them, run it.",
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
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # acted upon by its callback


Paths = Annotated[list[Path], typer.Argument(exists=True, help="Files or directories.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


class EngineName(StrEnum):
    LOCAL = "local"
    SPARK = "spark"


Engine = Annotated[
    EngineName, typer.Option("--engine", help="This process alone, or Spark (kreplica[spark]).")
]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where Spark runs: local[4], spark://...")
]
DEFAULT_MASTER = "local[*]"


@app.command()
def dump(
    paths: Paths,
    deep: Annotated[bool, typer.Option("--deep", help="The records of segments, not only batches.")] = False,
    as_json: Json = False,
) -> None:
    """Print what stands in segments, indexes, snapshots, checkpoints and the small files beside them."""
    from kreplica.cli import dump as command

    for path in paths:
        if not command.is_known(path):
            raise typer.BadParameter(f"{path} is no file of a log", param_hint="PATHS")
    raise typer.Exit(command.run(list(map(str, paths)), deep, as_json))


@app.command()
def verify(
    paths: Paths,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Json = False,
) -> None:
    """Check every invariant of segments, partitions, log directories, or clusters' folders.

    Exit code 1 if one does not hold, 2 if there is nothing to check.
    """
    from kreplica.cli import verify as command

    for path in paths:
        if not command.is_log(path):
            raise typer.BadParameter(f"{path} is no segment and holds no log", param_hint="PATHS")
    command.tell_what_is_left_out(paths)
    if engine is EngineName.SPARK:
        from kreplica.cli import spark

        raise typer.Exit(spark.verify(list(map(str, paths)), master, as_json))
    raise typer.Exit(command.run(list(map(str, paths)), as_json))


Directory = Annotated[Path, typer.Argument(exists=True, file_okay=False, show_default=False)]


@app.command()
def diff(
    left: Directory,
    right: Directory,
    by_record: Annotated[
        bool, typer.Option("--records", help="Where batches differ, compare their records (compacted logs).")
    ] = False,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Json = False,
) -> None:
    """Compare two replicas, by directories of a partition, of two nodes or two clusters.

    Exit code 1 if they differ, 2 if there is nothing to compare.
    """
    from kreplica.cli import diff as command
    from kreplica.cli.verify import tell_what_is_left_out

    pairs = command.pairs(left, right)
    if pairs is None:
        raise typer.BadParameter("neither two partitions nor two nodes' log directories", param_hint="RIGHT")
    if not any(pair.left is not None and pair.right is not None for pair in pairs):
        raise typer.BadParameter("they have no partition in common to compare", param_hint="RIGHT")
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
            help="The same directory of another replica: lost ranges are taken from it where both agree.",
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; else nothing is changed.")] = False,
    as_json: Json = False,
) -> None:
    """Mend a partition or a log directory and throw no valid record away; exit code 1 if anything is left."""
    from kreplica.cli import repair as command

    if not command.is_log(directory):
        raise typer.BadParameter(f"{directory} holds no log", param_hint="DIRECTORY")
    if peer is not None and not command.is_log(peer):
        raise typer.BadParameter(f"{peer} holds no log", param_hint="--from")
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
            exists=True, file_okay=False, help="Partitions', or a node's with --topic.", show_default=False
        ),
    ],
    to: Annotated[Format, typer.Option("--to", help="The format.", show_default=False)],
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="The file; - is standard output; on Spark a directory.")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Of a node's directory; may be repeated.")] = None,
    columns: Annotated[str | None, typer.Option(help="Which, with commas between them.")] = None,
    from_offset: Annotated[int | None, typer.Option(min=0, help="The first offset.")] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="The offset to end before.")] = None,
    from_time: Annotated[str | None, typer.Option(help="The least timestamp: ISO, or ms since 1970.")] = None,
    to_time: Annotated[str | None, typer.Option(help="The timestamp to end before.")] = None,
    isolation: Annotated[
        ReadIsolation | None,
        typer.Option(
            help="log_end, on Spark high_watermark; txn_committed leaves out what was aborted or is open."
        ),
    ] = None,
    skip_damaged: Annotated[bool, typer.Option("--skip-damaged", help="Pass over what rotted.")] = False,
    file_rows: Annotated[int | None, typer.Option(min=1, help="So many rows a file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    latest: Annotated[
        bool, typer.Option("--latest", help="On Spark: the last value of each key alone, to a new directory.")
    ] = False,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as a JSON object.")] = False,
) -> None:
    """Write the records of partitions to Parquet, Arrow (IPC file) or JSON lines.

    In JSON lines, keys and values are strings where they are UTF-8, else key_base64 and value_base64. What
    has rotted is an error, which names its offset and leaves no file behind.

    On Spark, --out is a directory of Parquet files by topic and partition. Each run adds what is new since
    the last one, each record once.
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
        typer.Argument(exists=True, file_okay=False, help="Partitions', or nodes'.", show_default=False),
    ],
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this of nodes' directories; may be repeated.")
    ] = None,
    isolation: Annotated[
        ReadIsolation, typer.Option(help="Which records count: as `export` has it.")
    ] = ReadIsolation.HIGH_WATERMARK,
    group: Annotated[
        str | None, typer.Option(help="A consumer group, as far as these directories know of it.")
    ] = None,
    engine: Engine = EngineName.LOCAL,
    master: Master = DEFAULT_MASTER,
    as_json: Json = False,
) -> None:
    """Count records, tell gaps, where each replica stands, how far it is behind, and how far a group is."""
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
                "a run on Spark adds what is new since the last one, all of it", param_hint=name
            )
    if to is not Format.PARQUET:
        raise typer.BadParameter("Spark writes parquet", param_hint="--to")
    if isolation is ReadIsolation.LOG_END:
        text = "what is not committed may be taken back, and Spark reads no further: high_watermark"
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
        raise typer.BadParameter("name a directory", param_hint="--out")
    committed = isolation is ReadIsolation.TXN_COMMITTED
    wanted = spark.Wanted(found, names, committed, skip_damaged, file_rows)
    return spark.export(wanted, out, latest=latest, master=master, as_json=as_json)


class Driver(StrEnum):
    NODES = "nodes"
    BROKERS = "brokers"
    QUORUM = "quorum"


@app.command()
def sim(
    seed: Annotated[int, typer.Option(help="The first seed; all chance comes from it.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, one after the other.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0.001, help="Minutes of virtual time for each, of whole nodes.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="Or so many events for each.")] = 2_000,
    driver: Annotated[
        Driver, typer.Option(help="Whole nodes, brokers under a scripted controller, or a quorum alone.")
    ] = Driver.NODES,
    reduce: Annotated[
        float, typer.Option(min=0, help="Seconds to look for a shorter run that fails the same way.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Run clusters under a virtual clock, with load and faults drawn from seeds, and every invariant checked.

    A violation ends it with exit code 1: its seed is told, and a short run that a person can read. Anything
    else that goes wrong is exit code 2. The same seed gives the same event hash, in any process.
    """
    from kreplica.cli import sim as command

    if minutes is not None and driver is not Driver.NODES:
        raise typer.BadParameter("only runs of whole nodes go by minutes", param_hint="--minutes")
    raise typer.Exit(command.run(driver, range(seed, seed + seeds), minutes, events, reduce, as_json))


serve_app.register(app)
cluster_app.register(app)
