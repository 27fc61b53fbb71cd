"""The subcommands that talk to a cluster: names, arguments, options. They are implemented in other files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

topic_app = typer.Typer(help="Manage the topics of a Kafka-compatible cluster.", no_args_is_help=True)
quorum_app = typer.Typer(help="Show and change the metadata quorum of a cluster.", no_args_is_help=True)
transactions_app = typer.Typer(
    help="Find and abort abandoned transactions.",
    no_args_is_help=True,
)

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="KREPLICA_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Addresses of some brokers.",
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Name = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]
Names = Annotated[list[str], typer.Argument(help="Names of the topics.", show_default=False)]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-X", metavar="NAME=VALUE", help="Set a property of librdkafka; may be repeated."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the subcommands to the command line."""
    app.add_typer(topic_app, name="topic")
    app.command()(produce)
    app.command()(consume)
    app.add_typer(quorum_app, name="quorum")
    app.add_typer(transactions_app, name="transactions")


def _parsed(parse: Callable[[], T], hint: str) -> T:
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


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

    settings = _parsed(lambda: stock_client.parse_properties(config or ()), "--config")
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

    changes = _parsed(lambda: stock_client.parse_properties(settings or ()), "SETTINGS")
    raise typer.Exit(command.configure(bootstrap, name, changes, drop or (), as_json))


# ---- records ---------------------------------------------------------------------------------------------


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
    given = _parsed(lambda: stock_client.parse_properties(properties or ()), "--property")
    source = sys.stdin.buffer if file is None else file.open("rb")
    with source:
        raise typer.Exit(command.run(bootstrap, topic, source, lines, given, partition, summary_json))


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

    begin = _parsed(lambda: command.parse_start(start, export.parse_time), "--from")
    wanted = command.Wanted(begin, tuple(partition or ()), limit, follow, not uncommitted)
    show = command.printer(sources[0], as_json=as_json, values=values)
    if _are_directories(sources):
        if group is not None:
            raise typer.BadParameter("works with a cluster only, not with directories", param_hint="--group")
        paths = [Path(each) for each in sources]
        found = _parsed(lambda: command.directories(paths, topic or (), wanted.partitions), "DIRECTORY")
        raise typer.Exit(command.run_directories(found, wanted, show))
    if len(sources) > 1 or topic:
        raise typer.BadParameter(
            "name one topic of a cluster, or one or more directories", param_hint="TOPIC|DIRECTORY"
        )
    if group is not None and (partition or start != "earliest"):
        text = "cannot be used with --partition or --from: the cluster assigns partitions and offsets"
        raise typer.BadParameter(text, param_hint="--group")
    given = _parsed(lambda: stock_client.parse_properties(properties or ()), "--property")
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


@quorum_app.command("describe")
def quorum_describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the leader, the voters and the observers.

    Shows for each how far it has replicated the metadata log.
    """
    from kreplica.cli import quorum as command

    raise typer.Exit(_parsed(lambda: command.describe(bootstrap, as_json), "--bootstrap"))


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
    raise typer.Exit(_parsed(change, "--listener, --bootstrap"))


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
    raise typer.Exit(_parsed(change, "--bootstrap"))


# ---- transactions ----------------------------------------------------------------------------------------


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
    """List open transactions that seem abandoned.

    They hide all later records from readers of committed records. Exits with 1 if a partition could not be
    checked.
    """
    from kreplica.cli import transactions as command

    find = partial(
        command.find_hanging, bootstrap, topic, partition, broker_id, max_transaction_timeout, as_json
    )
    raise typer.Exit(_parsed(find, "--bootstrap"))


@transactions_app.command("abort")
def transactions_abort(
    topic: Annotated[str, typer.Option(help="Topic of the transaction.", show_default=False)],
    partition: Annotated[int, typer.Option(min=0, help="Partition of the transaction.", show_default=False)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="First offset of the transaction, as find-hanging prints it.")
    ] = None,
    producer_id: Annotated[int | None, typer.Option(min=0, help="Id of the producer that began it.")] = None,
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
    abort = partial(command.abort, bootstrap, at, start_offset, producer_id, as_json)
    raise typer.Exit(_parsed(abort, "--bootstrap"))
