"""VoterSet: the voters of the metadata quorum (KIP-853). VoterSetHistory: the set in force at each offset.

A voter is a node with its directory. The same node with another disk is a different voter, since it has
forgotten its votes. A configured set (controller.quorum.voters) has no directories; there the node's id is
enough. Sets are immutable; any thread may share them.

A set of voters takes effect when its record is in the log, committed or not. Truncating the log restores the
set before. The client's loop changes the history; any thread may read its last value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, InvalidRecord
from kreplica.common.types import INT32_MAX, Uuid
from kreplica.metadata.control_records import KRaftVersionFeature, Voter, VoterEndpoint, VotersRecord

DEFAULT_LISTENER = "CONTROLLER"
# The lowest and the highest protocol level that a node of kreplica supports.
KRAFT_VERSIONS = (0, 1)
# The offset of the configured set, which no record contains.
BEFORE_THE_LOG = -1


class ReplicaKey(NamedTuple):
    """A replica of the metadata log. `directory_id` is Uuid.ZERO if it is not known."""

    node_id: int
    directory_id: Uuid = Uuid.ZERO

    def __str__(self) -> str:
        return str(self.node_id) if self.directory_id == Uuid.ZERO else f"{self.node_id}-{self.directory_id}"


@dataclass(frozen=True, slots=True)
class VoterNode:
    """A voter, its listeners (the first is the default), and the protocol levels that it supports."""

    voter_key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_supported_version: int = 0
    max_supported_version: int = 0

    def is_voter(self, key: ReplicaKey) -> bool:
        """Return whether the key is this voter's. Without a directory only the node ids are compared."""
        own = self.voter_key
        return own.node_id == key.node_id and own.directory_id in (Uuid.ZERO, key.directory_id)

    def supports(self, kraft_version: int) -> bool:
        return self.min_supported_version <= kraft_version <= self.max_supported_version


class VoterSet:
    """The voters by node id, ascending. Raises InvalidConfig for an empty set or a duplicate node."""

    __slots__ = ("voters",)

    voters: Mapping[int, VoterNode]

    def __init__(self, voters: Iterable[VoterNode]) -> None:
        nodes = sorted(voters, key=lambda node: node.voter_key.node_id)
        by_id = {node.voter_key.node_id: node for node in nodes}
        if not by_id:
            raise InvalidConfig("a quorum needs at least one voter")
        if len(by_id) != len(nodes) or nodes[0].voter_key.node_id < 0:
            raise InvalidConfig(
                f"voters {[str(n.voter_key) for n in nodes]}: node ids must be unique and at least 0"
            )
        self.voters = MappingProxyType(by_id)

    @classmethod
    def unknown(cls) -> VoterSet:
        """The empty set of a node that asks the bootstrap servers for the leader until its log names the
        voters.
        """
        voters = cls.__new__(cls)
        voters.voters = MappingProxyType({})
        return voters

    @classmethod
    def parse(cls, text: str, listener: str = DEFAULT_LISTENER) -> VoterSet:
        """Parse controller.quorum.voters: `id@host:port`, separated by commas. Raises InvalidConfig."""
        return cls(_parse_voter(part.strip(), listener) for part in text.split(","))

    @property
    def voter_ids(self) -> frozenset[int]:
        return frozenset(self.voters)

    @property
    def voter_keys(self) -> frozenset[ReplicaKey]:
        return frozenset(node.voter_key for node in self)

    @property
    def majority(self) -> int:
        """How many voters form a majority."""
        return len(self.voters) // 2 + 1

    def contains(self, key: ReplicaKey) -> bool:
        """Return whether the replica is a voter.

        A configured voter has no directory, so its id is enough. In a set with directories, a key without one
        is not a voter.
        """
        node = self.voters.get(key.node_id)
        return node is not None and node.is_voter(key)

    def supports(self, kraft_version: int) -> bool:
        """Return whether all voters support the level."""
        return all(node.supports(kraft_version) for node in self)

    # ---- changes: return a new set, or None if they do not apply ------------------------------------------

    def add_voter(self, node: VoterNode) -> VoterSet | None:
        """Return the set with one more voter; None if its node is already a voter."""
        if node.voter_key.node_id in self.voters:
            return None
        return VoterSet((*self, node))

    def remove_voter(self, key: ReplicaKey) -> VoterSet | None:
        """Return the set without the voter of exactly this key; None if no voter has it or it is the
        last one.
        """
        node = self.voters.get(key.node_id)
        if node is None or node.voter_key != key or len(self.voters) == 1:
            return None
        return VoterSet(each for each in self if each is not node)

    def update_voter(self, node: VoterNode) -> VoterSet | None:
        """Return the set with the voter's new listeners and versions; None if it is not a voter."""
        known = self.voters.get(node.voter_key.node_id)
        if known is None or not known.is_voter(node.voter_key):
            return None
        return VoterSet(node if each is known else each for each in self)

    def has_overlapping_majority(self, other: VoterSet) -> bool:
        """Return whether each majority of one set shares a voter with each majority of the other.

        Then they cannot elect two leaders. It always holds if one voter was added or removed. (Kafka also
        accepts the exchange of one voter for another, which can leave disjoint majorities among three
        voters.)
        """
        return self.majority + other.majority > len(self.voter_keys | other.voter_keys)

    # ---- as a record --------------------------------------------------------------------------------------

    def to_voters_record(self, version: int = 0) -> VotersRecord:
        """Return the control record that puts the set into force."""
        return VotersRecord(
            version=version,
            voters=tuple(
                Voter(
                    voter_id=node.voter_key.node_id,
                    voter_directory_id=node.voter_key.directory_id,
                    endpoints=node.endpoints,
                    k_raft_version_feature=KRaftVersionFeature(
                        min_supported_version=node.min_supported_version,
                        max_supported_version=node.max_supported_version,
                    ),
                )
                for node in self
            ),
        )

    @classmethod
    def from_voters_record(cls, record: VotersRecord) -> VoterSet:
        """Return the set in a record. Raises InvalidRecord if no quorum can have it."""
        try:
            return cls(_node_of(voter) for voter in record.voters)
        except InvalidConfig as error:
            raise InvalidRecord(f"VotersRecord: {error}") from None

    def __iter__(self) -> Iterator[VoterNode]:
        return iter(self.voters.values())

    def __len__(self) -> int:
        return len(self.voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and dict(self.voters) == dict(other.voters)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(str(node.voter_key) for node in self)})"


