"""`kreplica group`: show, configure, reset and delete groups of all kinds, in any Kafka-compatible cluster.

A group is looked up in the lists of all brokers, which name its kind and its coordinator. Committed offsets
are compared with the ends of the partitions. Nothing is changed unless the caller says so: without
`execute`, a command prints what it would do. Thread rule: one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kreplica.cli.config_changes import config_changes
from kreplica.cli.kafka_connection import Brokers
from kreplica.cli.output import NONE, Fact, print_facts, print_json, print_table, say
from kreplica.cli.scope import Scope, in_scope
from kreplica.common.consumer_protocol import decode_assignment, partitions_in
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    FencedLeaderEpoch,
    GroupIdNotFound,
    InvalidRecord,
    InvalidRequest,
    KreplicaError,
    NonEmptyGroup,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.iso_duration import duration_ms
from kreplica.common.messages.administration import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kreplica.common.messages.consumer_groups import ConsumerGroupDescribeRequest
from kreplica.common.messages.data import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kreplica.common.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kreplica.common.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    ShareGroupDescribeRequest,
)
from kreplica.common.messages.streams_groups import StreamsGroupDescribeRequest
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of
from kreplica.coordinator.group_settings import LETTER_TOPIC
from kreplica.metadata.cluster_metadata import GROUP_RESOURCE

T = TypeVar("T")

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
EMPTY, DEAD = "Empty", "Dead"
# The first versions of ListGroups that filter by state, and by kind.
BY_STATE, BY_KIND, NEWEST_LIST = 4, 5, 5
EARLIEST, LATEST = -2, -1
# How long and how often to ask again while a coordinator loads its groups, or moves.
RETRY_S, RETRY_BACKOFF_S = 5.0, 0.2
# Errors of a leader that moves, and how often to look for its successor.
MOVING, LOOK_UPS = (NotLeaderOrFollower, FencedLeaderEpoch, OffsetNotAvailable), 5
# The source of a value that is set on the group itself.
DYNAMIC_GROUP_CONFIG = 8
LIST_COLUMNS = ("group_id", "type", "state", "protocol_type", "coordinator")
OFFSET_COLUMNS = (
    *("topic", "partition", "committed_offset", "log_end_offset", "lag"),
    *("member_id", "client_id", "client_host"),
)
SHARE_COLUMNS = ("topic", "partition", "start_offset", "log_end_offset", "lag")
MEMBER_COLUMNS = (
    *("member_id", "instance_id", "client_id", "client_host", "epoch", "protocol"),
    *("partitions", "target_partitions"),
)
RESET_COLUMNS = ("topic", "partition", "committed_offset", "new_offset", "problem")
CONFIG_COLUMNS = ("name", "value", "set")
DELETE_COLUMNS = ("group_id", "type", "state", "partitions", "done", "problem")
DELETE_OFFSETS_COLUMNS = ("topic", "partition", "committed_offset", "done", "problem")

Offsets = dict[TopicPartition, int]
# For each partition an offset, or the error that hides it.
Found = dict[TopicPartition, "int | KreplicaError"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A group as its coordinator lists it."""

    group_id: str
    kind: str
    state: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class Described:
    """A group with its members. `protocol`: the name of the protocol, or of the server's assignor.

    `letter_topic`: where a share group's dead letters go, if it has a topic for them. `sources`: the topics
    that each subtopology of a streams group reads.
    """

    state: str
    epoch: int
    protocol: str
    members: Sequence[Mapping[str, Any]]
    letter_topic: str = ""
    sources: Mapping[str, Sequence[str]] = {}

    def owners(self) -> dict[str, Mapping[str, Any]]:
        """Return the members by the names of the partitions that they read.

        The task 0_1 of a streams group reads partition 1 of each topic of subtopology 0.
        """
        owners = {}
        for member in self.members:
            for name in member["partitions"]:
                subtopology, _, number = name.rpartition("_")
                for topic in self.sources.get(subtopology, ()):
                    owners[f"{topic}-{number}"] = member
                if not self.sources:
                    owners[name] = member
        return owners


