"""The change of a group with members from one protocol to the other: what is written.

                 a member of the consumer protocol joins
    ClassicGroup ────────────────────────────────────────▶ ConsumerGroup
                 ◀────────────────────────────────────────
                 the last member of the consumer protocol is gone

`group.consumer.migration.policy` decides which of them are allowed. ClassicMembers serves the classic members
of a consumer group. What each member owns goes along, so that no partition gets a second owner. The members
of a downgraded group have to form a generation, unless each has all that it shall have; its record has no
leader then, so another coordinator that loads it lets them form one, too.

Pure functions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from kreplica.common.consumer_protocol import (
    PROTOCOL_TYPE,
    AssignedPartitions,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from kreplica.common.errors import InvalidRecord
from kreplica.common.message import Record
from kreplica.common.types import TopicPartition, Uuid
from kreplica.coordinator.classic_group import ClassicGroup, Member, Protocol
from kreplica.coordinator.consumer_group import (
    NEW_MEMBER,
    ConsumerGroup,
    CurrentAssignment,
    MemberKeys,
    MemberState,
    Owned,
)
from kreplica.coordinator.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    TargetAssignmentMetadataValue,
)
from kreplica.coordinator.modern_group import Partitions, Topics, target_value

# A record to write; a value of None deletes it.
Change = tuple[Record, Record | None]


class MigrationPolicy(enum.Enum):
    """Which changes of protocol are allowed while a group has members."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


# ---- to the consumer protocol -----------------------------------------------------------------------------


def upgrade(group: ClassicGroup, topics: Topics) -> list[Change]:
    """Return the records that make a classic group with members one of the consumer protocol.

    Its generation becomes the epoch of the group, of its assignment and of its members. Raises InvalidRecord
    if the members are not consumers, or their assignor has data of its own, which would be lost.
    """
    group_id, protocol = group.group_id, group.selected_protocol()
    epoch = max(group.generation_id, 1)
    changes: list[Change] = [(GroupMetadataKey(group=group_id), None)]
    taken: set[tuple[Uuid, int]] = set()
    for member in group.members.values():
        subscription = decode_subscription(member.metadata_of(protocol))
        assignment = decode_assignment(member.assignment)
        if assignment.user_data:
            raise InvalidRecord(f"the assignment of {member.member_id} has data of its assignor")
        has = owned_partitions(assignment.assigned_partitions, topics)
        since = {topic_id: dict.fromkeys(numbers, epoch) for topic_id, numbers in has.items()}
        current = CurrentAssignment(epoch, epoch, MemberState.STABLE, since, {})
        # An assignor of the members may have assigned a partition twice.
        target = {
            topic_id: frozenset(number for number in numbers if (topic_id, number) not in taken)
            for topic_id, numbers in has.items()
        }
        taken.update((topic_id, number) for topic_id, numbers in has.items() for number in numbers)
        keys = MemberKeys(group_id, member.member_id)
        changes.append((keys.member, _declared(member, subscription)))
        changes.append((keys.target, target_value(target)))
        changes.append((keys.current, current.record()))
    changes.append(
        (
            ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            TargetAssignmentMetadataValue(assignment_epoch=epoch),
        )
    )
    changes.append(
        (
            ConsumerGroupMetadataKey(group_id=group_id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=0),
        )
    )
    return changes


def _declared(member: Member, subscription: ConsumerProtocolSubscription) -> ConsumerGroupMemberMetadataValue:
    return declared_by_classic(
        subscription,
        member.protocols,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
    )


def declared_by_classic(
    subscription: ConsumerProtocolSubscription,
    protocols: Iterable[Protocol],
    *,
    instance_id: str | None,
    client_id: str,
    client_host: str,
    rebalance_timeout_ms: int,
    session_timeout_ms: int,
) -> ConsumerGroupMemberMetadataValue:
    """Return the record of what a member of the classic protocol declares to a consumer group."""
    supported = tuple(ClassicProtocol(name=each.name, metadata=each.metadata) for each in protocols)
    return ConsumerGroupMemberMetadataValue(
        instance_id=instance_id,
        rack_id=subscription.rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=rebalance_timeout_ms,
        server_assignor=None,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=session_timeout_ms, supported_protocols=supported
        ),
    )


def owned_partitions(assigned: Iterable[AssignedPartitions], topics: Topics) -> Partitions:
    """Return the partitions by topic id, without topics that do not exist."""
    found: dict[Uuid, frozenset[int]] = {}
    for each in assigned:
        topic_id = topics.topic_id(each.topic)
        if topic_id is not None:
            found[topic_id] = found.get(topic_id, frozenset()) | frozenset(each.partitions)
    return found


# ---- to the classic protocol ------------------------------------------------------------------------------


def downgrade(group: ConsumerGroup, topics: Topics, leader: str | None, now_ms: int) -> list[Change]:
    """Return the records that make a classic group of one whose members all use the classic protocol.

    Its epoch becomes the generation, with this leader; None: the members have to form another generation.
    """
    changes: list[Change] = []
    made = ClassicGroup(group.group_id, now_ms)
    assignments = {}
    for member_id, member in group.members.items():
        keys = MemberKeys(group.group_id, member_id)
        changes += [(keys.current, None), (keys.target, None), (keys.member, None)]
        metadata = member.classic_member_metadata
        assert metadata is not None
        classic = Member(
            member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=metadata.session_timeout_ms,
            protocols=protocols_of(metadata),
        )
        made.add(classic, PROTOCOL_TYPE)
        current = group.current.get(member_id, NEW_MEMBER)
        assignments[member_id] = consumer_assignment(topics, current.assigned, current.revoking)
    changes += [
        (ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex), None)
        for regex in group.regexes
    ]
    changes += [(key, None) for key in group.own_keys]
    made.generation_id, made.protocol_name = group.epoch, made.selected_protocol()
    made.leader_id = leader
    changes.append((GroupMetadataKey(group=group.group_id), made.value(assignments)))
    return changes


def protocols_of(metadata: ClassicMemberMetadata) -> tuple[Protocol, ...]:
    """Return the protocols that a member of the classic protocol supports."""
    return tuple(Protocol(each.name, each.metadata) for each in metadata.supported_protocols)


def consumer_assignment(topics: Topics, *owned: Owned) -> bytes:
    """Return an assignment in the form of the classic protocol, without topics that were deleted."""
    return encode_assignment(chain.from_iterable(_named(topics, each) for each in owned))


def _named(topics: Topics, owned: Owned) -> Iterator[TopicPartition]:
    for topic_id, numbers in sorted(owned.items()):
        name = topics.name_of(topic_id)
        if name is not None:
            yield from (TopicPartition(name, number) for number in sorted(numbers))


def supports(members: Iterable[ConsumerGroupMemberMetadataValue], protocols: Sequence[Protocol]) -> bool:
    """Whether all of these members that use the classic protocol support one of the protocols."""
    common = {each.name for each in protocols}
    for member in members:
        if member.classic_member_metadata is not None:
            common &= {each.name for each in member.classic_member_metadata.supported_protocols}
    return bool(common)
