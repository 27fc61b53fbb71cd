"""Mutants of the quorum: known ways to lose its data or its peace, for the invariants to catch.

Random runs of the quorum alone catch all of them. The script of its history catches each of
QUORUM_HISTORY_MUTANTS too. Thread rule: as in mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.common.errors import InvalidRequest
from kreplica.common.quorum_state import NO_NODE
from kreplica.raft.epoch_state import (
    NEVER_MS,
    LeaderState,
    ProspectiveState,
    ReplicaProgress,
    ResignedState,
    UnattachedState,
)
from kreplica.raft.fetch_requests import FetchRequests
from kreplica.raft.following import Following, MembershipRequests
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.quorum_state import FileBasedStateStore, QuorumState
from kreplica.raft.raft_config import Membership
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.voter_changes import VoterChanges
from tests.mutants.mutants import Mutant, Replacement

QUORUM_MUTANTS: dict[str, Mutant] = {}
QUORUM_HISTORY_MUTANTS: dict[str, Mutant] = {}


def _registers(table: dict[str, Mutant]) -> Callable[[Any, str], Callable[[Any], Any]]:
    def mutant(owner: Any, name: str) -> Callable[[Any], Any]:
        def register(make: Callable[[Replacement], Replacement]) -> Any:
            table[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
            return make

        return register

    return mutant


quorum_mutant = _registers(QUORUM_MUTANTS)
history_mutant = _registers(QUORUM_HISTORY_MUTANTS)


# ---- caught in random runs ------------------------------------------------------------------------------


@quorum_mutant(ResignedState, "__init__")
def announce_what_is_over(init: Replacement) -> Replacement:
    """A restarted leader announces that it leads, though it has resigned (KAFKA-17333)."""

    def claim(state: Any, *arguments: Any, **named: Any) -> None:
        init(state, *arguments, **named)
        state.leader_id = state.local_id

    return claim


@quorum_mutant(Membership, "__init__")
def let_brokers_vote(init: Replacement) -> Replacement:
    """Every added node votes and may be elected, with the role of a controller or without it."""

    def forget_roles(member: Any, **named: Any) -> None:
        init(member, **{**named, "can_be_voter": True, "is_controller": lambda _: True})

    return forget_roles


@quorum_mutant(MembershipRequests, "poll")
def ask_for_nothing(_: Replacement) -> Replacement:
    """No observer joins automatically, and no voter reports its new endpoints."""
    return lambda *_: NEVER_MS


@quorum_mutant(LeaderState, "update_high_watermark")
def count_who_is_removed(update: Replacement) -> Replacement:
    """A leader that removes itself counts itself for the high watermark (KAFKA-16530)."""

    def count(state: Any, flushed_offset: int) -> Any:
        if state.is_voter:
            return update(state, flushed_offset)
        offsets = sorted([flushed_offset, *(voter.end_offset for voter in state.voters.values())])
        offset = offsets[(len(offsets) - 1) // 2]
        if offset <= state.epoch_start_offset or offset <= (state.high_watermark or 0):
            return False
        state.high_watermark = offset
        return True

    return count


@quorum_mutant(LeaderState, "update_high_watermark")
def count_from_before_the_epoch(update: Replacement) -> Replacement:
    """A leader commits records of earlier epochs by counting their replicas (Raft, figure 8)."""

    def count(state: Any, flushed_offset: int) -> Any:
        start, state.epoch_start_offset = state.epoch_start_offset, -1
        moved = update(state, flushed_offset)
        state.epoch_start_offset = start
        return moved

    return count


@quorum_mutant(KafkaMetadataLog, "flushed_offset")
def count_the_page_cache(_: Replacement) -> Replacement:
    """What was written counts as being on disk."""
    return property(lambda log: log.end_offset)  # type: ignore[return-value]


@quorum_mutant(KafkaMetadataLog, "flush")
def flush_nothing(_: Replacement) -> Replacement:
    """No replica flushes: a fetch reports more than what is on disk."""

    def flush(_: Any) -> None:
        return None

    return flush


@quorum_mutant(FileBasedStateStore, "write")
def forget_votes(write: Replacement) -> Replacement:
    """A vote is kept in memory only, so a crash takes it back."""

    def write_leaders(store: Any, state: Any) -> None:
        if state.leader_id != NO_NODE or state.voted_id == NO_NODE:
            write(store, state)

    return write_leaders


@quorum_mutant(RaftContext, "is_up_to_date")
def elect_anybody(_: Replacement) -> Replacement:
    """A vote goes to the first candidate that asks, whatever its log lacks."""

    def is_up_to_date(_: Any, __: Any) -> bool:
        return True

    return is_up_to_date


@quorum_mutant(Following, "_truncate")
def keep_what_diverges(_: Replacement) -> Replacement:
    """A follower whose log parts from its leader's skips what it cannot join on."""

    def keep(following: Any, _: Any) -> None:
        following._take_mark(following._context.log.end_offset)

    return keep


