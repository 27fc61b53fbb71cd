"""`kreplica cluster`: what a Kafka-compatible cluster consists of, whether it is well, and even loads.

Thread rule: one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from kreplica.cli import reassignment
from kreplica.cli.balance import balance, balance_leaders
from kreplica.cli.broker import fullest, used
from kreplica.cli.cluster_admin import LOOK_AGAIN_S, ClusterAdmin
from kreplica.cli.output import Fact, counted, print_json, print_table, say, size_text
from kreplica.cli.partition import State, refuse_if_moving, states_of
from kreplica.cli.quorum import described_quorum
from kreplica.cli.reassignment import How
from kreplica.cli.scope import Scope, in_scope
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    KreplicaError,
    NetworkException,
)
from kreplica.common.messages.data import ApiVersionsRequest

# Examples of each finding that are named, and the part of a disk that is full enough to be a finding.
MOST_EXAMPLES = 3
FULL = 0.9
HEALTH_COLUMNS = ("check", "found", "examples", "remedy")
VOTER_LAG_MS = 10_000


def info(bootstrap: str, as_json: bool) -> int:
    """Print what the cluster consists of; returns the exit code."""
    with ClusterAdmin(bootstrap, needs_controller=False) as admin:
        quorum = None
        if admin.no_controller is None:
            quorum = described_quorum(admin.seed).topics[0].partitions[0]
        features = admin.seed.ask(
            ApiVersionsRequest(client_software_name="kreplica", client_software_version="1")
        ).finalized_features
        sizes, problems = admin.leader_sizes()
        fact: dict[str, Any] = {
            "cluster_id": admin.cluster_id,
            "controller": None if quorum is None else quorum.leader_id,
            "controller_epoch": None if quorum is None else quorum.leader_epoch,
            "voters": [] if quorum is None else sorted(each.replica_id for each in quorum.current_voters),
            "features": {each.name: each.max_version_level for each in features},
            "brokers": len(admin.registered),
            "brokers_up": len(admin.up),
            "racks": sorted({each.rack for each in admin.registered.values() if each.rack is not None}),
            "topics": len({at.topic for at in admin.partitions}),
            "partitions": len(admin.partitions),
            "replicas": sum(len(each.replica_nodes) for each in admin.partitions.values()),
            "bytes": sum(sizes.values()),
        }
    if as_json:
        print_json(fact)
    else:
        rows = [{"name": name, "value": value} for name, value in _lines(fact)]
        print_table(f"cluster {fact['cluster_id']} at {bootstrap}", ("name", "value"), rows)
    for problem in problems:
        say(problem, stderr=True)
    return 0


def _lines(fact: dict[str, Any]) -> Iterator[tuple[str, str]]:
    controller = f"node {fact['controller']}, epoch {fact['controller_epoch']}"
    voters = ", ".join(map(str, fact["voters"]))
    yield "controller", f"{controller}; voters {voters}" if fact["voters"] else "none answers"
    yield "brokers", f"{fact['brokers_up']} of {fact['brokers']} up"
    if fact["racks"]:
        yield "racks", ", ".join(fact["racks"])
    partitions, replicas = counted(fact["partitions"], "partition"), counted(fact["replicas"], "replica")
    yield "topics", f"{fact['topics']} with {partitions} and {replicas}"
    yield "records", f"{size_text(fact['bytes'])}, without copies"
    for name, level in sorted(fact["features"].items()):
        yield name, str(level)


# ---- health ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. `is_problem`: the cluster is not healthy."""

    check: str
    examples: Sequence[str]
    remedy: str
    is_problem: bool = True

    @property
    def fact(self) -> Fact:
        """The finding for a program."""
        status = "ok" if not self.examples else "problem" if self.is_problem else "note"
        remedy = self.remedy if self.examples else ""
        return {
            "check": self.check,
            "status": status,
            "count": len(self.examples),
            "examples": list(self.examples),
            "remedy": remedy,
        }


def health(bootstrap: str, wait_s: float, as_json: bool) -> int:
    """Print what is wrong with the cluster, and wait up to `wait_s` until nothing is; returns the exit code.

    The code is 1 if something is wrong. Raises NetworkException if no broker answers.
    """
    deadline = time.monotonic() + wait_s
    while True:
        late = time.monotonic() >= deadline
        try:
            with ClusterAdmin(bootstrap, needs_controller=False) as admin:
                findings = list(findings_of(admin))
                cluster_id = admin.cluster_id
        except (NetworkException, OSError):
            if late:
                raise
        else:
            is_well = not any(each.is_problem and each.examples for each in findings)
            if is_well or late:
                break
        time.sleep(LOOK_AGAIN_S)
    _print_health(f"cluster {cluster_id}", findings, is_well, as_json)
    return 0 if is_well else 1


