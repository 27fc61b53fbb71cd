"""QuorumLogChecker: checks the invariants 16 to 23 of a metadata quorum, for any use of its log.

It knows what is truly committed: everything that any member has ever considered committed. It looks at the
members' logs and states, and at their messages. A violation is an InvariantViolated that names the invariant.

A NodeView has the known contents of one member. A batch is identified by its chain: a hash over it and
everything before it in the log, epochs included. Two logs with equal chains at an offset are identical up to
there. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kreplica._core.records import batches
from kreplica.common.quorum_state import QuorumStateData
from kreplica.raft.epoch_state import (
    CandidateState,
    EpochState,
    LeaderState,
    ProspectiveState,
    UnattachedState,
)
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.quorum_state import FileBasedStateStore
from kreplica.raft.raft_messages import is_of_metadata_log
from kreplica.raft.voter_set import ReplicaKey, VoterNode
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.machines import SimBroker
from kreplica.sim.network import Message
from kreplica.sim.quorum.sim_quorum import LOG_DIRECTORY
from kreplica.sim.scheduler import SimEvent

READ_BYTES = 1 << 20


class QuorumMember(Protocol):
    """A program that is a member or an observer of a quorum."""

    @property
    def log(self) -> KafkaMetadataLog: ...

    @property
    def client(self) -> KafkaRaftClient: ...


class BatchFact(NamedTuple):
    """A batch: its exclusive end, its epoch, and the chain that ends with it."""

    end_offset: int
    epoch: int
    chain: int


def fact_at(facts: Sequence[BatchFact], end_offset: int) -> BatchFact | None:
    """Return the fact, of these ascending ones, whose batch ends there."""
    low, high = 0, len(facts)
    while low < high:
        middle = (low + high) // 2
        if facts[middle].end_offset < end_offset:
            low = middle + 1
        else:
            high = middle
    return facts[low] if low < len(facts) and facts[low].end_offset == end_offset else None


class NodeView:
    """The view of a member. `committed_chains`: by the end of each committed batch; logs begin only at such
    ends.

    `facts`: the batches of its log, ascending. `durable_end`: everything below survives any crash.

    `snapshot_end` and `snapshot_epoch`: those of its latest snapshot.
    """

    def __init__(self, machine: SimBroker, committed_chains: Mapping[int, int]) -> None:
        self.machine = machine
        self._committed_chains = committed_chains
        self.node_id = machine.broker_id
        # The replica at the last look: with another disk it is another replica.
        self.key: ReplicaKey | None = None
        self.life = 0
        self.facts: list[BatchFact] = []
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.durable_end = 0
        self.epoch = 0
        # The offset of the record with the voters that it knows.
        self.voters_offset = -1
        self.led_epoch: int | None = None
        self.snapshot: tuple[int, int] | None = None
        self._seen: object = None

    @property
    def node(self) -> QuorumMember | None:
        """The running program, None while it is down."""
        program: QuorumMember | None = self.machine.program
        return program

    def fact_at(self, end_offset: int) -> BatchFact | None:
        """Return the batch that ends there, None if no batch does."""
        return fact_at(self.facts, end_offset)

    def refresh(self, chains: dict[tuple[int, int], int]) -> list[BatchFact] | None:
        """Update the view; return the new batches in the log, None if nothing has changed.

        `chains`: of every batch that any log ever had, by its end and its epoch.
        """
        node = self.node
        if node is None:
            return None
        log, state = node.log, node.client.quorum.state
        seen = (self.machine.life, state, log.start_offset, log.end_offset, log.log.flush_offset)
        rest = (log.high_watermark, log.latest_snapshot_id, getattr(state, "high_watermark", None))
        if (seen, rest) == self._seen:
            return None
        self._seen = (seen, rest)
        if self.machine.life.number != self.life:
            self.life = self.machine.life.number
            self.key = node.client.quorum.local_key
            self.facts, self.high_watermark = [], 0
        self.start, self.end = log.start_offset, log.end_offset
        self.epoch = state.epoch
        self.led_epoch = state.epoch if isinstance(state, LeaderState) else None
        self.snapshot = log.latest_snapshot_id
        new = self._read(node, chains)
        self.durable_end = min(log.log.flush_offset, log.end_offset)
        return new

    def _read(self, node: QuorumMember, chains: dict[tuple[int, int], int]) -> list[BatchFact]:
        facts = self.facts
        while facts and facts[-1].end_offset > self.end:
            facts.pop()
        if facts and facts[0].end_offset <= self.start:
            facts[:] = [fact for fact in facts if fact.end_offset > self.start]
        if facts:
            at, chain = facts[-1].end_offset, facts[-1].chain
        else:
            at, chain = self.start, self._chain_at_start(chains)
        new = []
        while at < self.end:
            records = node.log.read(at, READ_BYTES, committed_only=False).records
            assert records is not None, (self.node_id, at, self.end)
            for batch in batches(records):
                chain = hash((chain, batch.base_offset, batch.next_offset, batch.leader_epoch, batch.crc))
                at = batch.next_offset
                new.append(BatchFact(at, batch.leader_epoch, chain))
        facts += new
        return new

    def _chain_at_start(self, chains: dict[tuple[int, int], int]) -> int:
        if self.start == 0:
            return 0
        # The log continues from a batch that some log had; the snapshot identifies it if it ends there.
        if self.snapshot is not None and self.snapshot[0] == self.start:
            return chains[self.start, self.snapshot[1]]
        return self._committed_chains[self.start]

    def __str__(self) -> str:
        node = self.node
        state = "down" if node is None else repr(node.client.quorum.state)
        return (
            f"node {self.node_id}: {state}, log {self.start}..{self.end}, durable to {self.durable_end},"
            f" committed to {self.high_watermark}"
        )


# The loop of a member in which everything of the quorum happens.
QUORUM_LOOP = "raft"


def touches_quorum(event: SimEvent) -> bool:
    """Return whether the event may have changed the quorum member it happened to."""
    if event.kind in ("turn", "timer"):
        return event.summary == QUORUM_LOOP
    # The receiver of a message, or of a lost connection, leaves the work to its loop.
    return event.kind not in ("message", "connection", "client")


class QuorumLogChecker:
    """Checks the quorum on these machines, whose programs are QuorumMembers.

    `on_commit(member, start, end)` is called when more is committed than was known; that member has it.
    """

    def __init__(self, machines: Mapping[int, SimBroker]) -> None:
        # Every batch that any log ever had: (its end, its epoch) -> its chain.
        self.chains: dict[tuple[int, int], int] = {}
        # Every committed batch: its end -> its chain.
        self.committed_chains: dict[int, int] = {0: 0}
        self.committed_end = 0
        # The end of what was committed in each epoch.
        self._committed_in: dict[int, int] = {}
        self.views = {
            node_id: NodeView(machine, self.committed_chains) for node_id, machine in machines.items()
        }
        self.on_commit: Callable[[Any, int, int], object] = lambda *_: None
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[ReplicaKey, int], int] = {}
        self._states: dict[int, EpochState] = {}
        self._asked: dict[int, Any] = {}
        # The contents of lost disks, because a leader counts on what their nodes had reported.
        self._lost: dict[ReplicaKey, tuple[list[BatchFact], int]] = {}
        # The voters that would vote for a node, by the node and the epoch in which it asked.
        self._would_vote: dict[tuple[int, int], set[ReplicaKey]] = {}

    # ---- after an event -----------------------------------------------------------------------------------

    def check(self, node_ids: Iterable[int] | None = None) -> None:
        """Check these members, or all. Raises InvariantViolated."""
        changed = []
        for view in self.views.values() if node_ids is None else map(self.views.__getitem__, node_ids):
            former_end, former_life = view.durable_end, view.life
            new = view.refresh(self.chains)
            if new is None:
                continue
            changed.append(view)
            if view.life != former_life:
                self._check_restart(view, former_end)
            for fact in new:
                known = self.chains.setdefault((fact.end_offset, fact.epoch), fact.chain)
                self._require(
                    known == fact.chain,
                    "LogMatching",
                    f"another log has other records up to {fact.end_offset} of epoch {fact.epoch}",
                    view,
                )
        for view in sorted(changed, key=lambda view: view.led_epoch is None):
            self._check_state(view)
            self._check_voters(view)
            self._check_mark(view)
            self._check_start(view)

    def forget_disk(self, node_id: int) -> None:
        """Note that the node, which is down, has an empty disk from now on."""
        view = self.views[node_id]
        if view.key is not None:
            self._lost[view.key] = view.facts, view.durable_end
        view.durable_end, view.epoch, view.facts = 0, 0, []
        self._states.pop(node_id, None)

    def _require(self, holds: bool, name: str, what: str, *views: NodeView) -> None:
        if not holds:
            shown = views if len(views) > 1 else self.views.values()
            raise InvariantViolated(name, "; ".join([what, *map(str, shown)]))

    def _check_restart(self, view: NodeView, durable_end: int) -> None:
        kept = view.end >= durable_end or (view.snapshot is not None and view.snapshot[0] >= durable_end)
        self._require(kept, "Durable", f"node {view.node_id} has lost what it had flushed", view)

    def _check_state(self, view: NodeView) -> None:
        node = view.node
        assert node is not None
        state = node.client.quorum.state
        if self._states.get(view.node_id) is state:
            return
        before = self._states.get(view.node_id)
        self._states[view.node_id] = state
        if before is not None:
            self._require(
                state.epoch >= before.epoch, "MonotonicEpoch", f"node {view.node_id} was in {before!r}", view
            )
        if state.leader_id is not None:
            self._claim(view.node_id, state.leader_id, state.epoch)
            is_legal = not isinstance(state, (UnattachedState, CandidateState))
            self._require(is_legal, "NoIllegalState", f"{state!r} knows a leader", view)
        if isinstance(state, CandidateState):
            self._check_asked_before(view, state.epoch)
            self._vote(view, state.epoch, view.node_id)
        if isinstance(state, (CandidateState, ProspectiveState, LeaderState)):
            may_be = node.client.quorum.is_electable or isinstance(state, LeaderState)
            self._require(may_be, "NoIllegalState", f"{state!r} of no voter", view)
        if isinstance(state, LeaderState):
            end = self._committed_before(state.epoch)
            self._require(
                view.end >= end and self._holds_committed(view, end),
                "LeaderCompleteness",
                f"the leader of epoch {state.epoch} lacks what is committed up to {end}",
                view,
            )
        stored = FileBasedStateStore(view.machine.storage, LOG_DIRECTORY).read() or QuorumStateData(0)
        election = state.election()
        same = (stored.leader_epoch, stored.leader_id, stored.voted_id) == (
            *(election.leader_epoch, election.leader_id, election.voted_id),
        )
        self._require(same, "StoredElection", f"{state!r}, and on disk {stored}", view)

    def _claim(self, who: int, leader_id: int, epoch: int) -> None:
        known = self._leaders.setdefault(epoch, leader_id)
        self._require(
            known == leader_id,
            "SingleLeader",
            f"node {who} takes {leader_id} for the leader of epoch {epoch}, and others took {known}",
        )

    def _vote(self, voter: NodeView, epoch: int, candidate: int) -> None:
        assert voter.key is not None
        known = self._votes.setdefault((voter.key, epoch), candidate)
        self._require(
            known == candidate,
            "OneVote",
            f"node {voter.key} votes for {candidate} in epoch {epoch}, and did for {known}",
        )

    def _committed_before(self, epoch: int) -> int:
        """Return the end of what was committed in earlier epochs.

        A candidate that was delayed may win its election when a later leader has committed more.
        """
        return max((end for known, end in self._committed_in.items() if known < epoch), default=0)

    def _holds_committed(self, view: NodeView, end: int) -> bool:
        if end <= view.start:
            return True
        fact = view.fact_at(end)
        return fact is not None and fact.chain == self.committed_chains[end]

    def _check_voters(self, view: NodeView) -> None:
        """Check that a leader changes the voters only after it knows the previous change to be committed.

        Otherwise two majorities might have no voter in common (KAFKA-16530).
        """
        assert view.node is not None
        client = view.node.client
        former, view.voters_offset = view.voters_offset, client.voters_offset
        state = client.quorum.state
        # The voters at the start of its epoch are not its choice.
        if not isinstance(state, LeaderState) or view.voters_offset <= max(former, state.epoch_start_offset):
            return
        self._require(
            state.high_watermark is not None and former < state.high_watermark,
            "OneChangeOfVoters",
            f"node {view.node_id} changes the voters at {client.voters_offset}, after those at {former}, and"
            f" knows {state.high_watermark} to be committed",
            view,
        )

    # ---- committed records --------------------------------------------------------------------------------

    def _check_mark(self, view: NodeView) -> None:
        node = view.node
        assert node is not None
        mark, state = node.log.high_watermark, node.client.quorum.state
        self._require(
            mark >= view.high_watermark, "MonotonicHighWatermark", f"it was {view.high_watermark}", view
        )
        if isinstance(state, LeaderState) and state.high_watermark is not None:
            self._require(
                state.high_watermark <= mark and state.high_watermark > state.epoch_start_offset,
                "MajorityReachedHighWatermark",
                f"the leader's mark is {state.high_watermark}",
                view,
            )
        view.high_watermark = mark
        if mark > view.start:
            fact = view.fact_at(mark)
            self._require(fact is not None, "ConsistentCommittedData", "a mark within a batch", view)
            assert fact is not None
            if mark > self.committed_end:
                self._commit(view, mark)
            self._require(
                self.committed_chains.get(mark) == fact.chain,
                "ConsistentCommittedData",
                f"node {view.node_id} has other records committed up to {mark}",
                view,
            )

    def _commit(self, view: NodeView, mark: int) -> None:
        """Take in a higher committed offset than any member had before."""
        fact = view.fact_at(self.committed_end)
        known = self.committed_chains[self.committed_end]
        is_next = view.start >= self.committed_end or (
            self.committed_end == 0 or (fact is not None and fact.chain == known)
        )
        self._require(
            is_next, "ConsistentCommittedData", f"up to {self.committed_end} something else is", view
        )
        node = view.node
        assert node is not None
        voters = node.client.voters
        wanted = view.fact_at(mark)
        assert wanted is not None
        holders = [
            node_id
            for node_id, voter in voters.voters.items()
            if node_id in self.views and self._has_on_disk(self.views[node_id], voter, mark, wanted.chain)
        ]
        self._require(
            len(holders) > len(voters) // 2,
            "MajorityReachedHighWatermark",
            f"{mark} is committed and on the disks of {holders} of {sorted(voters.voters)} only",
        )
        for each in view.facts:
            if self.committed_end < each.end_offset <= mark:
                self.committed_chains[each.end_offset] = each.chain
        start, self.committed_end = self.committed_end, mark
        self._committed_in[node.client.quorum.state.epoch] = mark
        self.on_commit(node, start, mark)

    def _has_on_disk(self, view: NodeView, voter: VoterNode, end_offset: int, chain: int) -> bool:
        """Return whether the voter has the batch on disk, or had it when it lost its disk.

        A minority may lose its disks: every majority then includes a remaining voter that has the batch.
        """
        disks = [lost for key, lost in self._lost.items() if voter.is_voter(key)]
        if view.key is not None and voter.is_voter(view.key):
            disks.append((view.facts, view.durable_end))
        for facts, durable_end in disks:
            fact = fact_at(facts, end_offset)
            if fact is not None and fact.chain == chain and durable_end >= end_offset:
                return True
        return False

    def _check_start(self, view: NodeView) -> None:
        has_snapshot = view.start == 0 or (view.snapshot is not None and view.snapshot[0] >= view.start)
        self._require(has_snapshot, "SnapshotAtLogStart", f"the log begins at {view.start}", view)

    # ---- messages -----------------------------------------------------------------------------------------

    def heard(self, what: str, message: Message) -> None:
        """Check a message that is sent or taken; this is the network's tap."""
        if message.name == "Vote":
            if message.is_request and what == "taken":
                self._asked[message.number] = message.body.topics[0].partitions[0]
            elif not message.is_request and what == "sent":
                self._check_vote(message)
        elif message.name == "Fetch" and message.is_request and what == "sent":
            self._check_fetch(message)

    def _check_asked_before(self, view: NodeView, epoch: int) -> None:
        """Check that a node begins an epoch only if a majority would elect it, since a new epoch unseats the
        leader."""
        assert view.node is not None
        voters = view.node.client.voters
        asked = {*self._would_vote.get((view.node_id, epoch - 1), ()), view.key}
        would = sorted(key.node_id for key in asked if key is not None and voters.contains(key))
        self._require(
            len(would) >= voters.majority,
            "PreVote",
            f"node {view.node_id} begins epoch {epoch}, and of {voters} only {would} would vote for it",
            view,
        )

    def _check_fetch(self, message: Message) -> None:
        if message.frame is not None:
            # It is a follower's; members of the quorum send objects.
            return
        view, request = self.views.get(message.sender_id), message.body
        node = None if view is None else view.node
        if node is None or not is_of_metadata_log(request):
            return
        offset = request.topics[0].partitions[0].fetch_offset
        flushed = node.log.log.flush_offset
        self._require(
            offset <= flushed,
            "FlushedBeforeFetch",
            f"node {message.sender_id} fetches at {offset}, and has flushed to {flushed}",
        )

    def _check_vote(self, message: Message) -> None:
        asked, view = self._asked.get(message.number), self.views.get(message.sender_id)
        if asked is None or view is None or view.key is None or not message.body.topics:
            return
        if not message.body.topics[0].partitions[0].vote_granted:
            return
        if asked.pre_vote:
            asker = int(asked.replica_id), int(asked.replica_epoch)
            self._would_vote.setdefault(asker, set()).add(view.key)
        else:
            self._vote(view, int(asked.replica_epoch), int(asked.replica_id))