class Target(NamedTuple):
    """Where to reset offsets to. `how`: earliest, latest, datetime, offset, shift or file.

    `value`: the time in ms since 1970, the offset, or by how many offsets. `offsets`: those of a file.
    """

    how: str
    value: int = 0
    offsets: Mapping[TopicPartition, int] | None = None


class Groups(Brokers):
    """The groups of a cluster, by requests to their coordinators and to the leaders of partitions."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.leaders = self.leaders_of(None)

    def listed(self, kinds: Sequence[str] = (), states: Sequence[str] = ()) -> list[Listed]:
        """Return the groups of these kinds and states, or all. Raises the coordinators' errors."""
        low = BY_KIND if kinds else BY_STATE if states else 0
        request = ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(kinds))
        found = []
        for broker in self.brokers:
            ask = partial(self.ask_newest, broker, request, range(low, NEWEST_LIST + 1))
            answer = _patiently(partial(_checked_answer, ask))
            found += [
                Listed(
                    each.group_id,
                    getattr(each, "group_type", "").lower() or CLASSIC,
                    getattr(each, "group_state", ""),
                    each.protocol_type,
                    broker,
                )
                for each in answer.groups
            ]
        return sorted(found, key=lambda each: each.group_id)

    def one(self, group_id: str) -> Listed:
        """Return the group. Raises GroupIdNotFound."""
        found = {each.group_id: each for each in self.listed()}
        if group_id not in found:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        return found[group_id]

    def coordinator(self, group_id: str) -> int:
        """Return the broker that coordinates a group, which need not exist. Raises its errors."""

        def find() -> int:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=(group_id,))
            [found] = self.ask_newest(self.brokers[0], request, range(4, 7)).coordinators
            error = error_of(found.error_code, found.error_message)
            if error is not None:
                raise error
            return int(found.node_id)

        return _patiently(find)

    # ---- state --------------------------------------------------------------------------------------------

    def described(self, group: Listed) -> Described:
        """Return the group with its members. Raises the coordinator's errors."""
        return _patiently(lambda: _DESCRIBE[group.kind](self, group))

    def setting(self, group: Listed, name: str) -> str:
        """Return a setting of the group; empty if the cluster has none of this name, or does not show it."""
        found = self._described_settings(group.coordinator, group.group_id, (name,))
        return next((each.value or "" for each in found.configs if each.name == name), "")

    def settings(self, group_id: str) -> Sequence[Any]:
        """Return all settings of a group, which need not exist. Raises the broker's errors."""
        found: Sequence[Any] = _checked(self._described_settings(self.brokers[0], group_id, None)).configs
        return found

    def _described_settings(self, broker: int, group_id: str, names: tuple[str, ...] | None) -> Any:
        asked = DescribeConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group_id, configuration_keys=names
        )
        request = DescribeConfigsRequest(resources=(asked,))
        [found] = self.ask_newest(broker, request, (4,)).results
        return found

    def committed(self, group: Listed) -> Offsets:
        """Return the committed offsets of the group, or its start offsets if it is a share group."""
        if group.kind == SHARE:
            return {at: start for at, (start, _) in self.share_offsets(group).items()}
        asked = OffsetFetchRequestGroup(group_id=group.group_id, topics=None)
        request = OffsetFetchRequest(groups=(asked,))

        def fetch() -> Offsets:
            [answer] = self.ask_newest(group.coordinator, request, (8, 9)).groups
            _raise(answer.error_code)
            return {
                TopicPartition(topic.name, each.partition_index): each.committed_offset
                for topic in answer.topics
                for each in topic.partitions
                if each.committed_offset >= 0
            }

        return _patiently(fetch)

    def share_offsets(self, group: Listed) -> dict[TopicPartition, tuple[int, int]]:
        """Return the start offset and the lag of each partition of a share group; -1 if unknown."""
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=group.group_id, topics=None)
        request = DescribeShareGroupOffsetsRequest(groups=(asked,))

        def fetch() -> dict[TopicPartition, tuple[int, int]]:
            [answer] = self.ask_newest(group.coordinator, request, (0, 1)).groups
            _raise(answer.error_code, answer.error_message)
            return {
                TopicPartition(topic.topic_name, each.partition_index): (
                    each.start_offset,
                    getattr(each, "lag", NONE),
                )
                for topic in answer.topics
                for each in topic.partitions
                if each.start_offset >= 0
            }

        return _patiently(fetch)

    def offsets_at(self, partitions: Iterable[TopicPartition], timestamp: int) -> Found:
        """Return the first offset at that time or later, -1 for none. EARLIEST and LATEST are the bounds."""
        found = self._asked_offsets(partitions, timestamp)
        for _ in range(LOOK_UPS):
            moving = [at for at, each in found.items() if isinstance(each, MOVING)]
            if not moving:
                break
            time.sleep(RETRY_BACKOFF_S)
            self.leaders = self.leaders_of(None)
            found |= self._asked_offsets(moving, timestamp)
        return found

    def _asked_offsets(self, partitions: Iterable[TopicPartition], timestamp: int) -> Found:
        found: Found = {}
        by_leader: dict[int, dict[str, list[int]]] = {}
        for at in partitions:
            leader = self.leaders.get(at)
            if leader is None or leader < 0:
                found[at] = UnknownTopicOrPartition(f"{at} does not exist or has no leader")
            else:
                by_leader.setdefault(leader, {}).setdefault(at.topic, []).append(at.partition)
        for leader, topics in by_leader.items():
            asked = tuple(
                ListOffsetsTopic(
                    name=name,
                    partitions=tuple(
                        ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                        for number in numbers
                    ),
                )
                for name, numbers in topics.items()
            )
            request = ListOffsetsRequest(replica_id=-1, topics=asked)
            try:
                answer = self.ask_newest(leader, request, range(1, 9))
            except KreplicaError as error:
                found |= {
                    TopicPartition(name, number): error
                    for name, numbers in topics.items()
                    for number in numbers
                }
                continue
            for topic in answer.topics:
                for each in topic.partitions:
                    failure = error_of(each.error_code)
                    found[TopicPartition(topic.name, each.partition_index)] = failure or each.offset
        return found

    # ---- changes ------------------------------------------------------------------------------------------

    def commit(self, coordinator: int, group_id: str, offsets: Offsets) -> dict[TopicPartition, str]:
        """Commit offsets of a group without members; return the partitions that failed, with the reason."""
        topics = tuple(
            OffsetCommitRequestTopic(
                name=name,
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=at.partition, committed_offset=offset, committed_metadata=""
                    )
                    for at, offset in of_topic
                ),
            )
            for name, of_topic in _by_topic(offsets)
        )
        request = OffsetCommitRequest(group_id=group_id, member_id="", topics=topics)
        answer = self.ask_newest(coordinator, request, range(2, 9))
        return _failures(answer.topics, "name")

    def alter_share_offsets(
        self, coordinator: int, group_id: str, offsets: Offsets
    ) -> dict[TopicPartition, str]:
        """Set the start offsets of a share group without members; return the partitions that failed."""
        topics = tuple(
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=tuple(
                    AlterShareGroupOffsetsRequestPartition(partition_index=at.partition, start_offset=offset)
                    for at, offset in of_topic
                ),
            )
            for name, of_topic in _by_topic(offsets)
        )
        request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
        answer = _checked(self.ask_newest(coordinator, request, (0,)))
        return _failures(answer.responses, "topic_name")

    def alter_settings(self, group_id: str, changes: Mapping[str, str | None]) -> None:
        """Change settings of a group, which need not exist; None resets one to its default.

        Raises InvalidConfig, InvalidRequest, and the broker's other errors.
        """
        request = config_changes(GROUP_RESOURCE, {group_id: changes})
        [answer] = self.ask_newest(self.brokers[0], request, (0, 1)).responses
        _checked(answer)

    def delete(self, group: Listed) -> None:
        """Delete a group. Raises NonEmptyGroup and the coordinator's other errors."""
        request = DeleteGroupsRequest(groups_names=(group.group_id,))
        [result] = self.ask_newest(group.coordinator, request, range(3)).results
        _raise(result.error_code)

    def delete_offsets(
        self, group: Listed, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, str]:
        """Delete committed offsets; return the partitions that failed. Of share groups, whole topics go."""
        offsets = dict.fromkeys(partitions, 0)
        if group.kind == SHARE:
            names = tuple(
                DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name, _ in _by_topic(offsets)
            )
            answer = _checked(
                self.ask_newest(
                    group.coordinator,
                    DeleteShareGroupOffsetsRequest(group_id=group.group_id, topics=names),
                    (0,),
                )
            )
            failed = {
                each.topic_name: str(error)
                for each in answer.responses
                if (error := error_of(each.error_code, each.error_message)) is not None
            }
            return {at: failed[at.topic] for at in offsets if at.topic in failed}
        topics = tuple(
            OffsetDeleteRequestTopic(
                name=name,
                partitions=tuple(
                    OffsetDeleteRequestPartition(partition_index=at.partition) for at, _ in of_topic
                ),
            )
            for name, of_topic in _by_topic(offsets)
        )
        request = OffsetDeleteRequest(group_id=group.group_id, topics=topics)
        answer = _checked(self.ask_newest(group.coordinator, request, (0,)))
        return _failures(answer.topics, "name")


