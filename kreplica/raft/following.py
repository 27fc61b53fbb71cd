"""Following: replicates the leader's log by Fetch, truncates where logs diverge, and fetches snapshots.

A follower flushes the records it received before it fetches again, because the offset of a fetch says what is
on its disk. It truncates its log only where the leader reports a divergence, and never below the high
watermark. One request is in flight. Its answer is dropped if the epoch, the leader or the log end has changed
since it was sent.

MembershipRequests: the requests by which a follower changes its own entry in the set of voters, sent instead
of a fetch. Thread rule: the client's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.common.errors import (
    CorruptMessage,
    InvalidRequest,
    InvalidSnapshot,
    PositionOutOfRange,
    RequestTimedOut,
    StorageFull,
)
from kreplica.common.messages.quorum import (
    AddRaftVoterRequest,
    KRaftVersionFeature,
    Listener,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
)
from kreplica.common.wire import error_of, uuid_of
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import NEVER_MS, FollowerState
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.raft_messages import (
    FetchPosition,
    make_fetch_request,
    make_snapshot_request,
    offset_and_epoch_in,
    only_partition,
    standing_in,
)
from kreplica.raft.voter_set import KRAFT_VERSIONS, VoterNode

LOGGER = logging.getLogger(__name__)


class MembershipRequests:
    """Sends one follower's requests about its own vote.

    A voter whose listeners differ from those in the voters' record sends UpdateRaftVoter (KIP-853). An
    observer with controller.quorum.auto.join.enable sends AddRaftVoter to become a voter (KIP-1186). If its
    node is still a voter with a disk that is gone, RemoveRaftVoter comes first. Each is sent at most once per
    fetch timeout. So the leader answers before the change is committed: the commit may need this follower's
    fetches. A request that collides with another change of voters is repeated sooner.
    """

    def __init__(self, context: RaftContext) -> None:
        self._context = context

    def poll(self, state: FollowerState, now_ms: int) -> int:
        """Send the request that is due. Returns in how many ms to call again."""
        context = self._context
        if now_ms < state.membership_due_ms:
            return state.membership_due_ms - now_ms
        request = None if context.shutdown_until_ms is not None else self._request(state)
        if request is not None:
            if not context.requests.connection(state.leader_id).is_ready(now_ms):
                # The answer to the fetch under way brings the next step.
                return max(context.requests.back_off_ms([state.leader_id]), 1)
            context.requests.maybe_send(
                state.leader_id, lambda: request, partial(self._answered, state, request)
            )
        state.membership_due_ms = now_ms + context.config.quorum_fetch_timeout_ms
        return context.config.quorum_fetch_timeout_ms

    def _request(self, state: FollowerState) -> Any:
        """Return the request to send; None if this node's entry is as it should be."""
        context, own = self._context, self._context.membership
        if context.control.kraft_version < 1 or not own.can_be_voter:
            return None
        known = context.control.voters.voters.get(context.key.node_id)
        if known is not None and known.is_voter(context.key):
            return self._update(state) if context.own_voter_node not in (None, known) else None
        if not own.auto_join:
            return None
        return self._add() if known is None else self._remove(known)

    def _update(self, state: FollowerState) -> UpdateRaftVoterRequest:
        context = self._context
        lowest, highest = KRAFT_VERSIONS
        return UpdateRaftVoterRequest(
            cluster_id=context.cluster_id,
            current_leader_epoch=state.epoch,
            voter_id=context.key.node_id,
            voter_directory_id=uuid_of(context.key.directory_id),
            listeners=tuple(
                Listener(name=each.name, host=each.host, port=each.port)
                for each in context.membership.endpoints
            ),
            k_raft_version_feature=KRaftVersionFeature(
                min_supported_version=lowest, max_supported_version=highest
            ),
        )

    def _add(self) -> AddRaftVoterRequest:
        context = self._context
        return AddRaftVoterRequest(
            cluster_id=context.cluster_id,
            timeout=timedelta(milliseconds=context.config.quorum_request_timeout_ms),
            voter_id=context.key.node_id,
            voter_directory_id=uuid_of(context.key.directory_id),
            listeners=tuple(
                Listener(name=each.name, host=each.host, port=each.port)
                for each in context.membership.endpoints
            ),
            ack_when_committed=False,
        )

    def _remove(self, known: VoterNode) -> RemoveRaftVoterRequest:
        return RemoveRaftVoterRequest(
            cluster_id=self._context.cluster_id,
            voter_id=known.voter_key.node_id,
            voter_directory_id=uuid_of(known.voter_key.directory_id),
        )

    def _answered(self, state: FollowerState, request: Any, response: Any) -> None:
        error = None if response is None else error_of(response.error_code)
        if isinstance(error, RequestTimedOut):
            # The leader is busy with another change, such as that of a voter started at the same time. That
            # is over before the fetch timeout.
            state.membership_due_ms = self._context.now_ms() + self._context.config.fetch_wait_max_ms
        elif error is not None:
            # It is asked again as long as it is wanted.
            text = getattr(response, "error_message", None) or error
            LOGGER.info("node %d: %s: %s", self._context.key.node_id, type(request).__name__, text)