@quorum_mutant(FetchRequests, "_note")
def count_who_diverges(note: Replacement) -> Replacement:
    """A replica is believed to have what it fetches behind, though its log is another one (KAFKA-13141)."""

    def count(requests: Any, state: Any, replica: Any, asked: Any, found: Any) -> Any:
        progress = note(requests, state, replica, asked, found)
        if progress is not None:
            progress.end_offset = int(asked.fetch_offset)
            requests._on_progress(state)
        return progress

    return count


@quorum_mutant(KafkaMetadataLog, "clean")
def clean_past_the_snapshot(_: Replacement) -> Replacement:
    """Retention takes what is committed from the log, whether a snapshot has it or not (KAFKA-14238)."""

    def clean(log: Any, _: int) -> bool:
        log.log.maybe_increment_log_start_offset(log.high_watermark)
        log.log.delete_old_segments()
        return True

    return clean


# ---- caught by scripts, too ------------------------------------------------------------------------------


@history_mutant(QuorumState, "_resigned")
def come_back_without_memory(_: Replacement) -> Replacement:
    """A leader that was restarted is Unattached, and votes again in the epoch it led (KAFKA-10661)."""

    def unattached(quorum: Any, epoch: int, __: Any) -> Any:
        return UnattachedState(epoch, deadline_ms=quorum._election_deadline())

    return unattached


@history_mutant(LeaderState, "_wanted")
def lead_nobody(_: Replacement) -> Replacement:
    """A leader that is cut off from its voters leads on for ever (KAFKA-15489)."""

    def no_nodes(_: Any) -> int:
        return 0

    return no_nodes


@history_mutant(ReplicaProgress, "note_fetch")
def refuse_who_was_wiped(note_fetch: Replacement) -> Replacement:
    """A voter whose disk was wiped is refused, since its offset goes back (KAFKA-12181)."""

    def note(progress: Any, offset: int, *others: int) -> None:
        if offset < progress.end_offset:
            raise InvalidRequest(f"a fetch at {offset}, after one at {progress.end_offset}")
        note_fetch(progress, offset, *others)

    return note


@history_mutant(KafkaMetadataLog, "truncate_to_end_offset")
def cut_what_is_committed(_: Replacement) -> Replacement:
    """A follower truncates below its high watermark if the leader says so (KAFKA-12460)."""

    def cut(log: Any, end: Any) -> Any:
        log.log.truncate_to(end.offset)
        return log.end_offset

    return cut


@history_mutant(VoterChanges, "_ready_leader")
def change_voters_too_early(ready_leader: Replacement) -> Replacement:
    """A leader changes the voters before it knows what is committed in its epoch (KAFKA-16530)."""

    def ready(changes: Any, cluster_id: Any) -> Any:
        state = changes._context.quorum.state
        return state if isinstance(state, LeaderState) else ready_leader(changes, cluster_id)

    return ready


@history_mutant(ProspectiveState, "__init__")
def ask_nobody_before(init: Replacement) -> Replacement:
    """A voter that hears of no leader begins an epoch at once, again and again (KIP-996)."""

    def won(state: Any, *arguments: Any, **named: Any) -> None:
        init(state, *arguments, **named)
        for voter in state.votes.unrecorded:
            state.votes.record(voter, True)

    return won


@history_mutant(KafkaMetadataLog, "_last_batch_of")
def end_snapshots_anywhere(last_batch_of: Replacement) -> Replacement:
    """A snapshot may end within a batch, or at any other offset (KAFKA-14618)."""

    def first_batch(log: Any, snapshot_id: Any) -> Any:
        found = next(iter(log.log.batches(log.start_offset)), None)
        return last_batch_of(log, snapshot_id) if found is None else found

    return first_batch
