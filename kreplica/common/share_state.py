"""The state of a share partition, as its leader and the share coordinator exchange it, and the port between.

A share partition is one partition of a topic as seen by one share group (KIP-932). Its leader keeps the state
of each record in memory, and stores what must outlive it through a `Persister`: the start offset, and a
`StateBatch` for each range of offsets that is no longer in its first state. No state here; any thread may
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kreplica.common.future import Future
from kreplica.common.types import NO_OFFSET, Uuid

# The states of a record in a share group. ACQUIRED is never stored: a lock does not outlive its leader.
AVAILABLE = 0
ACQUIRED = 1
ACKNOWLEDGED = 2
ARCHIVING = 3
ARCHIVED = 4
STATE_NAMES = ("Available", "Acquired", "Acknowledged", "Archiving", "Archived")

# In a write or an initialization: leave out the check of this epoch.
ANY_EPOCH = -1
# In a write: the start offset is unchanged. In a state: the share partition has no start offset yet.
NO_START_OFFSET = NO_OFFSET
# How many records behind the start offset are delivered for good is not known.
UNKNOWN_COUNT = -1


class SharePartitionKey(NamedTuple):
    """Identifies a share partition."""

    group_id: str
    topic_id: Uuid
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{self.topic_id}:{self.partition}"


class StateBatch(NamedTuple):
    """The state of the records from `first_offset` to `last_offset`, both included.

    `delivery_state`: AVAILABLE, ACKNOWLEDGED, ARCHIVING or ARCHIVED. `delivery_count`: how often they were
    acquired.
    """

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ShareState(NamedTuple):
    """The stored state of a share partition, or a change of it.

    `state_epoch`: grows each time that the share partition is initialized. `leader_epoch`: that of the last
    leader which has read or written. `start_offset`: the first record that may still be delivered;
    NO_START_OFFSET if the leader is to choose one. `batches`: disjoint, in the order of their offsets.
    `delivery_complete_count`: the number of records from the start offset on that are acknowledged or
    archived, or UNKNOWN_COUNT.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: Sequence[StateBatch] = ()
    delivery_complete_count: int = UNKNOWN_COUNT


class Persister(Protocol):
    """Stores the states of share partitions with the share coordinator. Any thread may call.

    Futures may be resolved in any thread, and fail with a KreplicaError: CoordinatorNotAvailable,
    CoordinatorLoadInProgress and NotCoordinator after the retries; GroupIdNotFound and
    UnknownTopicOrPartition; FencedLeaderEpoch and FencedStateEpoch; InvalidRequest for a share partition that
    is not initialized.
    """

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Future[None]:
        """Begin a new state without batches at `start_offset`, which may be NO_START_OFFSET."""
        ...

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Future[ShareState]:
        """Return the stored state. Earlier leaders are fenced from then on."""
        ...

    def write(self, key: SharePartitionKey, state: ShareState) -> Future[None]:
        """Store the batches over what is stored, and the start offset unless it is NO_START_OFFSET.

        Writes of one key take effect in the order of the calls, and a write that fails takes no effect.
        """
        ...

    def delete(self, key: SharePartitionKey) -> Future[None]:
        """Delete the state. An unknown key is no error."""
        ...

    def summary(self, key: SharePartitionKey, leader_epoch: int) -> Future[ShareState]:
        """Return the state without its batches, and check or record no epoch.

        An unknown key has NO_START_OFFSET and epochs of 0.
        """
        ...