class Following:
    """Fetches from the leader and applies its answers.

    `on_commit()` is called after the high watermark moved or a snapshot replaced the log.
    """

    def __init__(self, context: RaftContext, on_commit: Callable[[], None]) -> None:
        self._context = context
        self._quorum = context.quorum
        self._on_commit = on_commit
        self._membership_requests = MembershipRequests(context)

    # ---- the step -----------------------------------------------------------------------------------------

    def poll_follower(self, state: FollowerState, now_ms: int) -> int:
        """Send the request that is due. Returns in how many ms to call again."""
        if state.has_timed_out(now_ms):
            if self._quorum.is_electable:
                if self._context.shutdown_until_ms is None:
                    self._quorum.transition_to_prospective()
                    return 0
                return NEVER_MS
            # An observer asks all nodes until one knows the next leader. It must not delay an election if
            # other nodes still consider it a voter.
            state.has_fetched = False
            return self.find_leader()
        due_ms = self._membership_requests.poll(state, now_ms)
        if state.snapshot is not None:
            wait_ms = self._fetch_snapshot(state)
        else:
            max_wait_ms = 0 if state.is_in_doubt else self._context.config.fetch_wait_max_ms
            wait_ms = self._fetch(state.leader_id, max_wait_ms)
        return min(wait_ms, due_ms, state.remaining_ms(now_ms))

    def find_leader(self) -> int:
        """Send a fetch to any voter or bootstrap server to learn the leader. Returns in how many ms to call
        again.

        The last known leader is asked too: it need not be a voter that this node's log knows.
        """
        others, leader_id = self._quorum.others(), self._quorum.leader_id
        others += self._context.membership.bootstrap
        if leader_id is not None and leader_id not in others:
            others.append(leader_id)
        if any(self._context.requests.connection(node_id).in_flight for node_id in others):
            return NEVER_MS
        asked = self._context.requests.ready_one_of(others)
        if asked is None:
            return self._context.requests.back_off_ms(others)
        return self._fetch(asked, max_wait_ms=0)

    def _position(self) -> FetchPosition:
        log_end = self._context.log_end()
        return FetchPosition(
            self._quorum.epoch, log_end.offset, log_end.epoch, self._context.log.start_offset
        )

    def _fetch(self, node_id: int, max_wait_ms: int) -> int:
        if self._context.is_flushing:
            # A fetch claims that the whole log is on disk, so it waits for the flush, which triggers the next
            # step.
            return NEVER_MS
        context, position = self._context, self._position()
        return context.requests.maybe_send(
            node_id,
            lambda: make_fetch_request(
                context.cluster_id,
                context.key,
                position,
                max_wait_ms=max_wait_ms,
                max_bytes=context.config.quorum_fetch_max_bytes,
            ),
            partial(self._fetched, node_id, position),
        )

    # ---- Fetch --------------------------------------------------------------------------------------------

    def _fetched(self, sender: int, asked: FetchPosition, response: Any) -> None:
        if response is None:
            return
        self._context.learn_endpoints(response.node_endpoints)
        state = self._accepted(sender, asked.current_epoch, response)
        if state is None or self._context.log_end()[:2] != (asked.fetch_offset, asked.last_fetched_epoch):
            return
        answer = only_partition(response)
        diverging = offset_and_epoch_in(answer.diverging_epoch)
        snapshot_id = offset_and_epoch_in(answer.snapshot_id)
        try:
            if diverging is not None:
                # The leader's high watermark counts only once the logs agree (KAFKA-14704).
                self._truncate(diverging)
            elif snapshot_id is not None:
                self._begin_snapshot(state, snapshot_id)
            else:
                self._append(state, answer.records, int(answer.high_watermark))
        except CorruptMessage as error:
            LOGGER.warning("node %d: rejected records from the leader: %s", self._context.key.node_id, error)
            self._context.requests.back_off(sender)

    def _accepted(self, sender: int, epoch: int, response: Any) -> FollowerState | None:
        """Return the follower state if the answer is from its leader and epoch and has no error."""
        answer = self._context.part_for_us(sender, response)
        if answer is None:
            return None
        standing = standing_in(answer)
        is_current = self._context.take_standing(sender, standing)
        if not is_current or standing.error_code:
            self._context.requests.back_off(sender)
            return None
        state = self._quorum.state
        if not isinstance(state, FollowerState) or state.leader_id != sender or state.epoch != epoch:
            return None
        state.note_fetched(self._context.now_ms() + self._context.config.quorum_fetch_timeout_ms)
        return state

    def _truncate(self, diverging: OffsetAndEpoch) -> None:
        end = self._context.log.truncate_to_end_offset(diverging)
        self._context.control.truncate_new_entries()
        LOGGER.info("node %d: truncated the log to offset %d", self._context.key.node_id, end)

    def _append(self, state: FollowerState, records: Any, leader_mark: int) -> None:
        log = self._context.log
        mark: Callable[[], None] = partial(self._flushed, state, leader_mark)
        if not records or len(memoryview(records)) == 0:
            self._take_mark(leader_mark)
            return
        before = log.end_offset
        try:
            log.append_as_follower(records, state.epoch)
            assert log.last_fetched_epoch <= state.epoch, (log.last_fetched_epoch, state)
        except BaseException:
            # The batches before the rejected one are kept, but the high watermark of this answer is not.
            mark = _nothing
            raise
        finally:
            if log.end_offset > before:
                self._context.control.take_appended(records)
                self._context.metrics.note_fetched(log.end_offset - before, self._context.now_ms())
                self._context.flush(mark)
            else:
                mark()

    def _flushed(self, state: FollowerState, leader_mark: int) -> None:
        if self._quorum.state is state:
            self._take_mark(leader_mark)

    def _take_mark(self, leader_mark: int) -> None:
        log = self._context.log
        offset = min(leader_mark, log.end_offset)
        if offset > log.high_watermark:
            log.update_high_watermark(offset)
            self._on_commit()

    # ---- FetchSnapshot ------------------------------------------------------------------------------------

    def _begin_snapshot(self, state: FollowerState, snapshot_id: OffsetAndEpoch) -> None:
        known = self._context.log.read_snapshot(snapshot_id)
        if known is not None:
            known.close()
            self._install(snapshot_id)
            return
        state.drop_snapshot()
        state.snapshot_id = snapshot_id
        state.snapshot = self._context.log.store_snapshot(snapshot_id)

    def _fetch_snapshot(self, state: FollowerState) -> int:
        context, snapshot, snapshot_id = self._context, state.snapshot, state.snapshot_id
        assert snapshot is not None
        assert snapshot_id is not None
        position = snapshot.size_bytes
        return context.requests.maybe_send(
            state.leader_id,
            lambda: make_snapshot_request(
                context.cluster_id,
                context.key,
                state.epoch,
                snapshot_id,
                position,
                context.config.quorum_fetch_snapshot_max_bytes,
            ),
            partial(self._snapshot_fetched, state, position),
        )

    def _snapshot_fetched(self, state: FollowerState, position: int, response: Any) -> None:
        if response is None:
            return
        if self._accepted(state.leader_id, state.epoch, response) is not state:
            if self._quorum.state is state:
                # The leader no longer has that much of the snapshot. The next fetch names another one.
                state.drop_snapshot()
            return
        if state.snapshot is None or state.snapshot.size_bytes != position:
            return
        try:
            self._take_part(state, only_partition(response), position)
        except StorageFull:
            # The partial snapshot takes up room itself, so delete it. It is fetched again later.
            state.drop_snapshot()
            raise
        except (PositionOutOfRange, InvalidSnapshot, CorruptMessage, InvalidRequest) as error:
            LOGGER.warning("node %d: rejected the leader's snapshot: %s", self._context.key.node_id, error)
            state.drop_snapshot()
            self._context.requests.back_off(state.leader_id)

    def _take_part(self, state: FollowerState, answer: Any, position: int) -> None:
        snapshot, snapshot_id = state.snapshot, state.snapshot_id
        assert snapshot is not None
        assert snapshot_id is not None
        if offset_and_epoch_in(answer.snapshot_id) != snapshot_id or answer.position != position:
            raise InvalidRequest(
                f"asked for position {position} of the snapshot {snapshot_id}; the leader sent position"
                f" {answer.position} of {offset_and_epoch_in(answer.snapshot_id)}"
            )
        data = memoryview(answer.unaligned_records)
        if not data or position + len(data) > answer.size:
            raise InvalidRequest(
                f"the leader sent {len(data)} bytes at position {position} of a {answer.size} byte snapshot"
            )
        snapshot.append(position, data)
        if snapshot.size_bytes == answer.size:
            snapshot.freeze()
            state.snapshot = state.snapshot_id = None
            self._install(snapshot_id)

    def _install(self, snapshot_id: OffsetAndEpoch) -> None:
        context = self._context
        if context.log.truncate_to_latest_snapshot():
            context.control.load_snapshot(snapshot_id)
            context.control.update()
            LOGGER.info("node %d: the log now starts at the snapshot %s", context.key.node_id, snapshot_id)
            self._on_commit()


def _nothing() -> None:
    """Do nothing after a flush."""
