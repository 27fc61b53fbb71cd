"""RaftContext: the state that the parts of a KafkaRaftClient share, and transitions that any answer may
cause.

Thread rule: the client's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import (
    InconsistentClusterId,
    InconsistentVoterSet,
    InvalidRequest,
    InvalidVoterKey,
    KreplicaError,
)
from kreplica.common.ports import Clock, Disk, Random, monotonic_ms
from kreplica.common.quorum_state import LAST_EPOCH
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.control_record_state_machine import KRaftControlRecordStateMachine
from kreplica.raft.epoch_state import (
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    same_replica,
)
from kreplica.raft.full_disk import FullDisk
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_metrics import KafkaRaftMetrics
from kreplica.raft.quorum_state import QuorumState
from kreplica.raft.raft_config import Membership, RaftConfig
from kreplica.raft.raft_messages import Standing, only_partition
from kreplica.raft.request_manager import RequestManager
from kreplica.raft.threshold_purgatory import ThresholdPurgatory
from kreplica.raft.voter_set import KRAFT_VERSIONS, ReplicaKey, VoterNode

LOGGER = logging.getLogger(__name__)
MOST_PORT = 0xFFFF
MOST_EPOCHS_AHEAD = 1_000


class EpochBudget:
    """Limits how far requests may advance this node's epoch, so that forged ones cannot use it up.

    Epochs begin one at a time, each after a majority has granted pre-votes. So a request that is many epochs
    ahead is forged, and so are requests that add epochs faster than elections can. Up to MOST_EPOCHS_AHEAD
    may come at once, and another one after each `refill_ms`, the election timeout. 2,147,483,647 epochs then
    last for decades. Any epoch is accepted from a voter that answers this node's own request.
    """

    def __init__(self, refill_ms: int, now_ms: int) -> None:
        assert refill_ms > 0, refill_ms
        self._refill_ms = refill_ms
        # When the budget was empty: it holds an epoch for each `refill_ms` since then.
        self._empty_at_ms = now_ms - MOST_EPOCHS_AHEAD * refill_ms

    def left(self, now_ms: int) -> int:
        """Return how many epochs a request may add now."""
        return min((now_ms - self._empty_at_ms) // self._refill_ms, MOST_EPOCHS_AHEAD)

    def spend(self, epochs: int, now_ms: int) -> None:
        """Take the epochs that a request adds, at most what is left."""
        assert 0 <= epochs <= self.left(now_ms), epochs
        full_at_ms = now_ms - MOST_EPOCHS_AHEAD * self._refill_ms
        self._empty_at_ms = max(self._empty_at_ms, full_at_ms) + epochs * self._refill_ms


@dataclass(slots=True, kw_only=True)
class RaftContext:
    """What the parts of one KafkaRaftClient share.

    `fetches`: fetches that wait for the log end or the high watermark. `appends`: waits for a commit.

    `shutdown_until_ms`: when a graceful shutdown gives up; None if there is no shutdown. `about_to_wait()`:
    see Loop.about_to_wait. `post(task)`: runs a task in the loop and a step after it. `disk`: flushes the
    log; without it the loop does. `is_flushing`: a flush is in progress, so the log end must not be reported.
    `strangers`: nodes that claim to be in a different cluster. They count until any node has answered as one
    of this cluster (`is_at_home`). `epochs`: how many epochs requests may add now.
    """

    config: RaftConfig
    key: ReplicaKey
    membership: Membership
    cluster_id: str
    log: KafkaMetadataLog
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
    # Addresses of leaders, learned from answers. Any thread may read it.
    learned: dict[int, tuple[str, int]] = field(default_factory=dict)

    def now_ms(self) -> int:
        """Return the time on the clock of all deadlines, in ms."""
        return monotonic_ms(self.clock)

    def flush(self, then: Callable[[], object]) -> None:
        """Flush the log and then call `then`: at once, or in a later task of the loop if there is a `disk`.

        With a `disk`, other members in this process can flush at the same time.
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
        """Return what each answer contains: the error if any, the epoch and its leader."""
        code = 0 if error is None else error.code
        return Standing(code, self.quorum.leader_id, self.quorum.epoch)

    def log_end(self) -> OffsetAndEpoch:
        """Return the log end and the epoch of the last record."""
        return OffsetAndEpoch(self.log.end_offset, self.log.last_fetched_epoch)

    def is_up_to_date(self, other: OffsetAndEpoch) -> bool:
        """Return whether a log that ends at `other` has every record that may be committed, by this log."""
        own = self.log_end()
        return (other.epoch, other.offset) >= (own.epoch, own.offset)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return the host and port on which a node listens for the quorum; None if they are unknown.

        They come from the voters' record or from the last answer that named the leader. For the leader that
        answer has priority, since it may have moved. Any thread may call this.
        """
        learned = self.learned
        if node_id in learned and node_id == self.quorum.leader_id:
            return learned[node_id]
        voter = self.control.voters.voters.get(node_id)
        if voter is not None and voter.endpoints:
            found = [each for each in voter.endpoints if each.name == self.membership.listener]
            endpoint = (found or voter.endpoints)[0]
            return endpoint.host, endpoint.port
        return learned.get(node_id)

    @property
    def own_voter_node(self) -> VoterNode | None:
        """This node as a voter, with its current listeners; None if nodes find each other by id."""
        endpoints = self.membership.endpoints
        return VoterNode(self.key, endpoints, *KRAFT_VERSIONS) if endpoints else None

    def learn_endpoints(self, endpoints: Any) -> None:
        """Remember the leader's address from an answer (KIP-853)."""
        for each in endpoints:
            if each.host and 0 < each.port <= MOST_PORT:
                self.learned = {int(each.node_id): (each.host, int(each.port))}

    def learn_leader(self, leader_id: int, endpoints: Any) -> None:
        """Remember the address in a leader's announcement: the listener with the quorum's name, or the
        first.
        """
        own = self.membership.endpoints
        named = [each for each in endpoints if own and each.name == own[0].name] or list(endpoints)
        if named and named[0].host and named[0].port:
            self.learned = {leader_id: (str(named[0].host), int(named[0].port))}

    def voter_key(self, node_id: int) -> ReplicaKey:
        """Return the voter's key; without a directory if the node is not a voter."""
        voters = self.control.voters
        node = voters.voters.get(node_id)
        return ReplicaKey(node_id) if node is None else node.voter_key

    # ---- requests -----------------------------------------------------------------------------------------

    def require_own_key(self, asked: ReplicaKey) -> None:
        """Raise InvalidVoterKey if a request is for another node or for another disk of this node."""
        if asked.node_id >= 0 and not same_replica(asked, self.key):
            raise InvalidVoterKey(f"the request is for voter {asked}, but this node is {self.key}")

    def require_voters(self, sender: int) -> None:
        """Raise InconsistentVoterSet if the voters are configured and do not include both nodes.

        If voters can be added and removed, the sender may know a change that this node does not know yet.
        """
        if sender < 0 or sender == self.key.node_id:
            raise InvalidRequest(f"invalid sender {sender} in a request to node {self.key.node_id}")
        voters = self.control.voters
        if self.control.kraft_version > 0:
            return
        if sender not in voters.voters or not voters.contains(self.key):
            raise InconsistentVoterSet(f"node {sender} and this node, {self.key}, must both be in {voters!r}")

    def require_reachable(self, leader_id: int, endpoints: Any) -> None:
        """Raise InconsistentVoterSet for a leader that is not a voter and whose address is unknown.

        It may have become a voter without this node knowing yet, but then it announces its address.
        """
        # Nodes without endpoints find each other by id.
        if self.membership.endpoints and not endpoints and self.address_of(leader_id) is None:
            raise InconsistentVoterSet(
                f"node {leader_id} claims to lead, but is not in {self.control.voters!r} and does not name"
                " its address"
            )

    def require_plausible(self, epoch: int) -> None:
        """Raise InvalidRequest if a request names an epoch that no election can have reached."""
        known, left = self.quorum.epoch, self.epochs.left(self.now_ms())
        if epoch - known > left or epoch >= LAST_EPOCH:
            raise InvalidRequest(
                f"a request names epoch {epoch}, but node {self.key.node_id} is in epoch {known}: epochs"
                f" more than {left} ahead, or above {LAST_EPOCH - 1}, are rejected for now"
            )

    # ---- transitions --------------------------------------------------------------------------------------

    def take_standing(self, sender: int, standing: Standing) -> bool:
        """Take the leader and epoch from an answer. Returns True if the rest of it is of the current
        epoch.
        """
        quorum, state = self.quorum, self.quorum.state
        if standing.leader_epoch < state.epoch:
            return False
        leader_id = standing.leader_id
        if leader_id == self.key.node_id:
            # The sender takes this node for the leader of an epoch. This node's own state decides that.
            leader_id = None
        if standing.leader_epoch >= LAST_EPOCH > state.epoch:
            LOGGER.warning(
                "node %d: ignored the answer of node %d: its epoch %d would leave none for the next election",
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
        """Return the part of an answer that is about the metadata log; None if it has none.

        The sender is backed off then: there was no answer, an error, or something that was not asked for.
        Nothing that a peer sends stops this node. Raises InconsistentClusterId if a majority of the voters
        says that this node is in a different cluster, before any node has answered as one of this cluster;
        without known voters, if all bootstrap servers say so.
        """
        if response is None:
            return None
        if response.error_code == InconsistentClusterId.code:
            self._note_stranger(sender)
            self.requests.back_off(sender)
            return None
        try:
            if response.error_code:
                raise InvalidRequest(f"node {sender} answered with the error {response.error_code!r}")
            part = only_partition(response)
        except InvalidRequest as error:
            LOGGER.warning("node %d: %s", self.key.node_id, error)
            self.requests.back_off(sender)
            return None
        self.is_at_home = True
        return part

    def _note_stranger(self, sender: int) -> None:
        if sender not in self.strangers:
            LOGGER.warning("node %d: node %d is not in cluster %s", self.key.node_id, sender, self.cluster_id)
        self.strangers.add(sender)
        if self.is_at_home:
            return
        voters = self.control.voters
        if voters.voter_ids:
            strangers = sorted(self.strangers & voters.voter_ids)
            are_enough, names = len(strangers) >= voters.majority, f"the voters {strangers}"
        else:
            are_enough = self.strangers.issuperset(self.membership.bootstrap)
            names = "the servers of controller.quorum.bootstrap.servers"
        if are_enough:
            raise InconsistentClusterId(
                f"node {self.key.node_id} is formatted for cluster {self.cluster_id!r}, but {names}"
                " belong to a different cluster: format its directories again, or correct the addresses"
            )

    def begin_epoch(self, epoch: int, leader_id: int | None) -> None:
        """Move to a later epoch that another node has named."""
        if leader_id is None:
            self.quorum.transition_to_unattached(epoch)
        else:
            self.quorum.transition_to_follower(epoch, leader_id)