# ---- answers -----------------------------------------------------------------------------------------------


def _raise(code: Any, message: str | None = None) -> None:
    error = error_of(code, message)
    if error is not None:
        raise error


def _checked_answer(ask: Callable[[], Any]) -> Any:
    return _checked(ask())


def _checked(answer: Any) -> Any:
    _raise(answer.error_code, getattr(answer, "error_message", None))
    return answer


def _patiently(ask: Callable[[], T]) -> T:
    """Ask again after a retriable error, for a while. Raises the last error."""
    deadline = time.monotonic() + RETRY_S
    while True:
        try:
            return ask()
        except KreplicaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_BACKOFF_S)


def _by_topic(offsets: Offsets) -> Iterator[tuple[str, list[tuple[TopicPartition, int]]]]:
    topics: dict[str, list[tuple[TopicPartition, int]]] = {}
    for at, offset in sorted(offsets.items()):
        topics.setdefault(at.topic, []).append((at, offset))
    return iter(topics.items())


def _failures(topics: Iterable[Any], name: str) -> dict[TopicPartition, str]:
    failed = {}
    for topic in topics:
        for each in topic.partitions:
            error = error_of(each.error_code, getattr(each, "error_message", None))
            if error is not None:
                failed[TopicPartition(getattr(topic, name), each.partition_index)] = str(error)
    return failed


