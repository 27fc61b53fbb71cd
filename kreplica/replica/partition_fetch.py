"""Reads of a partition by consumers and followers: who may read, from which epoch, and where logs diverge.

A read holds no lock: it looks at one Term and at what the log has published. The log's end is taken before
the records, so that appends that come meanwhile do not make a follower seem to lag (its state is updated
after the read).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kreplica.common.errors import (
    FencedLeaderEpoch,
    LogClosed,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnsupportedVersion,
)
from kreplica.log import log_reader
from kreplica.log.log_reader import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    TimestampOffset,
)
from kreplica.replica.replica import UNKNOWN_BROKER_EPOCH, Replica

if TYPE_CHECKING:
    from kreplica._core.region import Slice
    from kreplica.log.transaction_index import AbortedTxn
    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition
    from kreplica.replica.partition_term import Term

# Where what this broker itself holds begins, of a log that has parts elsewhere (KIP-405).
EARLIEST_LOCAL_TIMESTAMP = -4


class EpochEndOffset(NamedTuple):
    """A leader epoch and the offset where it ends (exclusive); -1 and -1 where nothing is known."""

    leader_epoch: int
    end_offset: int


class LogReadInfo(NamedTuple):
    """The answer to a fetch. `records`: whole batches as one pinned slice, None where there is nothing yet.

    The offsets are those from before the read; `leader_epoch`: the epoch in which it was made.
    `diverging_epoch`: where the fetcher's log and this one part; it has to cut its own, and nothing was read.
    """

    fetch_offset: int
    records: Slice | None
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    leader_epoch: int
    diverging_epoch: EpochEndOffset | None = None
    aborted: Sequence[AbortedTxn] = ()


def fetch_records(
    partition: Partition,
    fetch_offset: int,
    max_bytes: int,
    isolation: str,
    replica_id: int,
    current_leader_epoch: int | None,
    last_fetched_epoch: int | None,
    only_leader: bool,
    at_least_one: bool,
) -> LogReadInfo:
    """As Partition.fetch_records."""
    term = partition.term
    log = term.log
    if current_leader_epoch != term.leader_epoch or log is None or not term.leads:
        # What is nearly always so is looked at here; the rest, and who is refused, there.
        term = log_with_epoch(partition, current_leader_epoch, only_leader)
        log = term.log
        assert log is not None
    replica = None if replica_id < 0 else partition.replica(replica_id)
    if replica_id >= 0 and replica is None:
        _refuse_follower(partition, replica_id, current_leader_epoch)
    state = log.state
    end = state.log_end_offset
    mark, start, stable = state.high_watermark, state.log_start_offset, state.last_stable_offset
    if last_fetched_epoch is not None:
        epochs = log.epochs.entries
        # Where it has the last epoch there is nothing to look for.
        if not epochs or epochs[-1].epoch != last_fetched_epoch or not start <= fetch_offset <= end:
            diverging = _diverging_epoch(log, start, end, fetch_offset, last_fetched_epoch)
            if diverging is not None:
                return LogReadInfo(fetch_offset, None, mark, start, end, stable, term.leader_epoch, diverging)
    if fetch_offset == end and isolation == "log_end" and log.stopped_at is None:
        # A follower that has everything, as each one does between two appends.
        if log.closed or not log.damages.is_empty:
            log_reader.check_start(log, fetch_offset)
        return LogReadInfo(fetch_offset, None, mark, start, end, stable, term.leader_epoch)
    try:
        read = log_reader.read(log, fetch_offset, max_bytes, isolation, at_least_one)
        # A follower in sync asks for what was just written, and checks it itself; what is older may have
        # rotted, and so has, perhaps, what a follower could not take. A consumer is never given that.
        if read.records is not None and (
            replica is None or fetch_offset < mark or replica.asks_again(fetch_offset)
        ):
            log_reader.check_records(log, read.records, fetch_offset)
    except LogClosed as error:
        # The replica was stopped after the look at its role.
        raise NotLeaderOrFollower(
            f"{partition.topic_partition}: stopped on broker {partition.broker_id}"
        ) from error
    return LogReadInfo(
        fetch_offset, read.records, mark, start, end, stable, term.leader_epoch, None, read.aborted
    )


def log_with_epoch(partition: Partition, current_leader_epoch: int | None, only_leader: bool) -> Term:
    """The term, which has a log. Raises FencedLeaderEpoch where the fetcher's epoch is over,
    UnknownLeaderEpoch where this broker has not heard of it yet (KIP-320), NotLeaderOrFollower."""
    term = partition.term
    if current_leader_epoch is not None and current_leader_epoch != term.leader_epoch:
        where = f"{partition.topic_partition}: leader epoch {current_leader_epoch}, here {term.leader_epoch}"
        if current_leader_epoch < term.leader_epoch:
            raise FencedLeaderEpoch(where)
        raise UnknownLeaderEpoch(where)
    if term.log is None or (only_leader and not term.leads):
        raise NotLeaderOrFollower(
            f"{partition.topic_partition}: broker {partition.broker_id} does not lead it"
        )
    return term


def fetch_offset_for_timestamp(
    partition: Partition, timestamp: int, isolation: str, current_leader_epoch: int | None
) -> TimestampOffset:
    """As Partition.fetch_offset_for_timestamp."""
    term = log_with_epoch(partition, current_leader_epoch, True)
    log = term.log
    assert log is not None
    bound = log_reader.upper_bound(log, isolation)
    if isolation != "log_end" and log.high_watermark < (term.epoch_start_offset or 0):
        raise OffsetNotAvailable(
            f"{partition.topic_partition}: its new leader does not know the high watermark yet"
        )
    if timestamp == EARLIEST_LOCAL_TIMESTAMP:
        timestamp = EARLIEST_TIMESTAMP  # all of a log is local
    if timestamp < MAX_TIMESTAMP:
        raise UnsupportedVersion(f"{partition.topic_partition}: no offset is named {timestamp}")
    if timestamp == LATEST_TIMESTAMP:
        epoch = log.epochs.epoch_for_offset(bound)
        return TimestampOffset(-1, bound, -1 if epoch is None else epoch)
    found = log.offset_for_timestamp(timestamp)
    if found is None or (found.offset >= bound and timestamp != EARLIEST_TIMESTAMP):
        return TimestampOffset(-1, -1, -1)
    return found


def _diverging_epoch(
    log: UnifiedLog, start: int, end: int, fetch_offset: int, last_fetched_epoch: int
) -> EpochEndOffset | None:
    epoch, end_offset = log.epochs.end_offset_for(last_fetched_epoch, end)
    if end_offset < 0:
        raise OffsetOutOfRange(
            f"{log.topic_partition}: leader epoch {last_fetched_epoch} of the fetch is not known here"
        )
    # Before any look at epochs: those below the log start are forgotten.
    if fetch_offset < start:
        raise OffsetOutOfRange(
            f"{log.topic_partition}: offset {fetch_offset} is below the log start {start}", where=fetch_offset
        )
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def check_follower(partition: Partition, replica_id: int, broker_epoch: int) -> Replica:
    """The follower that fetched in `broker_epoch`.

    Raises NotLeaderOrFollower where it is no replica, or has been restarted since (KIP-903).
    """
    replica = partition.replica(replica_id)
    if replica is None:
        _refuse_follower(partition, replica_id, None)
    registered = partition.brokers.get_alive_broker_epoch(replica_id)
    latest = max(replica.broker_epoch, UNKNOWN_BROKER_EPOCH if registered is None else registered)
    if UNKNOWN_BROKER_EPOCH < broker_epoch < latest:
        raise NotLeaderOrFollower(
            f"{partition.topic_partition}: a fetch of broker {replica_id} from its epoch {broker_epoch}, "
            f"which is over since {latest}"
        )
    return replica


def _refuse_follower(partition: Partition, replica_id: int, current_leader_epoch: int | None) -> NoReturn:
    where = f"{partition.topic_partition}: broker {replica_id} is none of the replicas {partition.replicas}"
    # A follower of the same leader epoch was assigned in a version that has not come here yet: it may try
    # again.
    if current_leader_epoch is not None and partition.is_leader:
        raise UnknownLeaderEpoch(where)
    raise NotLeaderOrFollower(where)
