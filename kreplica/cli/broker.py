"""`kreplica broker`: the brokers of any Kafka-compatible cluster, with their disks, and how one leaves.

A broker leaves in two steps: its replicas move to others while it runs, then it is stopped and its
registration is removed. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kreplica.cli import reassignment
from kreplica.cli.balance import vacate
from kreplica.cli.cluster_admin import ClusterAdmin, LogDirectory, reachable
from kreplica.cli.output import Fact, print_facts, print_json, say, size_text
from kreplica.cli.partition import refuse_if_moving
from kreplica.cli.quorum import described_quorum
from kreplica.cli.reassignment import PATIENCE_S, How
from kreplica.common.errors import BrokerIdNotRegistered
from kreplica.common.types import TopicPartition

LIST_COLUMNS = ("id", "address", "rack", "state", "leads", "replicas", "logs", "disk")
# How often new replicas are moved off a broker, in case topics are created on it meanwhile.
MOST_ROUNDS = 10


def list_brokers(bootstrap: str, as_json: bool) -> int:
    """Print the brokers with their partitions and disks; returns the exit code."""
    problems: list[str] = []
    with ClusterAdmin(bootstrap, needs_controller=False) as admin:
        known = {}
        for broker, directories, problem in admin.disks():
            if problem:
                problems.append(f"disks of broker {broker}: {problem}")
            else:
                known[broker] = directories
        facts = [_fact(admin, each, known.get(each), problems, as_json) for each in admin.registered]
    print_facts(f"brokers of cluster {admin.cluster_id}", LIST_COLUMNS, facts, as_json)
    for problem in problems:
        say(problem, stderr=True)
    return 0


def _fact(
    admin: ClusterAdmin,
    broker: int,
    directories: Sequence[LogDirectory] | None,
    problems: list[str],
    as_json: bool,
) -> Fact:
    known = admin.registered[broker]
    found = admin.partitions.values()
    fact: dict[str, object] = {
        "id": broker,
        "address": known.address,
        "rack": known.rack,
        "state": "up" if known.is_up else "down",
        "leads": sum(each.leader_id == broker for each in found),
        "replicas": sum(broker in each.replica_nodes for each in found),
    }
    late = sum(broker in each.replica_nodes and broker not in each.isr_nodes for each in found)
    if as_json:
        disks = None if directories is None else list(map(_disk, directories))
        return {**fact, "out_of_sync": late, "directories": disks}
    if directories is None:
        return fact
    failed = [each.path for each in directories if each.error is not None]
    problems += [f"broker {broker}: the directory {path} has failed" for path in failed]
    size = sum(size for each in directories for size in each.logs.values())
    state = f"{late} lag" if late else "up"
    return {**fact, "state": state, "logs": size_text(size), "disk": fullest(directories)}


def _disk(directory: LogDirectory) -> Fact:
    return {
        "path": directory.path,
        "error": directory.error,
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
        "log_bytes": sum(directory.logs.values()),
        "logs": len(directory.logs),
    }


def fullest(directories: Iterable[LogDirectory]) -> str:
    """Return how full the fullest disk is, in words; empty if the broker does not say."""
    known = [each for each in directories if each.total_bytes > 0 and each.usable_bytes >= 0]
    if not known:
        return ""
    worst = max(known, key=used)
    return f"{100 * used(worst):.0f}%"


def used(directory: LogDirectory) -> float:
    """Return the used part of a disk whose size is known."""
    return 1 - directory.usable_bytes / directory.total_bytes


# ---- decommission ------------------------------------------------------------------------------------------


def decommission(bootstrap: str, broker: int, how: How) -> int:
    """Move all replicas off a broker, and remove its registration once it is stopped; returns the exit code.

    The code is 1 while something remains to be done. Raises BrokerIdNotRegistered,
    InvalidReplicationFactor if a partition has more replicas than brokers remain.
    """
    for number in range(MOST_ROUNDS):
        with reachable(bootstrap, PATIENCE_S if number else 0.0) as admin:
            if broker not in admin.registered:
                known = ", ".join(map(str, admin.registered))
                raise BrokerIdNotRegistered(f"there is no broker {broker}; the cluster has {known}")
            held = _held(admin, broker)
            if not held:
                return _leave(admin, broker, how)
            if not how.execute:
                code = reassignment.run(admin, _without(admin, broker), how)
                say(f"then broker {broker} has to be stopped, and is unregistered", stderr=True)
                return code
            moves = {at: move.target for at, move in admin.moves.items() if at in held}
            if all(broker not in target for target in moves.values()) and len(moves) == len(held):
                # An earlier run has begun all of these moves.
                code = reassignment.follow(bootstrap, moves, how)
            else:
                code = reassignment.run(admin, _without(admin, broker), how)
        if code:
            return _remains(bootstrap, broker, code)
    return _remains(bootstrap, broker, 1)


def _held(admin: ClusterAdmin, broker: int) -> list[TopicPartition]:
    return [at for at, each in sorted(admin.partitions.items()) if broker in each.replica_nodes]


def _without(admin: ClusterAdmin, broker: int) -> dict[TopicPartition, tuple[int, ...]]:
    """Return new replicas of the partitions that the broker has. Raises ReassignmentInProgress."""
    racks = {each: admin.registered[each].rack for each in admin.up if each != broker}
    layout = vacate(admin.layout, {broker}, racks)
    changed = {at: row for at, row in layout.items() if row != admin.layout[at]}
    refuse_if_moving(admin, changed)
    return changed


def _remains(bootstrap: str, broker: int, code: int) -> int:
    with reachable(bootstrap, PATIENCE_S) as admin:
        held = _held(admin, broker)
    if held:
        shown = ", ".join(map(str, held[:5])) + (", ..." if len(held) > 5 else "")
        say(
            f"kreplica: broker {broker} still has {len(held)} replicas: {shown}; run this command again to go"
            " on",
            stderr=True,
        )
    return code or 1


def _leave(admin: ClusterAdmin, broker: int, how: How) -> int:
    """Unregister a broker without replicas, if it is stopped."""
    partition = described_quorum(admin.seed).topics[0].partitions[0]
    is_voter = broker in {each.replica_id for each in partition.current_voters}
    if broker in admin.up:
        voter = " (it is also a voter of the quorum: see `kreplica quorum remove-voter`)" if is_voter else ""
        say(
            f"kreplica: broker {broker} has no replicas and still runs: stop it{voter}, then run this command"
            " again to unregister it",
            stderr=True,
        )
        return 1 if how.execute else 0
    if not how.execute:
        say(f"broker {broker} has no replicas and is stopped: --execute unregisters it")
        return 0
    admin.unregister(broker)
    if how.as_json:
        print_json({"what": "unregistered", "broker": broker, "is_voter": is_voter})
    else:
        say(f"broker {broker} has left the cluster {admin.cluster_id}")
    if is_voter:
        say(f"node {broker} is still a voter: `kreplica quorum remove-voter` ends that", stderr=True)
    return 0
