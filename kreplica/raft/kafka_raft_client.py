"""KafkaRaftClient: one member of the metadata quorum, a voter or an observer (KIP-595, 853, 996).

All work is done in steps of one Loop. Requests and answers are posted to it. After each task the client does
what its state requires (`poll`) and sets an alarm for the next step. A step waits for nothing but the disk.
State that must survive a crash is on disk before it is answered: the election before a vote is granted,
records before they are counted. A full disk is retried (`full_disk`). Any unexpected error, a failing disk,
or an order to truncate committed records stops the client: it calls `on_fatal` and answers nothing after
that.

Thread rule: any thread may call `handle_inbound`, `schedule_append`, `resign`, `shutdown`, `connection_lost`
and the properties. Everything else runs in the loop, and so do the calls to listeners.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kreplica.common.errors import (
    BrokerNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    KreplicaError,
    NotLeader,
    StorageFull,
    UnexpectedEpoch,
    UnsupportedVersion,
)
from kreplica.common.future import Future, failed, pass_on, resolved
from kreplica.common.messages.data import FetchRequest
from kreplica.common.messages.quorum import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Cancellable, Clock, Disk, Loop, Random, Transport, monotonic_ms
from kreplica.common.types import Uuid
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.batch_accumulator import BatchAccumulator
from kreplica.raft.control_record_state_machine import KRaftControlRecordStateMachine
from kreplica.raft.elections import Elections
from kreplica.raft.epoch_state import (
    NEVER_MS,
    CandidateState,
    EpochState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from kreplica.raft.fetch_requests import FetchRequests
from kreplica.raft.following import Following
from kreplica.raft.full_disk import FullDisk
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.kafka_raft_metrics import KafkaRaftMetrics
from kreplica.raft.leadership import Leadership
from kreplica.raft.quorum_description import describe_quorum, gauges, texts
from kreplica.raft.quorum_state import FileBasedStateStore, QuorumState
from kreplica.raft.raft_config import Membership, RaftConfig
from kreplica.raft.raft_context import EpochBudget, RaftContext
from kreplica.raft.raft_listener import LeaderAndEpoch, ListenerContext, RaftListener
from kreplica.raft.raft_messages import only_partition, top_level_error
from kreplica.raft.request_manager import RequestManager
from kreplica.raft.snapshots import RecordsSnapshotWriter
from kreplica.raft.threshold_purgatory import ThresholdPurgatory
from kreplica.raft.voter_changes import VoterChanges
from kreplica.raft.voter_set import ReplicaKey, VoterSet

LOGGER = logging.getLogger(__name__)
# The most steps in a row that the client takes before other tasks of the loop run.
MOST_TURNS = 16


class KafkaRaftClient:
    """One member of the quorum.

    `voters`: the configured voters, used while the log names none. `on_fatal(error)` is called once, in the
    loop, when the client has to stop. `disk`: flushes the log; without it the loop does. `membership`: which
    roles the node may have in the quorum.
    """

    def __init__(
        self,
        config: RaftConfig,
        *,
        node_id: int,
        directory_id: Uuid,
        cluster_id: str,
        voters: VoterSet | None,
        log: KafkaMetadataLog,
        state_store: FileBasedStateStore,
        clock: Clock,
        random: Random,
        transport: Transport,
        loop: Loop,
        metrics: MetricRegistry,
        on_fatal: Callable[[BaseException], None],
        disk: Disk | None = None,
        membership: Membership | None = None,
    ) -> None:
        self.node_id = node_id
        self.config = config
        self._clock = clock
        self._loop = loop
        self._on_fatal = on_fatal
        self._log = log
        self._control = KRaftControlRecordStateMachine(log, voters)
        key = ReplicaKey(node_id, directory_id)
        own = membership or Membership()
        self._quorum = QuorumState(
            key,
            cluster_id,
            state_store,
            config,
            voters=lambda: self._control.voters,
            kraft_version=lambda: self._control.kraft_version,
            may_be_elected=lambda: own.can_be_voter and self._control.may_be_elected(key),
            clock=clock,
            random=random,
            on_change=self._state_changed,
            about_to_wait=loop.about_to_wait,
        )
        self._context = RaftContext(
            config=config,
            key=key,
            membership=own,
            cluster_id=cluster_id,
            log=log,
            control=self._control,
            quorum=self._quorum,
            requests=RequestManager(transport, config, clock, random, self._post),
            clock=clock,
            random=random,
            metrics=KafkaRaftMetrics(
                metrics,
                gauges(lambda: self._context, lambda: self.high_watermark),
                texts(lambda: self._context),
                clock,
            ),
            full_disk=FullDisk(node_id, log, config, lambda: monotonic_ms(clock)),
            fetches=ThresholdPurgatory("a fetch", clock),
            appends=ThresholdPurgatory("an append", clock),
            epochs=EpochBudget(config.quorum_election_timeout_ms, monotonic_ms(clock)),
            about_to_wait=loop.about_to_wait,
            post=self._post,
            disk=disk,
        )
        self._leadership = Leadership(self._context, self._high_watermark_moved)
        self._following = Following(self._context, self._update_listeners)
        self._elections = Elections(self._context, self._leadership.begin, self._following.find_leader)
        self._fetch_requests = FetchRequests(self._context, self._leadership.update_high_watermark)
        self._voter_changes = VoterChanges(self._context)
        self._handlers: dict[type[Any], Callable[[Any, Any], Any]] = {
            VoteRequest: self._elections.handle_vote,
            BeginQuorumEpochRequest: self._elections.handle_begin,
            EndQuorumEpochRequest: self._elections.handle_end,
            FetchRequest: self._fetch_requests.handle_fetch,
            FetchSnapshotRequest: self._fetch_requests.handle_fetch_snapshot,
        }
        self._listeners: list[ListenerContext] = []
        self._commit_watchers: list[Callable[[int], None]] = []
        # Whether a step that updates the listeners is queued.
        self._is_update_queued = False
        # The state that the listeners were last updated to, if all of them have reached the high watermark.
        self._listeners_seen: tuple[object, ...] | None = None
        self._shutdown: Future[None] | None = None
        self._is_leaving = False
        self._alarm: Cancellable | None = None
        self._alarm_ms = self._due_ms = NEVER_MS
        self._clean_ms = 0
        # The accumulator of the epoch that this node leads: any thread reads it, only the loop sets it.
        self._accumulator: BatchAccumulator | None = None
        # Whether a step that appends the scheduled records is queued.
        self._is_append_queued = False
        self._is_initialized = False
        self._closed = False

    # ---- properties: any thread ---------------------------------------------------------------------------

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The current epoch and its leader, as far as this node knows."""
        state = self._quorum.state
        return LeaderAndEpoch(state.leader_id, state.epoch)

    @property
    def is_cut_off(self) -> bool:
        """Whether too few voters seem to run: with this one, they are no majority.

        No leader can be elected then, and none can commit. It follows from this node's own requests, so a
        follower, which sends them to its leader alone, notices it only when it has lost the leader.
        """
        others = self._quorum.others()
        running = sum(not self._context.requests.seems_stopped(voter) for voter in others)
        own = int(self._quorum.is_voter)
        return bool(others) and (not running or running + own <= (len(others) + own) // 2)

    @property
    def high_watermark(self) -> int | None:
        """All records below this offset are committed; None if a new leader does not know it yet, or nothing
        is.
        """
        state = self._quorum.state
        if isinstance(state, LeaderState):
            return state.high_watermark
        return self._log.high_watermark or None

    @property
    def voters(self) -> VoterSet:
        """The current voters according to this node's log."""
        return self._control.voters

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return the address of a node of the quorum; see RaftContext.address_of."""
        return self._context.address_of(node_id)

    @property
    def voters_offset(self) -> int:
        """Base offset of the batch that holds the current set of voters; -1 if it is the configured set."""
        return self._control.voters_offset

    @property
    def quorum(self) -> QuorumState:
        """This member's state, for inspection."""
        return self._quorum

    @property
    def log(self) -> KafkaMetadataLog:
        """The metadata log. Only this client writes to it."""
        return self._log

    # ---- the owner's calls --------------------------------------------------------------------------------

    def register(self, listener: RaftListener, *, next_offset: int = 0) -> None:
        """Pass the committed log from `next_offset` on to `listener`, which has all records below it.

        If the log starts later, or if `next_offset` is 0 and there is a snapshot, the listener gets that
        first.
        """
        self._post(partial(self._listeners.append, ListenerContext(listener, next_offset)))

    def watch_commits(self, watcher: Callable[[int], None]) -> None:
        """Call `watcher(offset)` in the loop as soon as this leader has committed all records below `offset`.

        This happens before the listeners replay them, so that callers that wait for the commit need not wait
        for the replay. The watcher must only copy the offset and post.
        """
        self._commit_watchers.append(watcher)

    def initialize(self) -> None:
        """Load the state on disk and join the quorum.

        Raises InvalidFile and UnsupportedVersion if quorum-state cannot be read, InconsistentClusterId and
        InconsistentVoterSet if it belongs to a different quorum, InvalidConfig if no voters are known, and
        the log's errors. Nothing on disk is changed then.
        """
        self._control.initialize()
        if self._log.flushed_offset < self._log.end_offset:
            # Records of an earlier run may only be in the page cache, and a fetch claims that they are on
            # disk.
            self._log.flush()
        self._quorum.initialize(self._log.last_fetched_epoch)
        self._clean_ms = self._context.now_ms() + self.config.metadata_log_cleanup_interval_ms
        self._is_initialized = True
        self._post(_nothing)

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets. On a leader, scheduled records are counted."""
        accumulator = self._accumulator
        return self._log.end_offset if accumulator is None else accumulator.next_offset

    def schedule_append(
        self,
        epoch: int,
        records: Sequence[ApiMessageAndVersion[MetadataRecord]],
        *,
        expected_base_offset: int | None = None,
        is_atomic: bool = True,
    ) -> int:
        """Append the records atomically if this node leads `epoch`. Returns the offset of the last one.

        If not `is_atomic`, more records than fit a batch are allowed, and only the first part of them may be
        committed. `expected_base_offset`: append nothing if the first record would get a different offset,
        because a record of the quorum itself came first.

        The records are committed when a listener gets them. They are lost if the listener is notified of
        another leader first. Raises NotLeader, UnexpectedEpoch, and the errors of BatchAccumulator.append.
        """
        accumulator = self._accumulator
        if accumulator is None:
            if epoch > self._quorum.epoch:
                raise UnexpectedEpoch(
                    f"epoch {epoch} has not begun; this node is in epoch {self._quorum.epoch}"
                )
            raise NotLeader(f"node {self.node_id} does not lead epoch {epoch}")
        offset = accumulator.append(
            epoch, records, expected_base_offset=expected_base_offset, is_atomic=is_atomic
        )
        if not self._is_append_queued:
            # One step appends everything scheduled before it. One step per record would keep a leader with a
            # slow disk from reading its voters' messages in time.
            self._is_append_queued = True
            self._post(self._append_scheduled)
        return offset

    def _append_scheduled(self) -> None:
        # The step that follows this task appends. Records that are scheduled from now on queue another one.
        self._is_append_queued = False

    def create_snapshot(self, snapshot_id: OffsetAndEpoch) -> RecordsSnapshotWriter:
        """Start a snapshot of all records below `snapshot_id.offset`. Loop only. Raises IllegalSnapshotId."""
        return self._log.create_new_snapshot(
            snapshot_id,
            voters=self._control.voters_at(snapshot_id.offset),
            kraft_version=self._control.kraft_version_at(snapshot_id.offset),
        )

    def resign(self, epoch: int) -> None:
        """Give up the leadership of `epoch`, if this node has it."""
        self._post(partial(self._ask_to_resign, epoch))

    def _ask_to_resign(self, epoch: int) -> None:
        state = self._quorum.state
        if isinstance(state, LeaderState) and state.epoch == epoch:
            state.is_asked_to_resign = True

    def connection_lost(self, node_id: int) -> None:
        """Note that the connection to a node was closed.

        If it was the leader, it may have failed. The next fetch or a pre-vote finds out. A leader that leaves
        sends the other node a request, to see whether it still runs.
        """
        self._post(partial(self._note_lost_connection, node_id))

    def _note_lost_connection(self, node_id: int) -> None:
        state = self._quorum.state
        if self._is_leaving and isinstance(state, LeaderState) and node_id in state.voters:
            state.voters[node_id].has_acknowledged = False
            state.voters[node_id].begin_due_ms = 0
        elif self._is_leaving and isinstance(state, ResignedState) and node_id in self._quorum.others():
            state.unacknowledged.add(node_id)
        elif isinstance(state, FollowerState) and state.leader_id == node_id:
            # Leave time for one more fetch. The random part keeps voters from competing for the same votes.
            wait_ms = self._context.random.randrange(self.config.quorum_election_timeout_ms // 2 + 1)
            state.is_in_doubt = True
            state.expire_by(self._context.now_ms() + self.config.quorum_retry_backoff_ms + wait_ms)

    def prepare_shutdown(self) -> None:
        """Note from now on which voters stop, too; `shutdown` follows."""
        self._is_leaving = True

    def shutdown(self, timeout_ms: int) -> Future[None]:
        """Leave the quorum. A leader hands over and waits up to `timeout_ms` until another node leads, or
        until it is cut off.

        The future is done when the client is closed.
        """
        done: Future[None] = Future()
        self._loop.post(partial(self._guarded, partial(self._begin_shutdown, timeout_ms, done)))
        return done

    def _begin_shutdown(self, timeout_ms: int, done: Future[None]) -> None:
        if self._closed:
            done.set_result(None)
        elif self._shutdown is None:
            self._shutdown = done
            self._is_leaving = True
            self._context.shutdown_until_ms = self._context.now_ms() + timeout_ms
            for listener in self._listeners:
                listener.listener.begin_shutdown()
        else:
            self._shutdown.add_done_callback(lambda _: done.set_result(None))

    def close(self) -> None:
        """Stop at once: do nothing more and answer no request. The owner still has to close the log and
        store.
        """
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._accumulator is not None:
            self._accumulator.close()
            self._accumulator = None
        self._end_waits(BrokerNotAvailable(f"node {self.node_id} is closed"))
        if self._shutdown is not None and not self._shutdown.done():
            self._shutdown.set_result(None)

    # ---- requests -----------------------------------------------------------------------------------------

    def handle_inbound(self, request: Any) -> Future[Any]:
        """Answer a request of the quorum. The future fails with UnsupportedVersion for any other request."""
        answer: Future[Any] = Future()
        self._loop.post(partial(self._guarded, partial(self._take_request, request, answer)))
        return answer

    def _take_request(self, request: Any, answer: Future[Any]) -> None:
        if self._closed or not self._is_initialized:
            answer.set_exception(BrokerNotAvailable(f"node {self.node_id} has stopped or is still starting"))
            return
        self._answer(request).add_done_callback(partial(pass_on, answer))

    def _answer(self, request: Any) -> Future[Any]:
        kind = type(request)
        if kind is DescribeQuorumRequest:
            return resolved(describe_quorum(self._context, request))
        if kind is AddRaftVoterRequest:
            return self._voter_changes.handle_add(request)
        if kind is RemoveRaftVoterRequest:
            return self._voter_changes.handle_remove(request)
        if kind is UpdateRaftVoterRequest:
            return self._voter_changes.handle_update(request)
        handler = self._handlers.get(kind)
        if handler is None:
            return failed(UnsupportedVersion(f"no handler for {kind.__name__}"))
        try:
            if request.cluster_id is None:
                raise InvalidRequest(
                    f"{kind.__name__} without a cluster id; set it to {self._context.cluster_id}"
                )
            if request.cluster_id != self._context.cluster_id:
                raise InconsistentClusterId(
                    f"the request is for cluster {request.cluster_id}, but this node is in"
                    f" {self._context.cluster_id}"
                )
            partition = only_partition(request)
        except KreplicaError as error:
            return resolved(top_level_error(request, error.code))
        try:
            made = handler(request, partition)
        except StorageFull as error:
            self._context.full_disk.refused(error)
            return resolved(top_level_error(request, error.code))
        return made if isinstance(made, Future) else resolved(made)

    # ---- the loop -----------------------------------------------------------------------------------------

    def _post(self, task: Callable[[], None]) -> None:
        """Run a task in the loop and then take a step."""
        self._loop.post(partial(self._guarded, task))

    def _guarded(self, task: Callable[[], None]) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            self._note_stall()
            try:
                task()
            except StorageFull as error:
                self._context.full_disk.refused(error)
            self._step()
        except Exception as error:
            # The owner logs the error when `on_fatal` is called.
            LOGGER.debug("node %d: the quorum's client cannot go on", self.node_id, exc_info=True)
            self.close()
            self._on_fatal(error)
        finally:
            self._context.metrics.note_busy(began_ns)

    def _note_stall(self) -> None:
        """Extend the timers if this step is late: while the node was stalled, no message could reach it."""
        late_ms = self._context.now_ms() - self._due_ms
        if late_ms > self.config.quorum_fetch_timeout_ms // 8:
            self._quorum.state.postpone(late_ms)
            self._due_ms = NEVER_MS

    def _step(self) -> None:
        if self._closed or not self._is_initialized:
            return
        wait_ms = self.poll()
        if self._closed or self._is_update_queued:
            return
        self._due_ms = due_ms = self._context.now_ms() + wait_ms
        if self._alarm is not None:
            if self._alarm_ms <= due_ms:
                # Each fetch delays the due time a little. An alarm that rings early is cheaper than a new
                # one.
                return
            self._alarm.cancel()
            self._alarm = None
        if wait_ms < NEVER_MS:
            self._alarm_ms = due_ms
            self._alarm = self._loop.post_later(partial(self._guarded, self._alarm_rang), wait_ms)

    def _alarm_rang(self) -> None:
        self._alarm = None

    def poll(self) -> int:
        """Do what is due. Returns in how many ms to call again. Loop only; the client calls it after each
        task.
        """
        try:
            for _ in range(MOST_TURNS):
                wait_ms = self._poll_state(self._quorum.state, self._context.now_ms())
                if wait_ms > 0:
                    break
        except StorageFull as error:
            self._context.full_disk.refused(error)
            wait_ms = self._context.full_disk.retry_ms
        if self._is_update_queued:
            # The callers that wait for the commit come first; the next step does the rest.
            return 0
        self._update_listeners()
        now_ms = self._context.now_ms()
        for wait in (
            self._voter_changes.poll(now_ms),
            self._context.fetches.expire(),
            self._context.appends.expire(),
            self._clean(now_ms),
            self._end_shutdown(now_ms),
        ):
            wait_ms = wait_ms if wait is None else min(wait_ms, wait)
        return max(wait_ms, 0)

    def _poll_state(self, state: EpochState, now_ms: int) -> int:
        if isinstance(state, LeaderState):
            return self._leadership.poll_leader(state, now_ms)
        if isinstance(state, FollowerState):
            return self._following.poll_follower(state, now_ms)
        if isinstance(state, CandidateState):
            return self._elections.poll_candidate(state, now_ms)
        if isinstance(state, ProspectiveState):
            return self._elections.poll_prospective(state, now_ms)
        if isinstance(state, ResignedState):
            return self._elections.poll_resigned(state, now_ms)
        assert isinstance(state, UnattachedState)
        return self._elections.poll_unattached(state, now_ms)

    def _clean(self, now_ms: int) -> int:
        if now_ms >= self._clean_ms:
            self._clean_ms = now_ms + self.config.metadata_log_cleanup_interval_ms
            try:
                self._log.clean(self._clock.time_ms())
            except StorageFull as error:
                self._context.full_disk.refused(error)
        return self._clean_ms - now_ms

    def _end_shutdown(self, now_ms: int) -> int:
        until_ms = self._context.shutdown_until_ms
        if until_ms is None:
            return NEVER_MS
        state = self._quorum.state
        is_led = isinstance(state, FollowerState) and not state.leader_has_left
        if is_led or now_ms >= until_ms or self.is_cut_off or not self._quorum.others():
            self.close()
            return NEVER_MS
        return until_ms - now_ms

    # ---- consequences of a change -------------------------------------------------------------------------

    def _state_changed(self, former: EpochState, state: EpochState) -> None:
        if isinstance(former, FollowerState):
            former.drop_snapshot()
        if isinstance(former, LeaderState):
            former.accumulator.close()
            self._accumulator = None
            self._context.metrics.forget_appends()
            self._end_waits(NotLeader(f"node {self.node_id} no longer leads epoch {former.epoch}"))
        if isinstance(state, LeaderState):
            self._accumulator = state.accumulator
        if state.leader_id is None:
            self._context.metrics.note_election_began(self._context.now_ms())
        else:
            self._context.metrics.note_leader(self._context.now_ms())

    def _end_waits(self, error: KreplicaError) -> None:
        self._voter_changes.leadership_lost(error)
        self._context.fetches.complete_all(self._log.end_offset)
        self._context.appends.complete_all_exceptionally(error)

    def _high_watermark_moved(self) -> None:
        """Act on a new high watermark of this leader: notify the callers that wait for it at once.

        The rest is a task of its own: other voters get the high watermark, and listeners replay the records.
        """
        mark = self._log.high_watermark
        for watcher in self._commit_watchers:
            watcher(mark)
        if not self._is_update_queued:
            self._is_update_queued = True
            self._post(self._send_high_watermark)

    def _send_high_watermark(self) -> None:
        # The step that follows this task updates the listeners.
        self._is_update_queued = False
        self._leadership.send_high_watermark()

    def _update_listeners(self) -> None:
        log, state, listeners = self._log, self._quorum.state, self._listeners
        mark = log.high_watermark
        news = (state, mark, log.start_offset, log.latest_snapshot_id, len(listeners))
        if news == self._listeners_seen:
            return
        if isinstance(state, LeaderState):
            for listener in listeners:
                listener.update(log, self.leader_and_epoch, state.epoch_start_offset, state.appended)
            state.forget_appended(mark)
        else:
            for listener in listeners:
                listener.update(log, self.leader_and_epoch)
        self._listeners_seen = news if all(listener.next_offset >= mark for listener in listeners) else None


def _nothing() -> None:
    """Do nothing. Posted for the step that follows."""
