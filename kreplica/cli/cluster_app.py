"""The subcommands that talk to a cluster: names, arguments, options. What they do stands elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

topic_app = typer.Typer(help="Topics of a Kafka-compatible cluster.", no_args_is_help=True)
quorum_app = typer.Typer(help="The metadata quorum of a cluster.", no_args_is_help=True)
transactions_app = typer.Typer(
    help="Transactions that no coordinator ends: they hide what follows from readers of committed records.",
    no_args_is_help=True,
)

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="KREPLICA_BOOTSTRAP", metavar="HOST:PORT,...", help="Some of its brokers."
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Name = Annotated[str, typer.Argument(help="The topic.", show_default=False)]
Names = Annotated[list[str], typer.Argument(help="The topics.", show_default=False)]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-X", metavar="NAME=VALUE", help="A property of librdkafka; may be repeated."),
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
    internal: Annotated[bool, typer.Option("--internal", help="Those that begin with __, too.")] = False,
    as_json: Json = False,
) -> None:
    """All topics, with how many partitions have no leader or lack a replica."""
    from kreplica.cli import topic as command

    raise typer.Exit(command.list_topics(bootstrap, internal, as_json))


@topic_app.command("describe")
def topic_describe(names: Names, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Each partition's leader, replicas, ISR and offsets, and what was set for the topic."""
    from kreplica.cli import topic as command

    raise typer.Exit(command.describe(bootstrap, names, as_json))


@topic_app.command("create")
def topic_create(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1)] = 1,
    replicas: Annotated[
        int, typer.Option("--replicas", "-r", min=-1, help="-1: the cluster's default.", show_default=True)
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="May be repeated.")
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
    """Delete topics, with all that is in them."""
    from kreplica.cli import topic as command

    raise typer.Exit(command.delete(bootstrap, names, as_json))


@topic_app.command("add-partitions")
def topic_add_partitions(
    name: Name,
    total: Annotated[int, typer.Argument(min=1, help="How many in all.", show_default=False)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Give a topic more partitions; keys go elsewhere then."""
    from kreplica.cli import topic as command

    raise typer.Exit(command.add_partitions(bootstrap, name, total, as_json))


@topic_app.command("config")
def topic_config(
    name: Name,
    settings: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="NAME", help="Back to the default; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a topic's settings; without any, print them."""
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
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Instead of standard input."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Lines are JSON objects, as `consume --json` writes them.")
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="What stands between key and value.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="All into this one.")] = None,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Each into the one that its JSON object names.")
    ] = False,
    properties: Properties = None,
    summary_json: Annotated[
        bool, typer.Option("--summary-json", help="The summary as a JSON object.")
    ] = False,
) -> None:
    """Append each line as a record; done once all are acknowledged by all in-sync replicas.

    Exit code 1 where some were not: the summary says how many.
    """
    from kreplica.cli import produce as command
    from kreplica.cli import stock_client

    if json and key_separator is not None:
        raise typer.BadParameter("a JSON object has its key", param_hint="--key-separator")
    if keep_partitions and (not json or partition is not None):
        raise typer.BadParameter("needs --json, and no --partition", param_hint="--keep-partitions")
    separator = key_separator.encode().decode("unicode_escape").encode() if key_separator else None
    lines = command.Lines(json, separator, keep_partitions)
    given = _parsed(lambda: stock_client.parse_properties(properties or ()), "--property")
    source = sys.stdin.buffer if file is None else file.open("rb")
    with source:
        raise typer.Exit(command.run(bootstrap, topic, source, lines, given, partition, summary_json))


