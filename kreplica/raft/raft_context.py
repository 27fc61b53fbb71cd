"""RaftContext: what the parts of one KafkaRaftClient share, and the transitions that any answer may bring.

Thread rule: the client's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kreplica.common.errors import (
    InconsistentClusterId,
    InconsistentVoterSet,
    InvalidRequest,
    InvalidVoterKey,
    KreplicaError,
)
from kreplica.common.ports import Clock, Disk, Random
from kreplica.common.quorum_state import LAST_EPOCH
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.control_record_state_machine import KRaftControlRecordStateMachine
from kreplica.raft.epoch_budget import EpochBudget
from kreplica.raft.epoch_state import same_replica
from kreplica.raft.follower_state import FollowerState
from kreplica.raft.full_disk import FullDisk
from kreplica.raft.kafka_raft_metrics import KafkaRaftMetrics
from kreplica.raft.leader_state import LeaderState
from kreplica.raft.membership import Membership
from kreplica.raft.prospective_state import ProspectiveState
from kreplica.raft.quorum_state import QuorumState
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.raft_messages import Standing, only_partition
from kreplica.raft.replicated_log import ReplicatedLog
from kreplica.raft.request_manager import RequestManager
from kreplica.raft.resigned_state import ResignedState
from kreplica.raft.threshold_purgatory import ThresholdPurgatory
from kreplica.raft.voter_set import KRAFT_VERSIONS, ReplicaKey, VoterNode

LOGGER = logging.getLogger(__name__)
MOST_PORT = 0xFFFF


@dataclass(slots=True, kw_only=True)
class RaftContext:
    """`fetches`: fetches that wait for the log's end or the mark. `appends`: what waits for the mark.

    `shutdown_until_ms`: when a graceful shutdown gives up; None while there is none. `about_to_wait()`: as
    Loop.about_to_wait. `post(task)`: run it in the loop, and a step after it. `disk`: what flushes the log;
    None where the loop waits for that itself. `is_flushing`: it is under way, so nobody may be told of the
    log's end. `strangers`: nodes that say they are of another cluster, as long as none has said otherwise
    (`is_at_home`). `epochs`: how many epochs requests may add now.
    """

    config: RaftConfig
    key: ReplicaKey
    membership: Membership
    cluster_id: str
    log: ReplicatedLog
    control: KRaftControlRecordStateMachine
    quorum: QuorumState
    requests: RequestManager
    clock: Clock
    random: Random
    metrics: KafkaRaftMetrics
    full_disk: FullDisk
    fetches: ThresholdPurgatory
    appends: ThresholdPurgatory
    epochs: EpochBudget
    about_to_wait: Callable[[], None]
    post: Callable[[Callable[[], None]], None]
    disk: Disk | None = None
    is_flushing: bool = False
    strangers: set[int] = field(default_factory=set)
    is_at_home: bool = False
    shutdown_until_ms: int | None = None
    # Where leaders listen that answers have named; read by any thread.
    learned: dict[int, tuple[str, int]] = field(default_factory=dict)

    def now_ms(self) -> int:
        """The time that deadlines are told in."""
        return self.clock.monotonic_ns() // 1_000_000

    def flush(self, then: Callable[[], object]) -> None:
        """Put the log on disk, then call `then`: now, or in a later task of the loop where there is a disk.

        Other members in the process may do the same meanwhile.
        """
        if self.disk is None:
            self.about_to_wait()
            self.log.flush()
            then()
            return
        self.is_flushing = True
        self.log.flush_aside(self.disk, lambda finish: self.post(partial(self._flushed, finish, then)))

    def _flushed(self, finish: Callable[[], None], then: Callable[[], object]) -> None:
        self.is_flushing = False
        finish()
        then()

    def standing(self, error: KreplicaError | None = None) -> Standing:
        """What an answer says: the error, if there is one, and who leads which epoch."""
        code = 0 if error is None else error.code
        return Standing(code, self.quorum.leader_id, self.quorum.epoch)

    def log_end(self) -> OffsetAndEpoch:
        """Where the log ends, and the epoch of its last record."""
        return OffsetAndEpoch(self.log.end_offset, self.log.last_fetched_epoch)

    def is_up_to_date(self, other: OffsetAndEpoch) -> bool:
        """Whether a log that ends so has all that this one may know to be committed."""
        own = self.log_end()
        return (other.epoch, other.offset) >= (own.epoch, own.offset)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Where a node listens for the quorum: as its voters' record says, or what named the leader last;
        None where neither does. A leader may have moved, so its own word comes first. For any thread."""
        learned = self.learned
        if node_id in learned and node_id == self.quorum.leader_id:
            return learned[node_id]
        voter = self.control.voters.voters.get(node_id)
        if voter is not None and voter.endpoints:
            return voter.endpoints[0].host, voter.endpoints[0].port
        return learned.get(node_id)

    @property
    def own_voter_node(self) -> VoterNode | None:
        """This node as a voter of this life; None where nodes find each other by their ids."""
        endpoints = self.membership.endpoints
        return VoterNode(self.key, endpoints, *KRAFT_VERSIONS) if endpoints else None

    def learn_endpoints(self, endpoints: Any) -> None:
        """An answer says where the leader listens (KIP-853)."""
        for each in endpoints:
            if each.host and 0 < each.port <= MOST_PORT:
                self.learned = {int(each.node_id): (each.host, int(each.port))}

    def learn_leader(self, leader_id: int, endpoints: Any) -> None:
        """A leader says where it listens; the listener of the quorum's name counts, or else the first one."""
        own = self.membership.endpoints
        named = [each for each in endpoints if own and each.name == own[0].name] or list(endpoints)
        if named and named[0].host and named[0].port:
            self.learned = {leader_id: (str(named[0].host), int(named[0].port))}

    def voter_key(self, node_id: int) -> ReplicaKey:
        """The voter's key; one without a directory where it is no voter."""
        voters = self.control.voters
        node = voters.voters.get(node_id)
        return ReplicaKey(node_id) if node is None else node.voter_key

    # ---- requests -----------------------------------------------------------------------------------------

    def require_own_key(self, asked: ReplicaKey) -> None:
        """Raises InvalidVoterKey where a request is for another node, or for another disk of this one."""
        if asked.node_id >= 0 and not same_replica(asked, self.key):
            raise InvalidVoterKey(f"the request is for the voter {asked}, and this is {self.key}")

    def require_voters(self, sender: int) -> None:
        """Raises InconsistentVoterSet where the voters are configured and not both are among them.

        Where voters come and go the sender may know of a change that this node does not.
        """
        if sender < 0 or sender == self.key.node_id:
            raise InvalidRequest(f"the request is from node {sender}, to node {self.key.node_id}")
        voters = self.control.voters
        if self.control.kraft_version > 0:
            return
        if sender not in voters.voters or not voters.contains(self.key):
            raise InconsistentVoterSet(f"node {sender} and this one, {self.key}, are not both in {voters!r}")

    def require_reachable(self, leader_id: int, endpoints: Any) -> None:
        """Raises InconsistentVoterSet for a leader that is no voter and that this node could not reach.

        One that is no voter by this node's log may have become one since, and then says where it listens.
        """
        # A node without endpoints finds the others by their ids.
        if self.membership.endpoints and not endpoints and self.address_of(leader_id) is None:
            raise InconsistentVoterSet(
                f"node {leader_id} says that it leads, but is not in {self.control.voters!r}, and does not"
                " say where it listens"
            )

    def require_plausible(self, epoch: int) -> None:
        """Raises InvalidRequest where a request names an epoch that no election has led to."""
        known, left = self.quorum.epoch, self.epochs.left(self.now_ms())
        if epoch - known > left or epoch >= LAST_EPOCH:
            raise InvalidRequest(
                f"a request names epoch {epoch}, and node {self.key.node_id} is in epoch {known}: epochs more"
                f" than {left} ahead, or from {LAST_EPOCH} on, are refused for now"
            )

    # ---- transitions --------------------------------------------------------------------------------------

    def take_standing(self, sender: int, standing: Standing) -> bool:
        """Learn from an answer who leads; whether what else it says is of the epoch that holds now."""
        quorum, state = self.quorum, self.quorum.state
        if standing.leader_epoch < state.epoch:
            return False
        leader_id = standing.leader_id
        if leader_id == self.key.node_id:
            # Somebody remembers this node as the leader of an epoch; it knows better itself.
            leader_id = None
        if standing.leader_epoch >= LAST_EPOCH > state.epoch:
            LOGGER.warning(
                "node %d: node %d answers with epoch %d, which leaves none for the next election",
                self.key.node_id,
                sender,
                standing.leader_epoch,
            )
            return False
        if standing.leader_epoch > state.epoch:
            self.begin_epoch(standing.leader_epoch, leader_id)
            return False
        if leader_id is not None and not isinstance(state, (LeaderState, ResignedState, FollowerState)):
            is_back = isinstance(state, ProspectiveState) and state.leader_id == leader_id == sender
            if state.leader_id is None or is_back:
                quorum.transition_to_follower(state.epoch, leader_id)
        return True

    def part_for_us(self, sender: int, response: Any) -> Any:
        """The part of an answer that is for the metadata log.

        None, and a pause for the sender, where it has none: no answer came, or an error, or not what was
        asked for. What a peer sends never ends this node. Raises InconsistentClusterId where a majority of
        the voters calls it a stranger, before any node has answered as one of its own cluster.
        """
        if response is None:
            return None
        if response.error_code == InconsistentClusterId.code:
            self._note_stranger(sender)
        try:
            if response.error_code:
                raise InvalidRequest(f"node {sender} answers with {response.error_code!r}")
            part = only_partition(response)
        except InvalidRequest as error:
            LOGGER.warning("node %d: %s", self.key.node_id, error)
            self.requests.back_off(sender)
            return None
        self.is_at_home = True
        return part

    def _note_stranger(self, sender: int) -> None:
        self.strangers.add(sender)
        voters = self.control.voters
        strangers = sorted(self.strangers & voters.voter_ids)
        if not self.is_at_home and len(strangers) >= voters.majority:
            raise InconsistentClusterId(
                f"node {self.key.node_id} is formatted for the cluster {self.cluster_id!r}, and the voters"
                f" {strangers} are of another one: format its directories anew, or correct who the voters are"
            )

    def begin_epoch(self, epoch: int, leader_id: int | None) -> None:
        """A later epoch than this node's has been heard of."""
        if leader_id is None:
            self.quorum.transition_to_unattached(epoch)
        else:
            self.quorum.transition_to_follower(epoch, leader_id)
