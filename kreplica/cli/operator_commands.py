"""The subcommands by which operators look after a cluster: `cluster`, `broker`, `partition`, `profile`.

As in `app`, the file that implements a subcommand is imported when it runs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kreplica.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Execute, Json, parse_size, parsed, with_options

if TYPE_CHECKING:
    from kreplica.cli.reassignment import How

cluster_app = typer.Typer(help="Show a cluster and its health; make its load even.", no_args_is_help=True)
broker_app = typer.Typer(help="Show the brokers and their disks; take one out.", no_args_is_help=True)
partition_app = typer.Typer(help="Show partitions, move their replicas, elect leaders.", no_args_is_help=True)
profile_app = typer.Typer(help="Keep the addresses and logins of clusters under names.", no_args_is_help=True)

Wait = Annotated[bool, typer.Option("--wait", help="Show the progress, and wait for the end of the moves.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Wait no longer than this.")
]


class Moving(NamedTuple):
    """How moves are carried out, as options."""

    execute: Execute = False
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            help="Limit of the bytes that are copied each second from and to a broker, such as 20MiB.",
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="NUMBER",
            min=1,
            help="Move at most this many partitions at a time. Default: all at once.",
        ),
    ] = None
    timeout: Timeout = None
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            dir_okay=False,
            metavar="FILE",
            help="Write the replicas before the moves to a file, for the way back.",
        ),
    ] = None
    as_json: Json = False

    def how(self, *, wait: bool) -> How:
        """Return it as the commands take it."""
        from kreplica.cli.reassignment import How

        throttle = self.throttle
        if self.batch is not None and self.execute and not wait:
            raise typer.BadParameter("needs --wait: the command begins each batch", param_hint="--batch")
        return How(
            execute=self.execute,
            wait=wait,
            throttle=None if throttle is None else parsed(partial(parse_size, throttle), "--throttle"),
            timeout_s=self.timeout,
            batch=self.batch,
            save=self.save,
            as_json=self.as_json,
        )


Topics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC[:0,1]",
        help="Topics, or some of their partitions. Default: all.",
        show_default=False,
    ),
]


# ---- cluster ---------------------------------------------------------------------------------------------


@cluster_app.command("info")
def cluster_info(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the controller, brokers, size and features of a cluster."""
    from kreplica.cli import cluster as command

    raise typer.Exit(parsed(lambda: command.info(bootstrap, as_json), "--bootstrap"))


@cluster_app.command("health")
def cluster_health(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="Wait up to this time for the cluster to be healthy."
        ),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Check brokers, leaders, in-sync replicas, quorum and disks.

    Exits with 0 if the cluster is healthy, and with 1 if something is wrong or no broker answers. Moves of
    partitions and leaders that are not the preferred ones are shown, and are no problem.
    """
    from kreplica.cli import cluster as command

    raise typer.Exit(parsed(lambda: command.health(bootstrap, wait, as_json), "--bootstrap"))


@cluster_app.command("rebalance")
@with_options(moving=Moving)
def cluster_rebalance(
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    leaders_only: Annotated[
        bool, typer.Option("--leaders-only", help="Copy nothing; only choose other preferred leaders.")
    ] = False,
    wait: Wait = False,
    moving: Moving = Moving(),
) -> None:
    """Give all brokers the same number of replicas and leaders.

    The fewest moves are made. The plan is printed first. It is carried out only with --execute. The replicas
    of a partition stay in as many racks as they are in, or come into more. All brokers have to be up.
    """
    from kreplica.cli import cluster as command
    from kreplica.cli.scope import parse_scope

    how = moving.how(wait=wait)
    scope = parsed(partial(parse_scope, topics or ()), "TOPIC")
    balance = partial(command.rebalance, bootstrap, scope, leaders_only, how)
    raise typer.Exit(parsed(balance, "--bootstrap"))


# ---- broker ----------------------------------------------------------------------------------------------


@broker_app.command("list")
def broker_list(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """List the brokers with their partitions and disks.

    Brokers that are registered and do not run are listed, too.
    """
    from kreplica.cli import broker as command

    raise typer.Exit(parsed(lambda: command.list_brokers(bootstrap, as_json), "--bootstrap"))


@broker_app.command("decommission")
@with_options(moving=Moving)
def broker_decommission(
    broker_id: Annotated[
        int, typer.Argument(metavar="ID", min=0, help="Id of the broker.", show_default=False)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    moving: Moving = Moving(),
) -> None:
    """Move all replicas off a broker, and unregister it.

    Run it while the broker is up: it moves the replicas and waits. Then stop the broker, and run it again.
    Exits with 1 while something remains to be done, and says what. The broker may be lost: then its replicas
    are copied from the others.
    """
    from kreplica.cli import broker as command

    how = moving.how(wait=True)
    raise typer.Exit(parsed(lambda: command.decommission(bootstrap, broker_id, how), "--bootstrap"))


# ---- partition -------------------------------------------------------------------------------------------


@partition_app.command("list")
def partition_list(
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="List only partitions in this state: offline, under-min-isr, under-replicated, moving or"
            " not-preferred; may be repeated.",
        ),
    ] = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Include internal topics, whose names begin with __.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List partitions with their leaders, sizes and problems.

    Partitions of internal topics are listed if they are named, with --state, or with --internal.
    """
    from kreplica.cli import partition as command
    from kreplica.cli.scope import parse_scope

    scope = parsed(partial(parse_scope, topics or ()), "TOPIC")
    wanted = parsed(lambda: list(map(command.parse_state, states or ())), "--state")
    raise typer.Exit(
        parsed(partial(command.list_partitions, bootstrap, scope, wanted, internal, as_json), "--bootstrap")
    )