def _print_health(cluster: str, findings: Sequence[Finding], is_well: bool, as_json: bool) -> None:
    if as_json:
        for each in findings:
            print_json(each.fact)
        return
    say(f"{cluster} is {'healthy' if is_well else 'NOT healthy'}")
    rows = [
        {
            "check": each.check,
            "found": str(len(each.examples)),
            "examples": _examples(each.examples),
            "remedy": each.remedy,
        }
        for each in findings
        if each.examples
    ]
    if rows:
        print_table("Findings", HEALTH_COLUMNS, rows)


def _examples(found: Sequence[str]) -> str:
    more = len(found) - MOST_EXAMPLES
    return ", ".join(found[:MOST_EXAMPLES]) + (f" and {more} more" if more > 0 else "")


def findings_of(admin: ClusterAdmin) -> Iterator[Finding]:
    """Yield the result of each check."""
    states = states_of(admin)

    def named(state: State) -> list[str]:
        return [str(at) for at, found in states.items() if state in found]

    down = [str(each) for each in admin.registered if each not in admin.up]
    yield Finding(
        "brokers that are down", down, "start them, or remove them by `kreplica broker decommission`"
    )
    yield Finding(
        "partitions without a leader",
        named(State.OFFLINE),
        "start the brokers of their ISR; if these are lost: `kreplica partition elect --unclean`",
    )
    yield Finding(
        "partitions under min.insync.replicas",
        named(State.UNDER_MIN_ISR),
        "producers with acks=all are refused until replicas have caught up",
    )
    yield Finding(
        "under-replicated partitions",
        named(State.UNDER_REPLICATED),
        "`kreplica partition list --state under-replicated` shows what lags",
    )
    yield from _of_quorum(admin)
    yield from _of_disks(admin)
    yield Finding(
        "partitions that move", named(State.MOVING), "`kreplica partition wait` shows how far they are", False
    )
    yield Finding(
        "leaders that are not preferred", named(State.NOT_PREFERRED), "`kreplica partition elect`", False
    )


def _of_quorum(admin: ClusterAdmin) -> Iterator[Finding]:
    error, partition = admin.no_controller, None
    if error is None:
        try:
            partition = described_quorum(admin.seed).topics[0].partitions[0]
        except KreplicaError as failed:
            error = failed
    if isinstance(error, ClusterAuthorizationFailed):
        yield Finding("controllers", [str(error)], "ask as a user who may describe the cluster")
        return
    if partition is None:
        yield Finding("controllers", [str(error)], "start the voters: more than half of them have to run")
        return
    # The time of the last fetch of any voter, by the leader's clock.
    newest = max(each.last_caught_up_timestamp for each in partition.current_voters)
    late = [
        f"node {each.replica_id}"
        for each in partition.current_voters
        if each.replica_id != partition.leader_id and newest - each.last_caught_up_timestamp > VOTER_LAG_MS
    ]
    yield Finding("voters of the quorum that lag", late, "start them: `kreplica quorum describe`")


def _of_disks(admin: ClusterAdmin) -> Iterator[Finding]:
    failed, full, silent = [], [], []
    for broker, directories, problem in admin.disks():
        if problem:
            silent.append(f"broker {broker}: {problem}")
        for each in directories:
            if each.error is not None:
                failed.append(f"{each.path} of broker {broker}")
            elif each.total_bytes > 0 and used(each) >= FULL:
                full.append(f"{each.path} of broker {broker}: {fullest([each])}")
    yield Finding("brokers that do not describe their disks", silent, "look at their logs")
    yield Finding("failed disks", failed, "replace the disk and restart the broker")
    yield Finding(
        f"disks that are {FULL:.0%} full", full, "shorten the retention of topics, or add a disk or a broker"
    )


# ---- rebalance ---------------------------------------------------------------------------------------------


def rebalance(bootstrap: str, scope: Scope, leaders_only: bool, how: How) -> int:
    """Give the brokers even numbers of replicas and preferred leaders; returns the exit code.

    An empty scope means all topics. Raises BrokerNotAvailable while a broker is down,
    ReassignmentInProgress while partitions move, InvalidReplicationFactor.
    """
    with ClusterAdmin(bootstrap) as admin:
        down = [each for each in admin.registered if each not in admin.up]
        if down:
            raise BrokerNotAvailable(
                f"broker {down[0]} is down: start it, or remove it by `kreplica broker decommission"
                f" {down[0]}`, before loads are made even"
            )
        refuse_if_moving(admin, admin.layout)
        chosen = in_scope(admin.partitions, scope) if scope else sorted(admin.partitions)
        layout = {at: admin.layout[at] for at in chosen}
        if leaders_only:
            return reassignment.run(admin, balance_leaders(layout), how)
        racks = {each.broker_id: each.rack for each in admin.registered.values()}
        return reassignment.run(admin, balance(layout, racks, admin.leader_sizes()[0]), how)
