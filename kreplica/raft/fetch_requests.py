"""FetchRequests: answers Fetch and FetchSnapshot as the leader of the quorum.

A fetch reports which records the replica has on disk, and that it follows this leader. If there is nothing
new for the replica, the request waits for the log end or the high watermark to move. If the replica's log has
diverged, the answer says where, or which snapshot replaces the records that are gone.

Thread rule: the client's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.common.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    KafkaStorageError,
    KreplicaError,
    NotLeaderOrFollower,
    SnapshotNotFound,
    UnknownLeaderEpoch,
)
from kreplica.common.future import Future
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import LeaderState, ReplicaProgress
from kreplica.raft.kafka_metadata_log import ValidOffsetAndEpoch, ValidOffsetAndEpochKind
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.raft_messages import key_of, make_fetch_response, make_snapshot_response
from kreplica.raft.voter_set import ReplicaKey

NO_MARK = -1


class FetchRequests:
    """The handlers of Fetch and FetchSnapshot.

    `on_progress(state)` is called when a voter has more records on disk than before.
    """

    def __init__(self, context: RaftContext, on_progress: Callable[[LeaderState], None]) -> None:
        self._context = context
        self._on_progress = on_progress

    def handle_fetch(self, request: Any, asked: Any) -> Any:
        """Handle Fetch (1). Returns the answer or a future of it."""
        replica = key_of(request.replica_state.replica_id, asked.replica_directory_id)
        try:
            if min(asked.fetch_offset, asked.last_fetched_epoch, asked.current_leader_epoch) < 0:
                raise InvalidRequest(
                    f"invalid fetch at offset {asked.fetch_offset} in epoch {asked.current_leader_epoch}"
                )
            state = self._leader_for(replica, int(asked.current_leader_epoch))
            offset, epoch = int(asked.fetch_offset), int(asked.last_fetched_epoch)
            found = self._context.log.validate_offset_and_epoch(offset, epoch)
            progress = self._note(state, replica, asked, found)
            response = self._read(state, progress, asked, found)
        except KafkaStorageError:
            raise
        except KreplicaError as error:
            standing = self._context.standing(error)
            leader_id = standing.leader_id
            address = None if leader_id is None else self._context.address_of(leader_id)
            return make_fetch_response(standing, leader_address=address)
        if response is not None:
            return response
        wait_ms = int(request.max_wait.total_seconds() * 1000)
        wait_ms = min(max(wait_ms, 0), self._context.config.quorum_fetch_timeout_ms)
        if wait_ms == 0:
            return self._empty(state, progress)
        answer: Future[Any] = Future()
        waiting = self._context.fetches.await_threshold(int(asked.fetch_offset), wait_ms)
        waiting.add_done_callback(lambda _: answer.set_result(self._after_wait(state, progress, asked)))
        return answer

    def _leader_for(self, replica: ReplicaKey, epoch: int) -> LeaderState:
        """Return the leader's state if this node leads `epoch`. Raises the error that Kafka answers if it
        does not.
        """
        quorum = self._context.quorum
        if replica.node_id == self._context.key.node_id:
            raise InvalidRequest(
                f"a fetch from node {replica.node_id}, which is this node's own id: give each node its own id"
            )
        if epoch < quorum.epoch:
            raise FencedLeaderEpoch(f"epoch {epoch} is over; this node is in epoch {quorum.epoch}")
        if epoch > quorum.epoch:
            raise UnknownLeaderEpoch(f"epoch {epoch} is unknown; this node is in epoch {quorum.epoch}")
        if not isinstance(quorum.state, LeaderState):
            raise NotLeaderOrFollower(f"node {self._context.key.node_id} does not lead epoch {epoch}")
        return quorum.state

    def _note(
        self, state: LeaderState, replica: ReplicaKey, asked: Any, found: ValidOffsetAndEpoch
    ) -> ReplicaProgress | None:
        """Record what the fetch says that the replica has. Returns None if the request names no replica."""
        if replica.node_id < 0:
            return None
        context = self._context
        now_ms, date_ms = context.now_ms(), context.clock.time_ms()
        progress = state.progress_of(replica)
        state.note_contact(replica, now_ms)
        context.requests.note_contact(replica.node_id)
        progress.begin_due_ms = now_ms + context.config.begin_quorum_epoch_timeout_ms
        if found.kind is ValidOffsetAndEpochKind.VALID:
            progress.note_fetch(int(asked.fetch_offset), context.log.end_offset, now_ms, date_ms)
            self._on_progress(state)
        else:
            # The replica's log has diverged at that offset, so the offset must not count (KAFKA-13141).
            progress.note_contact(now_ms, date_ms)
        return progress

    def _read(
        self, state: LeaderState, progress: ReplicaProgress | None, asked: Any, found: ValidOffsetAndEpoch
    ) -> Any:
        """Return the answer; None if there is nothing new. `found`: how the replica's log compares to this
        one.
        """
        context, log, offset = self._context, self._context.log, int(asked.fetch_offset)
        mark = self._mark(state)
        if found.kind is not ValidOffsetAndEpochKind.VALID:
            is_diverging = found.kind is ValidOffsetAndEpochKind.DIVERGING
            return make_fetch_response(
                context.standing(),
                high_watermark=mark,
                log_start_offset=log.start_offset,
                diverging=found.offset_and_epoch if is_diverging else None,
                snapshot_id=None if is_diverging else found.offset_and_epoch,
            )
        max_bytes = min(max(int(asked.partition_max_bytes), 0), context.config.quorum_fetch_max_bytes)
        records = None
        if offset < log.end_offset:
            records = log.read(offset, max_bytes, committed_only=progress is None).records
        if records is None and (progress is None or mark <= progress.sent_high_watermark):
            return None
        if progress is not None:
            progress.sent_high_watermark = mark
        return make_fetch_response(
            context.standing(),
            high_watermark=mark,
            log_start_offset=log.start_offset,
            records=b"" if records is None else records,
        )

    def _after_wait(self, state: LeaderState, progress: ReplicaProgress | None, asked: Any) -> Any:
        if self._context.quorum.state is not state:
            error = NotLeaderOrFollower(f"node {self._context.key.node_id} is no longer the leader")
            return make_fetch_response(self._context.standing(error))
        try:
            offset, epoch = int(asked.fetch_offset), int(asked.last_fetched_epoch)
            found = self._context.log.validate_offset_and_epoch(offset, epoch)
            return self._read(state, progress, asked, found) or self._empty(state, progress)
        except KreplicaError as error:
            # This also covers the errors of a failing disk: its next flush stops this node.
            return make_fetch_response(self._context.standing(error))

    def _empty(self, state: LeaderState, progress: ReplicaProgress | None) -> Any:
        mark = self._mark(state)
        if progress is not None:
            progress.sent_high_watermark = mark
        start = self._context.log.start_offset
        return make_fetch_response(self._context.standing(), high_watermark=mark, log_start_offset=start)

    @staticmethod
    def _mark(state: LeaderState) -> int:
        return NO_MARK if state.high_watermark is None else state.high_watermark

    # ---- FetchSnapshot ------------------------------------------------------------------------------------

    def handle_fetch_snapshot(self, request: Any, asked: Any) -> Any:
        """Handle FetchSnapshot (59): return a range of bytes of a snapshot."""
        context = self._context
        replica = key_of(request.replica_id, asked.replica_directory_id)
        snapshot_id = OffsetAndEpoch(int(asked.snapshot_id.end_offset), int(asked.snapshot_id.epoch))
        try:
            state = self._leader_for(replica, int(asked.current_leader_epoch))
            if replica.node_id >= 0:
                now_ms = context.now_ms()
                state.note_contact(replica, now_ms)
                state.progress_of(replica).note_contact(now_ms, context.clock.time_ms())
            return self._bytes_of(snapshot_id, int(asked.position), int(request.max_bytes))
        except KafkaStorageError:
            raise
        except KreplicaError as error:
            return make_snapshot_response(context.standing(error), snapshot_id)

    def _bytes_of(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> Any:
        if snapshot_id.offset < 0 or snapshot_id.epoch < 0 or max_bytes < 1:
            raise InvalidRequest(f"invalid request for {max_bytes} bytes of the snapshot {snapshot_id}")
        snapshot = self._context.log.read_snapshot(snapshot_id)
        if snapshot is None:
            raise SnapshotNotFound(f"the snapshot {snapshot_id} does not exist")
        most = min(max_bytes, self._context.config.quorum_fetch_snapshot_max_bytes)
        try:
            data, size = snapshot.read(position, most), snapshot.size_bytes
        finally:
            snapshot.close()
        return make_snapshot_response(
            self._context.standing(), snapshot_id, size=size, position=position, data=data
        )
