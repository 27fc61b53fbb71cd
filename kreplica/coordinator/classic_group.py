"""ClassicGroup: a group of the classic protocol: members, protocol votes and generation.

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                    │  ▲                                │                                │
      └───no member left───┘  └────────a member joins, leaves, or changes its protocols─────────┘

A Dead group was unloaded or deleted. This class makes no decisions and sends nothing; GroupRebalances and
GroupOffsets do. It belongs to the coordinator's loop.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kreplica.common.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidRecord
from kreplica.common.future import Future
from kreplica.common.ports import Cancellable
from kreplica.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    encode_key,
    encode_value,
)


class GroupState(enum.Enum):
    """A group's state in the diagram above; the values are the names shown by Kafka's tools."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Protocol(NamedTuple):
    """A protocol to divide the work that a member supports, and the member's data for the group's leader."""

    name: str
    metadata: bytes


class JoinedMember(NamedTuple):
    """A member as described to the leader of a generation."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """The response to a member that has joined: the generation, and for its leader the members.

    `skip_assignment`: a static leader has returned, and its earlier assignment still applies.
    """

    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The response to a member's SyncGroup: its assignment."""

    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@dataclass(slots=True, eq=False)
class Member:
    """A member; timeouts in ms.

    `assignment`: the last one that was stored, `join` and `sync`: the futures of its pending requests.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join: Future[Joined] | None = None
    sync: Future[Synced] | None = None
    is_new: bool = False
    deadline_ms: int = 0
    timer: Cancellable | None = None

    def metadata_of(self, protocol_name: str | None) -> bytes:
        """Return the member's data for a protocol; empty if it does not support the protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")


class ClassicGroup:
    """Members, protocols and generation of one group.

    Generations are counted from 1; `state_timestamp`: ms since 1970.
    """

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        # Member ids handed out but not joined yet (KIP-394); members of this generation that have not synced
        # yet.
        self.pending: dict[str, Cancellable] = {}
        self.pending_sync: set[str] = set()
        # Whether a group that was empty is waiting for more members (KIP-134), and whether one has joined
        # since.
        self.is_delayed = self.new_member_added = False
        self.rebalance_timer: Cancellable | None = None
        self._supported: Counter[str] = Counter()

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state; a Dead group stays Dead."""
        if self.state is not GroupState.DEAD:
            self.state = state
            self.state_timestamp = now_ms

    # ---- members ------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. The first one becomes leader and sets the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._supported.update({each.name for each in member.protocols})
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member; if it was the leader, another member becomes leader."""
        member = self.members.pop(member_id)
        self._supported.subtract({each.name for each in member.protocols})
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        self.pending_sync.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id, in its old position."""
        old = member.member_id
        self.members = {member_id if each == old else each: known for each, known in self.members.items()}
        member.member_id = member_id
        assert member.group_instance_id is not None
        self.static_members[member.group_instance_id] = member_id
        if old in self.pending_sync:
            self.pending_sync.remove(old)
            self.pending_sync.add(member_id)
        if self.leader_id == old:
            self.leader_id = member_id

    def update(self, member: Member, protocols: Sequence[Protocol]) -> None:
        """Replace the member's protocols."""
        self._supported.subtract({each.name for each in member.protocols})
        member.protocols = tuple(protocols)
        self._supported.update({each.name for each in member.protocols})

    @property
    def size(self) -> int:
        """The number of members plus handed-out member ids."""
        return len(self.members) + len(self.pending)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, and none is about to join."""
        return self.is_in(GroupState.EMPTY) and not self.pending

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and all(member.join is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # ---- protocols ----------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Sequence[Protocol]) -> bool:
        """Whether a member with these protocols may join: all members must have one in common."""
        if not self.members:
            return bool(protocol_type and protocols)
        candidates = self._candidates()
        return protocol_type == self.protocol_type and any(each.name in candidates for each in protocols)

    def selected_protocol(self) -> str:
        """Return the protocol with most votes; each member votes for its first one that all support."""
        candidates = self._candidates()
        votes = Counter(
            next(each.name for each in member.protocols if each.name in candidates)
            for member in self.members.values()
        )
        return max(votes, key=lambda name: (votes[name], name))

    def _candidates(self) -> set[str]:
        return {name for name, count in self._supported.items() if count == len(self.members)}

    # ---- generations --------------------------------------------------------------------------------------

    def begin_generation(self, now_ms: int) -> None:
        """Start the next generation with the current members; assignments follow."""
        self.generation_id += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.selected_protocol()
            self.pending_sync.update(self.members)
            self.move_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.move_to(GroupState.EMPTY, now_ms)

    def joined(self, member: Member, *, skip_assignment: bool = False) -> Joined:
        """Return the JoinGroup response of a member; the leader's includes all members."""
        is_leader = member.member_id == self.leader_id
        members = tuple(
            JoinedMember(each.member_id, each.group_instance_id, each.metadata_of(self.protocol_name))
            for each in self.members.values()
        )
        return Joined(
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or "",
            member.member_id,
            members if is_leader else (),
            skip_assignment and is_leader,
        )

    def synced(self, member: Member) -> Synced:
        """Return the SyncGroup response of a member."""
        return Synced(self.protocol_type, self.protocol_name, member.assignment)

    def subscribed_topics(self) -> set[str] | None:
        """Return the topics that a group of consumers reads; None if the members' metadata does not say."""
        if self.is_in(GroupState.EMPTY):
            return set()
        if self.protocol_type != PROTOCOL_TYPE or self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            metadata = member.metadata_of(self.protocol_name)
            try:
                topics.update(subscribed_topics(metadata))
            except InvalidRecord:
                return None
        return topics

    # ---- the group's record -------------------------------------------------------------------------------

    def record(self, assignments: Mapping[str, bytes]) -> tuple[bytes, bytes]:
        """Return key and value of the group's record, with these assignments by member id."""
        return encode_key(GroupMetadataKey(group=self.group_id)), encode_value(self.value(assignments))

    def value(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """Return the value of the group's record, with these assignments by member id."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_timestamp,
            members=tuple(
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata_of(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def of_record(cls, group_id: str, value: GroupMetadataValue, now_ms: int) -> ClassicGroup:
        """Return the group described by a record, in state Stable or Empty.

        A generation without a leader has been formed without a rebalance: one has to follow.
        """
        group = cls(group_id, now_ms)
        group.generation_id = value.generation
        group.protocol_name = value.protocol
        for each in value.members:
            member = Member(
                each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout_ms=(
                    each.session_timeout if each.rebalance_timeout == -1 else each.rebalance_timeout
                ),
                session_timeout_ms=each.session_timeout,
                protocols=(Protocol(value.protocol or "", each.subscription),),
            )
            member.assignment = each.assignment
            group.add(member, value.protocol_type)
        group.protocol_type = value.protocol_type or None
        if value.leader is None or value.leader in group.members:
            group.leader_id = value.leader
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        if value.current_state_timestamp >= 0:
            group.state_timestamp = value.current_state_timestamp
        return group
