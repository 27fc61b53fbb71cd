"""Leadership: the work of an epoch's leader: append, advance the high watermark, announce itself, resign.

A batch is sent to waiting followers before the leader flushes its own disk, so that both happen at the same
time. The leader counts its own copy only after the flush: records that a power failure could take never
count. Thread rule: the client's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.errors import OffsetsOutOfOrder, StorageFull
from kreplica.metadata.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    LeaderChangeMessage,
    QuorumVoter,
)
from kreplica.raft.batch_accumulator import BatchAccumulator, CompletedBatch
from kreplica.raft.epoch_state import NEVER_MS, LeaderState
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.raft_messages import make_begin_request, standing_in
from kreplica.raft.voter_set import BEFORE_THE_LOG, VoterSet


class Leadership:
    """The epochs in which one member leads.

    `on_commit()`: called when the high watermark has moved. The client calls `send_high_watermark` soon
    after.
    """

    def __init__(self, context: RaftContext, on_commit: Callable[[], None]) -> None:
        self._context = context
        self._quorum = context.quorum
        self._on_commit = on_commit
        # Whether the high watermark has moved since it was last sent to the waiting followers.
        self._is_mark_unsent = False

    # ---- start of an epoch --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to lead the epoch that this candidate was elected in, and append its first control
        records.
        """
        context, log = self._context, self._context.log
        start, epoch = log.end_offset, self._quorum.epoch
        # A voter grants its vote only to a log that it knows to be older than the epoch.
        assert log.last_fetched_epoch < epoch, (log.last_fetched_epoch, epoch)
        accumulator = BatchAccumulator(
            epoch,
            start,
            clock=context.clock,
            linger_ms=context.config.quorum_append_linger_ms,
            max_batch_size_bytes=context.config.quorum_max_batch_size_bytes,
        )
        # Write the state first: once another node knows that this one leads, it must hold after a crash.
        state = self._quorum.transition_to_leader(start, accumulator)
        try:
            log.begin_epoch(epoch)
        except StorageFull as error:
            self._give_up(state, error)
            return
        accumulator.append_control_messages(self._first_messages(state))

    def _first_messages(self, state: LeaderState) -> list[ControlMessage]:
        control = self._context.control
        version = 1 if control.kraft_version > 0 else 0
        voters = control.voters

        def named(node_id: int) -> QuorumVoter:
            if version == 0:
                return QuorumVoter(voter_id=node_id)
            key = self._context.voter_key(node_id)
            return QuorumVoter(voter_id=node_id, voter_directory_id=key.directory_id)

        messages: list[ControlMessage] = [
            LeaderChangeMessage(
                version=version,
                leader_id=state.leader_id,
                voters=tuple(named(node_id) for node_id in sorted(state.voters)),
                granting_voters=tuple(named(node_id) for node_id in sorted(state.granting_voters)),
            )
        ]
        is_first = control.voters_offset == BEFORE_THE_LOG
        if version and is_first:
            # The voters that the cluster was formatted with are added to the log (KIP-853).
            messages.append(KRaftVersionRecord(k_raft_version=1))
        current = self._with_own_listeners(voters)
        if version and (is_first or current != voters):
            messages.append(current.to_voters_record())
        return messages

    def _with_own_listeners(self, voters: VoterSet) -> VoterSet:
        """Return the voters with the leader's own current listeners, which no other voter can report to
        it.
        """
        own = self._context.own_voter_node
        return voters if own is None else voters.update_voter(own) or voters

    # ---- the step -----------------------------------------------------------------------------------------

    def poll_leader(self, state: LeaderState, now_ms: int) -> int:
        """Do what is due. Returns in how many ms to call again."""
        if (
            state.is_asked_to_resign
            or self._context.shutdown_until_ms is not None
            or state.has_timed_out(now_ms)
            or self._is_removed(state)
        ):
            # The followers get the last high watermark first. It may cover the record that removed this
            # leader.
            self.send_high_watermark()
            self._quorum.transition_to_resigned(state.successors())
            return 0
        state.forget_observers(now_ms)
        append_ms = self._append(state)
        if self._quorum.state is not state:
            return 0
        begin_ms = self._announce(state, now_ms)
        return min(append_ms, begin_ms, state.remaining_ms(now_ms))

    def _is_removed(self, state: LeaderState) -> bool:
        # A removed leader keeps leading until its removal is committed, but does not count its own copy.
        offset = self._context.control.voters_offset
        return not state.is_voter and state.high_watermark is not None and offset < state.high_watermark

    # ---- appends ------------------------------------------------------------------------------------------

    def _append(self, state: LeaderState) -> int:
        context, log = self._context, self._context.log
        if context.is_flushing:
            # Records that are scheduled meanwhile share the next flush.
            return NEVER_MS
        is_in_flight = log.end_offset > (state.high_watermark or 0)
        wait_ms = state.accumulator.time_until_drain_ms(in_flight=is_in_flight)
        if wait_ms is None:
            return NEVER_MS
        if wait_ms > 0:
            return wait_ms
        batches, refused = self._append_batches(state)
        if any(batch.control_records for batch in batches):
            self._update_voters(state)
        elif batches:
            context.control.pass_over(batches[0].base_offset, log.end_offset)
        context.fetches.maybe_complete(log.end_offset)
        if refused is not None:
            self._give_up(state, refused)
        context.flush(partial(self._flushed, state))
        # Call again at once if records were scheduled meanwhile, if the disk is full, or if this append has
        # committed the leader's removal.
        is_over = refused is not None or self._is_removed(state)
        return 0 if is_over or not state.accumulator.is_empty else NEVER_MS

    def _append_batches(self, state: LeaderState) -> tuple[list[CompletedBatch], StorageFull | None]:
        """Append the waiting batches. Returns those that were appended, and the error if the disk was
        full.
        """
        appended: list[CompletedBatch] = []
        for batch in state.accumulator.drain():
            try:
                self._append_batch(batch)
            except StorageFull as error:
                return appended, error
            appended.append(batch)
            state.appended.append(batch)
        self._context.full_disk.took_an_append()
        return appended, None

    def _give_up(self, state: LeaderState, error: StorageFull) -> None:
        """Resign because the disk is full. Another voter may lead; this one waits before it tries again."""
        full_disk = self._context.full_disk
        full_disk.refused(error)
        self._quorum.transition_to_resigned(state.successors())
        self._quorum.state.postpone(full_disk.gave_up_an_epoch())

    def _flushed(self, state: LeaderState) -> None:
        if self._quorum.state is state:
            self.update_high_watermark(state)

    def _append_batch(self, batch: CompletedBatch) -> None:
        context = self._context
        info = context.log.append_as_leader(batch.data, batch.epoch)
        if info.base_offset != batch.base_offset:
            # Callers already have these offsets, so another program must have written to the log.
            raise OffsetsOutOfOrder(
                f"the batch assigned to offset {batch.base_offset} was appended at {info.base_offset}:"
                " another program writes to the metadata log"
            )
        count = batch.last_offset - batch.base_offset + 1
        context.metrics.note_append(batch.last_offset + 1, count, context.now_ms())

    def _update_voters(self, state: LeaderState) -> None:
        control = self._context.control
        before = control.voters_offset
        control.update()
        if control.voters_offset != before and control.voters is not None:
            state.update_voters(control.voters)
            state.restart_check_quorum(self._context.now_ms())

    def update_high_watermark(self, state: LeaderState) -> None:
        """Advance the high watermark to what a majority has on disk."""
        context, log = self._context, self._context.log
        if state.update_high_watermark(log.flushed_offset):
            offset = state.high_watermark or 0
            log.update_high_watermark(offset)
            context.appends.maybe_complete(offset)
            self._is_mark_unsent = True
            self._on_commit()

    def send_high_watermark(self) -> None:
        """Answer the fetches that wait: the high watermark has moved, without new records."""
        context, state = self._context, self._quorum.state
        is_due, self._is_mark_unsent = self._is_mark_unsent, False
        if not is_due or not isinstance(state, LeaderState):
            return
        offset = state.high_watermark or 0
        context.metrics.note_commit(offset, context.now_ms())
        context.fetches.complete_all(offset)

    # ---- announcing the leader ----------------------------------------------------------------------------

    def _announce(self, state: LeaderState, now_ms: int) -> int:
        """Send BeginQuorumEpoch to the voters that do not fetch. Returns in how many ms to call again."""
        wait_ms = NEVER_MS
        for node_id in self._quorum.others():
            voter = state.voters.get(node_id)
            if voter is None:
                continue
            if now_ms >= voter.begin_due_ms:
                self._context.requests.maybe_send(
                    node_id,
                    partial(self._begin_request, state, node_id),
                    partial(self._begin_answered, state, node_id),
                )
                backoff_ms = self._context.requests.back_off_ms([node_id])
                if backoff_ms < NEVER_MS:
                    voter.begin_due_ms = now_ms + backoff_ms
                else:
                    voter.begin_due_ms = now_ms + self._context.config.begin_quorum_epoch_timeout_ms
            wait_ms = min(wait_ms, voter.begin_due_ms - now_ms)
        return wait_ms

    def _begin_request(self, state: LeaderState, node_id: int) -> Any:
        context = self._context
        voter = context.voter_key(node_id)
        endpoints = context.membership.endpoints
        return make_begin_request(context.cluster_id, voter, state.leader_id, state.epoch, endpoints)

    def _begin_answered(self, state: LeaderState, node_id: int, response: Any) -> None:
        is_known = False
        answer = self._context.part_for_us(node_id, response)
        if answer is not None:
            standing = standing_in(answer)
            self._context.take_standing(node_id, standing)
            is_known = not standing.error_code
        voter = state.voters.get(node_id)
        if voter is None:
            return
        if is_known:
            voter.has_acknowledged = True
        elif not voter.has_acknowledged:
            # Send it again as soon as the backoff allows.
            self._context.requests.back_off(node_id)
            voter.begin_due_ms = 0