@partition_app.command("move")
@with_options(moving=Moving)
def partition_move(
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="ID,...", help="Brokers of the replicas; the first is the preferred leader."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Instead: a JSON file as kafka-reassign-partitions.sh takes it, or as --save writes it.",
        ),
    ] = None,
    wait: Wait = False,
    moving: Moving = Moving(),
) -> None:
    """Move the replicas of partitions to other brokers.

    Partitions may get more or fewer replicas, too. The plan is printed first. It is carried out only with
    --execute. The moves go on when this command ends; --throttle then holds until `kreplica partition wait`
    has seen their end.
    """
    from kreplica.cli import partition as command
    from kreplica.cli.reassignment import read_layout
    from kreplica.cli.scope import parse_scope

    if (to is None) == (file is None) or (file is not None) == bool(topics):
        raise typer.BadParameter("give topics and --to, or only --file", param_hint="--to")
    replicas = parsed(partial(command.parse_replicas, to or ""), "--to") if to is not None else ()
    how = moving.how(wait=wait)
    scope = parsed(partial(parse_scope, topics or ()), "TOPIC")
    layout = None if file is None else read_layout(file)
    raise typer.Exit(parsed(partial(command.move, bootstrap, scope, replicas, layout, how), "--bootstrap"))


@partition_app.command("wait")
def partition_wait(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Show the progress of all moves until they have ended.

    Then remove their throttle. Exits with 1 if a move was cancelled, or time is up.
    """
    from kreplica.cli import partition as command
    from kreplica.cli.reassignment import How

    how = How(timeout_s=timeout, as_json=as_json)
    raise typer.Exit(parsed(lambda: command.wait(bootstrap, how), "--bootstrap"))


@partition_app.command("cancel")
def partition_cancel(
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Cancel moves of partitions. They return to the replicas before."""
    from kreplica.cli import partition as command
    from kreplica.cli.scope import parse_scope

    scope = parsed(partial(parse_scope, topics or ()), "TOPIC")
    raise typer.Exit(parsed(partial(command.cancel, bootstrap, scope, execute, as_json), "--bootstrap"))


@partition_app.command("elect")
def partition_elect(
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect a replica that is not in sync, for partitions without a leader. Records are lost.",
        ),
    ] = False,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Let the preferred leaders of partitions lead.

    These are the first of their replicas. With --unclean, let any replica lead where all that are in sync are
    lost. The topics have to be named.
    """
    from kreplica.cli import partition as command
    from kreplica.cli.scope import parse_scope

    if unclean and not topics:
        raise typer.BadParameter(
            "needs the topics to be named, since it loses records", param_hint="--unclean"
        )
    scope = parsed(partial(parse_scope, topics or ()), "TOPIC")
    elect = partial(command.elect, bootstrap, scope, unclean, execute, as_json)
    raise typer.Exit(parsed(elect, "--bootstrap"))


# ---- profile ---------------------------------------------------------------------------------------------


def complete_profile(incomplete: str) -> list[str]:
    """Return the names of profiles that begin like this, for completion."""
    from kreplica.cli.profiles import read_profiles

    return [name for name in sorted(read_profiles().named) if name.startswith(incomplete)]


ProfileName = Annotated[
    str, typer.Argument(help="Name of the profile.", show_default=False, autocompletion=complete_profile)
]


@profile_app.command("add")
def profile_add(
    name: Annotated[str, typer.Argument(help="Name of the profile.", show_default=False)],
    servers: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            "--bootstrap",
            "-b",
            metavar="HOST:PORT,...",
            help="Addresses of some brokers.",
            show_default=False,
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            exists=True,
            dir_okay=False,
            help="File of properties that says how to log in. Its path is kept, not its contents.",
        ),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Let commands use it from now on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a profile of this name.")] = False,
    as_json: Json = False,
) -> None:
    """Add a cluster. The first profile is used at once."""
    from kreplica.cli import profile as command
    from kreplica.cli.profiles import Profile

    made = Profile(servers, None if config is None else str(config.absolute()))
    add = partial(command.add, name, made, use=use, replace=replace, as_json=as_json)
    raise typer.Exit(parsed(add, "--bootstrap-server"))


@profile_app.command("list")
def profile_list(as_json: Json = False) -> None:
    """List the profiles."""
    from kreplica.cli import profile as command

    raise typer.Exit(command.list_profiles(as_json))


@profile_app.command("use")
def profile_use(name: ProfileName, as_json: Json = False) -> None:
    """Let commands connect to this cluster when no server is named."""
    from kreplica.cli import profile as command

    raise typer.Exit(command.use(name, as_json))


@profile_app.command("show")
def profile_show(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the profile. Default: the one in use.", autocompletion=complete_profile),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a profile."""
    from kreplica.cli import profile as command

    raise typer.Exit(command.show(name, as_json))


@profile_app.command("remove")
def profile_remove(name: ProfileName, as_json: Json = False) -> None:
    """Remove a profile. The file that says how to log in stays."""
    from kreplica.cli import profile as command

    raise typer.Exit(command.remove(name, as_json))