def _describe_classic(groups: Groups, group: Listed) -> Described:
    request = DescribeGroupsRequest(groups=(group.group_id,))
    [found] = groups.ask_newest(group.coordinator, request, range(6)).groups
    _raise(found.error_code)
    members = [
        {
            "member_id": each.member_id,
            "instance_id": getattr(each, "group_instance_id", None),
            "client_id": each.client_id,
            "client_host": each.client_host,
            "epoch": NONE,
            "protocol": CLASSIC,
            "partitions": _decoded(each.member_assignment),
            "target_partitions": None,
        }
        for each in found.members
    ]
    return Described(found.group_state, NONE, found.protocol_data, members)


def _decoded(assignment: bytes) -> list[str]:
    try:
        return _names(partitions_in(decode_assignment(assignment).assigned_partitions))
    except InvalidRecord:
        # The group's own protocol, as Kafka Connect has.
        return []


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [f"{at.topic}-{at.partition}" for at in sorted(partitions)]


def _assigned(assignment: Any) -> list[str]:
    return _names(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )


def _describe_consumer(groups: Groups, group: Listed) -> Described:
    request = ConsumerGroupDescribeRequest(group_ids=(group.group_id,), include_authorized_operations=False)
    [found] = groups.ask_newest(group.coordinator, request, (0, 1)).groups
    _raise(found.error_code, found.error_message)
    members = [
        {
            "member_id": each.member_id,
            "instance_id": each.instance_id,
            "client_id": each.client_id,
            "client_host": each.client_host,
            "epoch": each.member_epoch,
            "protocol": CLASSIC if getattr(each, "member_type", 1) == 0 else CONSUMER,
            "partitions": _assigned(each.assignment),
            "target_partitions": _assigned(each.target_assignment),
        }
        for each in found.members
    ]
    return Described(found.group_state, found.group_epoch, found.assignor_name, members)