def consume(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC|DIRECTORY...", help="A topic, or log directories.", show_default=False),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[list[str] | None, typer.Option(help="Of a node's directory; may be repeated.")] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, -N (N before the end), or @ and a time.",
        ),
    ] = "earliest",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this; may be repeated.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="As a member of this group, which commits.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="So many records at most.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Open and aborted transactions, too.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="Values alone, one a line.")] = False,
    properties: Properties = None,
    as_json: Json = False,
) -> None:
    """Print records, from a cluster, or from the directories of nodes, running or not."""
    from kreplica.cli import consume as command
    from kreplica.cli import export, stock_client

    begin = _parsed(lambda: command.parse_start(start, export.parse_time), "--from")
    wanted = command.Wanted(begin, tuple(partition or ()), limit, follow, not uncommitted)
    show = command.printer(sources[0], as_json=as_json, values=values)
    if _are_directories(sources):
        if group is not None:
            raise typer.BadParameter("directories have no groups", param_hint="--group")
        paths = [Path(each) for each in sources]
        found = _parsed(lambda: command.directories(paths, topic or (), wanted.partitions), "DIRECTORY")
        raise typer.Exit(command.run_directories(found, wanted, show))
    if len(sources) > 1 or topic:
        raise typer.BadParameter("one topic of a cluster, or directories", param_hint="TOPIC|DIRECTORY")
    if group is not None and (partition or start != "earliest"):
        text = "a group gets its partitions and its offsets from the cluster"
        raise typer.BadParameter(text, param_hint="--group")
    given = _parsed(lambda: stock_client.parse_properties(properties or ()), "--property")
    raise typer.Exit(command.run(bootstrap, sources[0], group, wanted, given, show))


def _are_directories(sources: list[str]) -> bool:
    # No topic's name has a slash; a name without one may be both, and is a directory where there is one.
    return any("/" in each or Path(each).is_dir() for each in sources)


# ---- quorum ----------------------------------------------------------------------------------------------

VoterId = Annotated[int, typer.Option("--node-id", min=0, help="The controller.", show_default=False)]
VoterDirectory = Annotated[
    str,
    typer.Option("--directory-id", help="The id of its metadata directory, as `describe` prints it."),
]
ClusterId = Annotated[str | None, typer.Option("--cluster-id", help="Refuse another cluster.")]


@quorum_app.command("describe")
def quorum_describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """The leader, the voters and the observers, and how far each is."""
    from kreplica.cli import quorum as command

    raise typer.Exit(_parsed(lambda: command.describe(bootstrap, as_json), "--bootstrap"))


@quorum_app.command("add-voter")
def quorum_add_voter(
    node_id: VoterId,
    directory_id: VoterDirectory,
    listener: Annotated[
        list[str], typer.Option("--listener", metavar="NAME://HOST:PORT", help="Where it listens.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
) -> None:
    """Make a controller that runs, and has caught up, a voter."""
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
    """Let a voter be none any more."""
    from kreplica.cli import quorum as command

    change = partial(command.remove_voter, bootstrap, cluster_id, node_id, directory_id)
    raise typer.Exit(_parsed(change, "--bootstrap"))


# ---- transactions ----------------------------------------------------------------------------------------


@transactions_app.command("find-hanging")
def transactions_find_hanging(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only of this partition.")] = None,
    broker_id: Annotated[int | None, typer.Option(help="Only of partitions that it leads.")] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            metavar="MINUTES", min=0, help="Those that were written to since are left out; 0: none are."
        ),
    ] = 15,
    as_json: Json = False,
) -> None:
    """Open transactions, which hide the records behind them from readers of committed ones.

    Exit code 1 where a partition could not be looked at.
    """
    from kreplica.cli import transactions as command

    find = partial(
        command.find_hanging, bootstrap, topic, partition, broker_id, max_transaction_timeout, as_json
    )
    raise typer.Exit(_parsed(find, "--bootstrap"))


@transactions_app.command("abort")
def transactions_abort(
    topic: Annotated[str, typer.Option(help="The topic.", show_default=False)],
    partition: Annotated[int, typer.Option(min=0, help="The partition.", show_default=False)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="Where it begins, as find-hanging prints it.")
    ] = None,
    producer_id: Annotated[int | None, typer.Option(min=0, help="Whose it is.")] = None,
    as_json: Json = False,
) -> None:
    """Abort an open transaction in one partition: its records stay hidden, those behind it do not.

    Only for a transaction whose producer and coordinator are gone: what they would still commit is lost.
    """
    from kreplica.cli import transactions as command
    from kreplica.common.types import TopicPartition

    if start_offset is None and producer_id is None:
        raise typer.BadParameter("name --start-offset or --producer-id", param_hint="--start-offset")
    at = TopicPartition(topic, partition)
    abort = partial(command.abort, bootstrap, at, start_offset, producer_id, as_json)
    raise typer.Exit(_parsed(abort, "--bootstrap"))
