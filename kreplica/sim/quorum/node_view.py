"""NodeView: the known contents of one quorum member, updated event by event at a cost of what has changed.

A batch is identified by its chain: a hash over it and everything before it in the log, epochs included. Two
logs with equal chains at an offset are identical up to there. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kreplica._core.records import batches
from kreplica.raft.epoch_state import LeaderState
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_client import KafkaRaftClient
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.node import SimBroker

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