def _describe_share(groups: Groups, group: Listed) -> Described:
    request = ShareGroupDescribeRequest(group_ids=(group.group_id,), include_authorized_operations=False)
    [found] = groups.ask_newest(group.coordinator, request, (1,)).groups
    _raise(found.error_code, found.error_message)
    members = [
        {
            "member_id": each.member_id,
            "instance_id": None,
            "client_id": each.client_id,
            "client_host": each.client_host,
            "epoch": each.member_epoch,
            "protocol": SHARE,
            "partitions": _assigned(each.assignment),
            "target_partitions": None,
        }
        for each in found.members
    ]
    topic = groups.setting(group, LETTER_TOPIC)
    return Described(found.group_state, found.group_epoch, found.assignor_name, members, topic)


def _tasks(assignment: Any) -> list[str]:
    return [
        f"{role}{each.subtopology_id}_{number}"
        for role, tasks in (
            ("", assignment.active_tasks),
            ("standby ", assignment.standby_tasks),
            ("warm-up ", assignment.warmup_tasks),
        )
        for each in tasks
        for number in each.partitions
    ]


def _describe_streams(groups: Groups, group: Listed) -> Described:
    request = StreamsGroupDescribeRequest(group_ids=(group.group_id,), include_authorized_operations=False)
    [found] = groups.ask_newest(group.coordinator, request, (0,)).groups
    _raise(found.error_code, found.error_message)
    members = [
        {
            "member_id": each.member_id,
            "instance_id": each.instance_id,
            "client_id": each.client_id,
            "client_host": each.client_host,
            "epoch": each.member_epoch,
            "protocol": CLASSIC if each.is_classic else STREAMS,
            "partitions": _tasks(each.assignment),
            "target_partitions": _tasks(each.target_assignment),
        }
        for each in found.members
    ]
    parts = (found.topology and found.topology.subtopologies) or ()
    sources = {
        part.subtopology_id: (*part.source_topics, *(each.name for each in part.repartition_source_topics))
        for part in parts
    }
    return Described(found.group_state, found.group_epoch, "sticky", members, sources=sources)


_DESCRIBE: Mapping[str, Callable[[Groups, Listed], Described]] = {
    CLASSIC: _describe_classic,
    CONSUMER: _describe_consumer,
    SHARE: _describe_share,
    STREAMS: _describe_streams,
}


# ---- list, describe ----------------------------------------------------------------------------------------


def list_groups(bootstrap: str, kinds: Sequence[str], states: Sequence[str], as_json: bool) -> int:
    """Print the groups of these kinds and states, or all; returns the exit code."""
    with Groups(bootstrap) as groups:
        facts = [
            {
                "group_id": each.group_id,
                "type": each.kind,
                "state": each.state,
                "protocol_type": each.protocol_type,
                "coordinator": each.coordinator,
            }
            for each in groups.listed(kinds, states)
        ]
    if facts or as_json:
        print_facts(f"groups of cluster {groups.cluster_id}", LIST_COLUMNS, facts, as_json)
    else:
        such = "such groups" if kinds or states else "groups"
        say(f"cluster {groups.cluster_id} has no {such}")
    return 0


