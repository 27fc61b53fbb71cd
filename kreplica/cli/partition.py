"""`kreplica partition`: where partitions are, moves of their replicas, elections of their leaders.

Works with any Kafka-compatible cluster. Without `execute`, a command prints what it would do. Thread rule:
one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from kreplica.cli import reassignment
from kreplica.cli.balance import Layout
from kreplica.cli.cluster_admin import PREFERRED, UNCLEAN, ClusterAdmin, Failures
from kreplica.cli.output import Fact, counted, print_facts, say, size_text
from kreplica.cli.reassignment import How
from kreplica.cli.scope import Scope, in_scope, is_internal
from kreplica.common.errors import (
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition

LIST_COLUMNS = ("topic", "partition", "leader", "replicas", "isr", "size", "state")
ELECT_COLUMNS = ("topic", "partition", "leader", "new_leader", "isr", "done", "problem")
CANCEL_COLUMNS = ("topic", "partition", "adding", "removing", "done", "problem")
MIN_ISR = "min.insync.replicas"


class State(StrEnum):
    """What may be the matter with a partition."""

    OFFLINE = "no leader"
    UNDER_MIN_ISR = "under min ISR"
    UNDER_REPLICATED = "under-replicated"
    MOVING = "moving"
    NOT_PREFERRED = "not preferred"


def parse_state(text: str) -> State:
    """Parse the name of a state. Raises ValueError."""
    state = State.__members__.get(text.upper().replace("-", "_"))
    if state is None:
        names = ", ".join(each.lower().replace("_", "-") for each in State.__members__)
        raise ValueError(f"{text[:40]!r} is no state; there are {names}")
    return state


def parse_replicas(text: str) -> tuple[int, ...]:
    """Parse the ids of brokers, such as `1,2,3`. Raises ValueError."""
    words = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() for each in words):
        raise ValueError(f"{text[:40]!r} is no list of broker ids, such as 1,2,3")
    return tuple(map(int, words))


def states_of(admin: ClusterAdmin) -> dict[TopicPartition, list[State]]:
    """Return what is the matter with each partition; an empty list for a partition that is well."""
    least = {topic: int(each.value) for topic, each in admin.topic_settings((MIN_ISR,)) if each.value}
    found = {}
    for at, each in sorted(admin.partitions.items()):
        states = []
        if each.leader_id == NO_LEADER:
            states.append(State.OFFLINE)
        elif len(set(each.isr_nodes)) < least.get(at.topic, 1):
            states.append(State.UNDER_MIN_ISR)
        if admin.missing_replicas(at):
            states.append(State.UNDER_REPLICATED)
        if at in admin.moves:
            states.append(State.MOVING)
        elif each.leader_id not in (NO_LEADER, each.replica_nodes[0]):
            states.append(State.NOT_PREFERRED)
        found[at] = states
    return found


def list_partitions(
    bootstrap: str, scope: Scope, states: Sequence[State], internal: bool, as_json: bool
) -> int:
    """Print partitions with their replicas, sizes and states, or those in one of `states`; returns the exit
    code.

    Those of internal topics come last. A list of all partitions leaves them out without `internal`.
    """
    with ClusterAdmin(bootstrap, needs_controller=False) as admin:
        named = in_scope(admin.partitions, scope) if scope else list(admin.partitions)
        chosen = sorted(named, key=lambda at: (is_internal(at.topic), at))
        hidden = 0
        if not (scope or states or internal):
            chosen = [at for at in chosen if not is_internal(at.topic)]
            hidden = len(named) - len(chosen)
        found = states_of(admin)
        sizes, problems = admin.leader_sizes()
        facts = [
            _fact(admin, at, found[at], sizes.get(at), as_json)
            for at in chosen
            if not states or set(states) & set(found[at])
        ]
        title = f"{counted(len(facts), 'partition')} in cluster {admin.cluster_id}"
        if hidden:
            title += f", and {hidden} of internal topics (--internal)"
    if facts or as_json:
        print_facts(title, LIST_COLUMNS, facts, as_json)
    else:
        such = "such partitions" if scope or states or hidden else "partitions"
        say(f"cluster {admin.cluster_id} has no {such}")
    if admin.no_controller is not None:
        problems.append(f"no controller answers, so moves are unknown: {admin.no_controller}")
    for problem in problems:
        say(problem, stderr=True)
    return 0


def _fact(
    admin: ClusterAdmin, at: TopicPartition, states: Sequence[State], size: int | None, as_json: bool
) -> Fact:
    found = admin.partitions[at]
    fact: dict[str, object] = {
        "topic": at.topic,
        "partition": at.partition,
        "leader": found.leader_id,
        "replicas": list(found.replica_nodes),
        "isr": list(found.isr_nodes),
    }
    move = admin.moves.get(at)
    if as_json:
        adding, removing = (list(move.adding), list(move.removing)) if move is not None else ([], [])
        return {**fact, "bytes": size, "adding": adding, "removing": removing, "states": list(states)}
    words = [
        f"moving to {', '.join(map(str, move.target))}" if each is State.MOVING and move is not None else each
        for each in states
    ]
    return {**fact, "size": "" if size is None else size_text(size), "state": ", ".join(words)}


# ---- moves -------------------------------------------------------------------------------------------------


def move(bootstrap: str, scope: Scope, replicas: Sequence[int], file: Layout | None, how: How) -> int:
    """Move partitions to these replicas, or all partitions of a file to theirs; returns the exit code.

    Raises UnknownTopicOrPartition, InvalidReplicaAssignment, ReassignmentInProgress.
    """
    with ClusterAdmin(bootstrap) as admin:
        layout = file
        if layout is None:
            layout = dict.fromkeys(in_scope(admin.partitions, scope), tuple(replicas))
        for at, row in layout.items():
            _check_move(admin, at, row)
        refuse_if_moving(admin, layout)
        return reassignment.run(admin, layout, how)


def _check_move(admin: ClusterAdmin, at: TopicPartition, replicas: Sequence[int]) -> None:
    if at not in admin.partitions:
        raise UnknownTopicOrPartition(f"there is no partition {at}")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"{at}: the replicas {list(replicas)} name a broker twice")
    for broker in replicas:
        if broker not in admin.registered:
            known = ", ".join(map(str, admin.registered))
            raise InvalidReplicaAssignment(
                f"{at}: there is no broker {broker}; the cluster has the brokers {known}"
            )
        if broker not in admin.up and broker not in admin.layout[at]:
            raise InvalidReplicaAssignment(
                f"{at}: broker {broker} is down and cannot get a copy: start it first"
            )


def refuse_if_moving(admin: ClusterAdmin, partitions: Layout) -> None:
    """Raise ReassignmentInProgress if one of the partitions is moving."""
    moving = [at for at in sorted(partitions) if at in admin.moves]
    if moving:
        raise ReassignmentInProgress(
            f"{moving[0]} is moving to {list(admin.moves[moving[0]].target)}: wait for the end by `kreplica"
            " partition wait`, or stop it by `kreplica partition cancel`"
        )


def wait(bootstrap: str, how: How) -> int:
    """Show the progress of all moves until they have ended; returns the exit code."""
    return reassignment.follow(bootstrap, None, how)


def cancel(bootstrap: str, scope: Scope, execute: bool, as_json: bool) -> int:
    """Stop the moves of these partitions, or all, and return to the replicas before; returns the exit code.

    Raises NoReassignmentInProgress.
    """
    with ClusterAdmin(bootstrap) as admin:
        wanted = in_scope(admin.partitions, scope) if scope else sorted(admin.moves)
        moving = [at for at in wanted if at in admin.moves]
        if not moving:
            which = "none of these partitions" if scope else "no partition"
            raise NoReassignmentInProgress(f"{which} is moving")
        failed: Failures = admin.reassign(dict.fromkeys(moving, None)) if execute else {}
    facts = [
        {
            "topic": at.topic,
            "partition": at.partition,
            "adding": list(admin.moves[at].adding),
            "removing": list(admin.moves[at].removing),
            "done": execute and at not in failed,
            "problem": failed.get(at),
        }
        for at in moving
    ]
    print_facts("moves to cancel" if not execute else "moves", CANCEL_COLUMNS, facts, as_json)
    if not execute:
        say("nothing was changed: --execute cancels these moves", stderr=True)
        return 0
    if failed:
        return 1
    # What is left of the cancelled moves, and their throttle.
    return reassignment.follow(bootstrap, None, How(as_json=as_json))


# ---- elections ---------------------------------------------------------------------------------------------


def elect(bootstrap: str, scope: Scope, unclean: bool, execute: bool, as_json: bool) -> int:
    """Elect the preferred leaders of partitions; returns the exit code.

    `unclean`: elect replicas that are out of sync, for partitions without a leader.
    """
    with ClusterAdmin(bootstrap) as admin:
        chosen = in_scope(admin.partitions, scope) if scope else sorted(admin.partitions)
        found = {at: fact for at in chosen if (fact := _election(admin, at, unclean)) is not None}
        if execute:
            wanted = [at for at, fact in found.items() if not fact["problem"]]
            failed = admin.elect(wanted, UNCLEAN if unclean else PREFERRED)
            for at, fact in found.items():
                fact["problem"] = failed.get(at, fact["problem"])
                fact["done"] = not fact["problem"]
    facts = list(found.values())
    if not facts and not as_json:
        say("all of these partitions have a leader" if unclean else "all leaders are the preferred ones")
        return 0
    title = "elections of leaders that may be out of sync" if unclean else "elections of preferred leaders"
    print_facts(title, ELECT_COLUMNS, facts, as_json)
    if not execute:
        loses = ", which loses the records that only other replicas have" if unclean else ""
        say(f"nothing was changed: --execute elects these leaders{loses}", stderr=True)
        return 0
    return 1 if any(fact["problem"] for fact in facts) else 0


def _election(admin: ClusterAdmin, at: TopicPartition, unclean: bool) -> dict[str, object] | None:
    """Return what an election would do, or None if none is needed."""
    found = admin.partitions[at]
    problem: str | None = None
    if unclean:
        if found.leader_id != NO_LEADER:
            return None
        alive = [each for each in found.replica_nodes if each in admin.up]
        new = alive[0] if alive else NO_LEADER
        if not alive:
            problem = f"none of the brokers {list(found.replica_nodes)} is up: start one of them"
    else:
        new = admin.layout[at][0]
        if found.leader_id == new:
            return None
        if new not in found.isr_nodes:
            problem = f"broker {new} is {'not in sync yet' if new in admin.up else 'down'}"
    return {
        "topic": at.topic,
        "partition": at.partition,
        "leader": found.leader_id,
        "new_leader": new,
        "isr": list(found.isr_nodes),
        "done": False,
        "problem": problem,
    }