def _node_of(voter: Voter) -> VoterNode:
    names = [endpoint.name for endpoint in voter.endpoints]
    if len(set(names)) != len(names):
        raise InvalidRecord(f"VotersRecord: voter {voter.voter_id} has two listeners with the same name")
    feature = voter.k_raft_version_feature
    lowest, highest = feature.min_supported_version, feature.max_supported_version
    if not 0 <= lowest <= highest:
        raise InvalidRecord(f"VotersRecord: voter {voter.voter_id} supports versions {lowest} to {highest}")
    return VoterNode(ReplicaKey(voter.voter_id, voter.voter_directory_id), voter.endpoints, lowest, highest)


def _parse_voter(text: str, listener: str) -> VoterNode:
    node_id, _, address = text.partition("@")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    numbers_are_plain = all(n.isascii() and n.isdecimal() and len(n) <= 10 for n in (node_id, port))
    if not numbers_are_plain or not host or int(node_id) > INT32_MAX or int(port) > 0xFFFF:
        raise InvalidConfig(f"controller.quorum.voters: {text[:80]!r} is not id@host:port")
    return VoterNode(ReplicaKey(int(node_id)), (VoterEndpoint(name=listener, host=host, port=int(port)),))


class VotersAt(NamedTuple):
    """A set of voters and the base offset of the batch with its record."""

    offset: int
    voters: VoterSet | None


class VoterSetHistory:
    """The sets of voters in the log, by offset.

    `configured`: the set that holds while the log has none.
    """

    def __init__(self, configured: VoterSet | None) -> None:
        self._entries = [VotersAt(BEFORE_THE_LOG, configured)]

    @property
    def last(self) -> VotersAt:
        """The current set."""
        return self._entries[-1]

    def at(self, offset: int) -> VotersAt:
        """Return the set in force at `offset`."""
        return next(entry for entry in reversed(self._entries) if entry.offset <= offset)

    def since(self, offset: int) -> list[VoterSet]:
        """Return the set in force at `offset` and all later ones."""
        committed = self.at(offset).offset
        return [
            entry.voters for entry in self._entries if entry.offset >= committed and entry.voters is not None
        ]

    def add_at(self, offset: int, voters: VoterSet) -> None:
        """Add the set of a record at `offset`.

        Raises InvalidRecord if a majority of the previous set and one of the new set need not share a voter:
        two leaders could be elected.
        """
        former = self.last
        if former.offset >= offset:
            raise InvalidRecord(f"voters at offset {offset}, but a later set is at {former.offset}")
        before = former.voters if former.offset > BEFORE_THE_LOG else None
        if before is not None and not before.has_overlapping_majority(voters):
            raise InvalidRecord(
                f"voters at offset {offset}: {voters!r} shares too few voters with {former.voters!r}"
            )
        self._entries.append(VotersAt(offset, voters))

    def begin_anew(self, offset: int, voters: VoterSet | None) -> None:
        """Replace all sets by that of a snapshot which ends after `offset`; keep the configured one if it is
        None.
        """
        del self._entries[1:]
        if voters is not None and offset == BEFORE_THE_LOG:
            self._entries[0] = VotersAt(offset, voters)
        elif voters is not None:
            self._entries.append(VotersAt(offset, voters))

    def truncate_new_entries(self, end_offset: int) -> None:
        """Forget the sets at `end_offset` and later: the log was truncated there."""
        while self._entries[-1].offset >= end_offset > BEFORE_THE_LOG and len(self._entries) > 1:
            self._entries.pop()