def describe(bootstrap: str, group_ids: Sequence[str], with_members: bool, as_json: bool) -> int:
    """Print the offsets and lags of groups, or their members; returns the exit code.

    Without ids, describe all groups. Raises GroupIdNotFound, and the coordinators' errors.
    """
    with Groups(bootstrap) as groups:
        known = {each.group_id: each for each in groups.listed()}
        for group_id in group_ids or known:
            if group_id not in known:
                raise GroupIdNotFound(f"there is no group {group_id!r} in cluster {groups.cluster_id}")
            _print_group(groups, known[group_id], with_members, as_json)
    return 0


def _print_group(groups: Groups, group: Listed, with_members: bool, as_json: bool) -> None:
    described = groups.described(group)
    facts = described.members if with_members else _offset_facts(groups, group, described)
    if as_json:
        print_json(
            {
                "what": "group",
                "group_id": group.group_id,
                "type": group.kind,
                "state": described.state,
                "epoch": described.epoch,
                "protocol": described.protocol,
                "coordinator": group.coordinator,
                "members": len(described.members),
                **({"dead_letter_topic": described.letter_topic} if described.letter_topic else {}),
            }
        )
        for fact in facts:
            what = "member" if with_members else "offset"
            print_json({"what": what, "group_id": group.group_id, **fact})
        return
    epoch = f", epoch {described.epoch}" if described.epoch != NONE else ""
    title = (
        f"{group.kind} group {group.group_id}: {described.state}{epoch}, {len(described.members)} members,"
        f" coordinator {group.coordinator}"
        + (f", dead letters in {described.letter_topic}" if described.letter_topic else "")
    )
    if facts and with_members:
        print_table(title, MEMBER_COLUMNS, facts)
    elif facts and group.kind == SHARE:
        # Records behind the start offset may be done, too.
        print_table(
            title, SHARE_COLUMNS, [{**fact, "start_offset": fact["committed_offset"]} for fact in facts]
        )
    elif facts:
        print_table(title, OFFSET_COLUMNS, facts)
    else:
        say(f"{title}; no {'members' if with_members else 'committed offsets and no assigned partitions'}")


def _offset_facts(groups: Groups, group: Listed, described: Described) -> list[Fact]:
    owners = described.owners()
    lags: dict[TopicPartition, int] = {}
    if group.kind == SHARE:
        found = groups.share_offsets(group)
        committed = {at: start for at, (start, _) in found.items()}
        lags = {at: lag for at, (_, lag) in found.items() if lag >= 0}
    else:
        committed = groups.committed(group)
    names = {f"{at.topic}-{at.partition}": at for at in groups.leaders}
    wanted = sorted({*committed, *(names[name] for name in owners if name in names)})
    ends = groups.offsets_at(wanted, LATEST)
    facts: list[Fact] = []
    for at in wanted:
        end = ends[at]
        offset = committed.get(at, NONE)
        end_offset = end if isinstance(end, int) else NONE
        lag = max(0, end_offset - offset) if offset >= 0 and end_offset >= 0 else NONE
        owner = owners.get(f"{at.topic}-{at.partition}", {})
        facts.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                "committed_offset": offset,
                "log_end_offset": end_offset,
                "lag": lags.get(at, lag),
                # Several members of a share group may fetch from a partition.
                **{
                    name: None if group.kind == SHARE else owner.get(name)
                    for name in ("member_id", "client_id", "client_host")
                },
            }
        )
    return facts


# ---- reset-offsets -----------------------------------------------------------------------------------------


def reset_offsets(
    bootstrap: str, group_id: str, scope: Scope, target: Target, execute: bool, as_json: bool
) -> int:
    """Print the offsets that a group would have at `target`, and set them if `execute`; returns the exit
    code.

    An empty scope means all partitions of the file, or all with a committed offset. Raises NonEmptyGroup for
    a group with members, UnknownTopicOrPartition, and the coordinator's errors.
    """
    with Groups(bootstrap) as groups:
        known = {each.group_id: each for each in groups.listed()}
        group = known.get(group_id) or Listed(group_id, CLASSIC, DEAD, "", groups.coordinator(group_id))
        if group_id in known and group.state not in (EMPTY, DEAD):
            raise NonEmptyGroup(
                f"{group.kind} group {group_id!r} is in state {group.state}: stop its members first"
            )
        committed = groups.committed(group) if group_id in known else {}
        chosen = target.offsets if target.offsets is not None and not scope else committed
        partitions = in_scope(groups.leaders, scope) if scope else sorted(chosen)
        if not partitions:
            raise UnknownTopicOrPartition(f"group {group_id!r} has no committed offsets: give --topic")
        planned = _planned(groups, target, partitions, committed)
        offsets = {at: offset for at, offset in planned.items() if isinstance(offset, int)}
        failed = {at: str(error) for at, error in planned.items() if not isinstance(error, int)}
        if execute and not failed:
            change = groups.alter_share_offsets if group.kind == SHARE else groups.commit
            failed = change(group.coordinator, group_id, offsets)
    facts = [
        {
            "group_id": group_id,
            "topic": at.topic,
            "partition": at.partition,
            "committed_offset": committed.get(at, NONE),
            "new_offset": offsets.get(at, NONE),
            "done": execute and not failed,
            "problem": failed.get(at),
        }
        for at in partitions
    ]
    print_facts(f"offsets of group {group_id}", RESET_COLUMNS, facts, as_json)
    if failed:
        say("some offsets were not set" if execute else "not all offsets can be set", stderr=True)
        return 1
    if not execute:
        say("nothing was changed: --execute sets these offsets", stderr=True)
    return 0


def _planned(
    groups: Groups, target: Target, partitions: Sequence[TopicPartition], committed: Offsets
) -> Found:
    """Return the new offset of each partition, between the bounds of its log, or an error."""
    earliest, latest = groups.offsets_at(partitions, EARLIEST), groups.offsets_at(partitions, LATEST)
    at_time = groups.offsets_at(partitions, target.value) if target.how == "datetime" else {}
    planned: Found = {}
    for at in partitions:
        low, high = earliest[at], latest[at]
        if not isinstance(low, int) or not isinstance(high, int):
            planned[at] = low if not isinstance(low, int) else high
            continue
        wanted: int | KreplicaError
        if target.how == "earliest":
            wanted = low
        elif target.how == "latest":
            wanted = high
        elif target.how == "datetime":
            found = at_time[at]
            wanted = high if found == NONE else found
        elif target.how == "offset":
            wanted = target.value
        elif target.how == "shift":
            wanted = InvalidRequest(f"{at} has no committed offset to shift")
            if at in committed:
                wanted = committed[at] + target.value
        else:
            wanted = (target.offsets or {}).get(at, InvalidRequest(f"the file has no offset of {at}"))
        planned[at] = min(max(wanted, low), high) if isinstance(wanted, int) else wanted
    return planned


def parse_file(lines: Iterable[str]) -> Offsets:
    """Parse lines `topic,partition,offset`, as Kafka's tool exports them. Raises ValueError."""
    offsets: Offsets = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = [cell.strip().strip('"') for cell in line.split(",")]
        # With several groups, Kafka's tool puts the group first.
        if len(cells) not in (3, 4) or not cells[-2].isdecimal() or not cells[-1].isdecimal():
            raise ValueError(f"line {number} is not topic,partition,offset: {line.strip()[:80]!r}")
        offsets[TopicPartition(cells[-3], int(cells[-2]))] = int(cells[-1])
    return offsets


def parse_duration(text: str) -> int:
    """Return the time that was a duration such as PT1H before now, in ms since 1970. Raises ValueError."""
    return max(0, time.time_ns() // 1_000_000 - duration_ms(text))


# ---- config ------------------------------------------------------------------------------------------------


def configure(
    bootstrap: str, group_id: str, settings: Mapping[str, str], dropped: Sequence[str], as_json: bool
) -> int:
    """Change a group's settings, or print them if there are no changes; returns the exit code.

    Raises InvalidConfig, and the broker's other errors.
    """
    changes: dict[str, str | None] = {**settings, **dict.fromkeys(dropped)}
    with Groups(bootstrap) as groups:
        if changes:
            groups.alter_settings(group_id, changes)
            if as_json:
                print_json({"group_id": group_id, "done": "changed", "cluster_id": groups.cluster_id})
            else:
                say(f"changed {group_id} in cluster {groups.cluster_id}")
            return 0
        facts = [
            {"name": each.name, "value": each.value, "set": each.config_source == DYNAMIC_GROUP_CONFIG}
            for each in sorted(groups.settings(group_id), key=lambda each: str(each.name))
        ]
    print_facts(f"settings of group {group_id}", CONFIG_COLUMNS, facts, as_json)
    return 0


# ---- delete ------------------------------------------------------------------------------------------------


def delete_groups(bootstrap: str, group_ids: Sequence[str], execute: bool, as_json: bool) -> int:
    """Print these groups, and delete them with their offsets if `execute`; returns the exit code.

    Raises GroupIdNotFound before anything is deleted.
    """
    facts: list[Fact] = []
    with Groups(bootstrap) as groups:
        known = {each.group_id: each for each in groups.listed()}
        for group_id in group_ids:
            if group_id not in known:
                raise GroupIdNotFound(f"there is no group {group_id!r} in cluster {groups.cluster_id}")
        for group in (known[group_id] for group_id in group_ids):
            problem: str | None = None
            try:
                partitions = len(groups.committed(group))
            except UnsupportedVersion:
                partitions = NONE
            if group.state not in ("", EMPTY, DEAD):
                problem = f"the group is in state {group.state}: stop its members first"
            elif execute:
                try:
                    groups.delete(group)
                except KreplicaError as error:
                    problem = str(error)
            facts.append(
                {
                    "group_id": group.group_id,
                    "type": group.kind,
                    "state": group.state,
                    "partitions": partitions,
                    "done": execute and problem is None,
                    "problem": problem,
                }
            )
    print_facts(f"groups of cluster {groups.cluster_id}", DELETE_COLUMNS, facts, as_json)
    if not execute:
        say("nothing was changed: --execute deletes these groups and their offsets", stderr=True)
    return 1 if any(fact["problem"] for fact in facts) else 0


def delete_offsets(bootstrap: str, group_id: str, scope: Scope, execute: bool, as_json: bool) -> int:
    """Print the committed offsets in `scope`, and delete them if `execute`; returns the exit code.

    Raises GroupIdNotFound, UnknownTopicOrPartition, and the coordinator's errors.
    """
    with Groups(bootstrap) as groups:
        group = groups.one(group_id)
        committed = groups.committed(group)
        partitions = [
            at
            for at in sorted(committed)
            if at.topic in scope and at.partition in (scope[at.topic] or (at.partition,))
        ]
        if group.kind == SHARE and any(numbers is not None for numbers in scope.values()):
            raise InvalidRequest("offsets of share groups are deleted by topic: leave the partitions out")
        if not partitions:
            raise UnknownTopicOrPartition(f"group {group_id!r} has no committed offsets there")
        failed = groups.delete_offsets(group, partitions) if execute else {}
    facts = [
        {
            "group_id": group_id,
            "topic": at.topic,
            "partition": at.partition,
            "committed_offset": committed[at],
            "done": execute and at not in failed,
            "problem": failed.get(at),
        }
        for at in partitions
    ]
    print_facts(f"offsets of group {group_id}", DELETE_OFFSETS_COLUMNS, facts, as_json)
    if not execute:
        say("nothing was changed: --execute deletes these offsets", stderr=True)
    return 1 if failed else 0
