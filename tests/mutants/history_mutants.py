"""Mutants that a random run meets too rarely, or never: each is the bug of one history that a script replays.

Random runs catch each of `mutants.MUTANTS`, so those are kept apart. Thread rule: as in mutants.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from kreplica._core.fetch_frames import PartitionAnswer
from kreplica._core.fetch_session import CachedPartition
from kreplica._core.follower import Follower
from kreplica._core.leader_state import UNKNOWN_BROKER_EPOCH
from kreplica.broker import kafka_apis
from kreplica.common.errors import KafkaStorageError, NotLeaderOrFollower
from kreplica.common.messages.data import FetchResponse
from kreplica.common.ports import monotonic_ms
from kreplica.common.types import NO_OFFSET
from kreplica.log.log_loader import _LogLoader
from kreplica.log.unified_log import UnifiedLog
from kreplica.replica import damage_repair, isr_policy, partition, replica_fetcher
from kreplica.replica.append_manager import AppendManager
from kreplica.replica.partition import Partition
from kreplica.replica.remote_leader_endpoint import fetch_answers
from kreplica.replica.replica_fetcher import OffsetTruncationState, ReplicaFetcher
from kreplica.replica.replica_fetcher_manager import ReplicaFetcherManager
from kreplica.replica.replica_manager import ReplicaManager
from kreplica.sim.storage import TEMPORARY_SUFFIX, SimStorage
from tests.mutants.mutants import Mutant, Replacement

HISTORY_MUTANTS: dict[str, Mutant] = {}


def history_mutant(owner: Any, name: str) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for HISTORY_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        HISTORY_MUTANTS[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@history_mutant(UnifiedLog, "_forget_epochs")
def keep_epochs_at_the_end(forget_epochs: Replacement) -> Replacement:
    """A cut at the log's end does nothing, so an epoch that begins there stays (KAFKA-10706)."""

    def forget(log: Any, end_offset: int) -> None:
        if end_offset < log.log_end_offset:
            forget_epochs(log, end_offset)

    return forget


@history_mutant(ReplicaFetcher, "decide")
def take_the_mark_of_diverging_answers(decide: Replacement) -> Replacement:
    """A follower takes over the high watermark before it cuts where the logs part (KAFKA-14704)."""

    def take(fetcher: Any, state: Any, answer: Any) -> None:
        # A plain answer has no diverging epoch.
        if not isinstance(answer, PartitionAnswer) and answer.diverging_epoch.end_offset >= 0:
            partition = fetcher._partitions.get(state.topic_partition)
            partition.update_follower_high_watermark(answer.high_watermark, state.leader_epoch)
        decide(fetcher, state, answer)

    return take


@history_mutant(ReplicaFetcher, "_truncate_to_epoch")
def keep_what_the_leader_cannot_check(truncate_to_epoch: Replacement) -> Replacement:
    """A follower cut to its leader's log start keeps what it has below."""

    def truncate(fetcher: Any, partition: Any, state: Any, leader_end: Any, _: int) -> Any:
        return truncate_to_epoch(fetcher, partition, state, leader_end, NO_OFFSET)

    return truncate


@history_mutant(isr_policy, "begins_too_low")
def join_below_the_log_start(_: Replacement) -> Replacement:
    """A replica joins the ISR with records below the leader's log start, whose epochs the leader forgot."""

    def begins_too_low(*_: Any) -> bool:
        return False

    return begins_too_low


@history_mutant(kafka_apis, "CachedPartition")
def tell_marks_once(_: Replacement) -> Replacement:
    """A leader does not send again in a new leader epoch what a follower got and dropped in the last."""

    class Once(CachedPartition):
        def begin_epoch(self, leader_epoch: int) -> None:
            self.current_leader_epoch = leader_epoch

    return Once


@history_mutant(Partition, "update_follower_fetch_state")
def count_diverging_fetches(update_follower_fetch_state: Replacement) -> Replacement:
    """A follower is believed to have what lies below the offset of a diverging fetch (KAFKA-13141)."""

    def update(partition: Any, replica_id: int, read: Any, *arguments: Any) -> Any:
        read = read._replace(diverging_epoch=None)
        return update_follower_fetch_state(partition, replica_id, read, *arguments)

    return update


@history_mutant(ReplicaFetcher, "_fetched")
def cut_what_has_left_the_fetcher(fetched: Replacement) -> Replacement:
    """A diverging answer is applied, whomever the follower fetches from by now (KAFKA-13207)."""

    def take(fetcher: Any, response: Any) -> None:
        # An answer without a diverging epoch is not a message.
        answers = fetch_answers(response) if isinstance(response, FetchResponse) else ()
        for topic_id, number, answer in answers:
            follower = fetcher._follower
            for state in (*follower.by_partition.values(), *follower.gone.values()):
                is_meant = (state.topic_id.raw, state.topic_partition.partition) == (topic_id, number)
                partition = fetcher._partitions.get(state.topic_partition)
                if (
                    partition is not None
                    and is_meant
                    and state.is_sent
                    and answer.diverging_epoch.end_offset >= 0
                ):
                    # A leader refuses, and so does a disk that fails.
                    with suppress(NotLeaderOrFollower, KafkaStorageError):
                        partition.truncate_to(answer.diverging_epoch.end_offset)
        fetched(fetcher, response)

    return take


@history_mutant(ReplicaManager, "checkpoint_high_watermarks")
def forget_marks_without_a_leader(_: Replacement) -> Replacement:
    """The checkpoint of high watermarks has only partitions that have a leader (KAFKA-1647)."""

    def checkpoint(manager: Any) -> None:
        for directory in manager.log_manager._online():
            led = {
                topic_partition: log.high_watermark
                for topic_partition, log in directory.logs.items()
                if _is_led(manager, topic_partition)
            }
            manager.log_manager._write(directory, partial(directory._marks.write, led))

    return checkpoint


def _is_led(manager: Any, topic_partition: Any) -> bool:
    partition = manager.partitions.get(topic_partition)
    leader = None if partition is None else partition.term.leader
    return leader is not None and manager._metadata_cache.get_alive_broker_epoch(leader) is not None


@history_mutant(UnifiedLog, "_drop_all")
def leave_the_mark_behind(truncate_fully_and_start_at: Replacement) -> Replacement:
    """A log that begins anew at an offset keeps its high watermark below it (KAFKA-9491)."""

    def truncate(log: Any, offset: int) -> Any:
        before = log.high_watermark
        gone = truncate_fully_and_start_at(log, offset)
        log.state.update(high_watermark=before, last_stable_offset=before)
        return gone

    return truncate


@history_mutant(Partition, "is_under_min_isr")
def commit_below_min_isr(_: Replacement) -> Replacement:
    """The high watermark moves on though fewer than min.insync.replicas are in sync (KAFKA-15583)."""

    def is_under(_: Any) -> bool:
        return False

    return property(is_under)  # type: ignore[return-value]


@history_mutant(isr_policy, "what_keeps_out")
def join_at_the_mark(what_keeps_out: Replacement) -> Replacement:
    """A replica may join the ISR at the high watermark, though a new leader's lags (KAFKA-7128)."""

    def keeps_out(replica: Any, term: Any, brokers: Any) -> Any:
        is_at_mark = replica.log_end_offset >= term.log.high_watermark
        if is_at_mark and replica.fetched_in_epoch and not replica.diverged:
            return isr_policy.what_makes_ineligible(replica, brokers)
        return what_keeps_out(replica, term, brokers)

    return keeps_out


@history_mutant(replica_fetcher, "offset_truncation_state")
def cut_where_any_epoch_ends(truncation_state: Replacement) -> Replacement:
    """A follower cuts where the leader's answer ends, whatever epoch that is of (KIP-279)."""

    def end_alone(log: Any, leader_epoch: int, leader_end_offset: int) -> OffsetTruncationState:
        cut: OffsetTruncationState = truncation_state(log, min(leader_epoch, -1), leader_end_offset)
        return cut

    return end_alone


@history_mutant(Partition, "_term_in_epoch")
def answer_in_any_epoch(log_with_epoch: Replacement) -> Replacement:
    """A leader answers every replica, also one that knows of a later leader epoch (KIP-320)."""

    def log_in_any_epoch(partition: Any, _: int | None, only_leader: bool) -> Any:
        return log_with_epoch(partition, None, only_leader)

    return log_in_any_epoch


@history_mutant(ReplicaFetcherManager, "follow")
def trust_the_same_leader(follow: Replacement) -> Replacement:
    """A follower whose leader stays the same goes on where it is, also if it missed an epoch (KAFKA-7164)."""

    leaders: dict[Any, int] = {}

    def go_on(manager: Any, partition: Any, decided: Any) -> None:
        follow(manager, partition, decided)
        fetchers = (each for each in manager if each.state_of(partition.topic_partition) is not None)
        fetcher = next(fetchers, None)
        if fetcher is not None and leaders.get(partition) == decided.leader:
            state = fetcher.state_of(partition.topic_partition)
            state.is_truncating = False
            fetcher._follower.put(state)
        leaders[partition] = decided.leader

    return go_on


@history_mutant(partition, "_begin_epoch")
def note_no_epoch(_: Replacement) -> Replacement:
    """A new leader notes its epoch with its first record only (KAFKA-7415)."""

    def begin_nothing(*_: Any) -> None:
        return None

    return begin_nothing


@history_mutant(UnifiedLog, "fail")
def go_on_with_a_failed_log(_: Replacement) -> Replacement:
    """A log does not know that its disk has failed (KAFKA-10778)."""

    def fail(*_: Any) -> None:
        return None

    return fail


@history_mutant(ReplicaManager, "_check_storage")
def go_on_with_a_failed_directory(_: Replacement) -> Replacement:
    """A directory whose disk has failed stays online (KAFKA-10778)."""

    def check_storage(*_: Any) -> None:
        return None

    return check_storage


@history_mutant(_LogLoader, "_is_clean")
def trust_a_crashed_log(_: Replacement) -> Replacement:
    """A log counts as closed in order until all logs are loaded (KAFKA-10471)."""

    def is_clean(loader: Any, _: Any) -> bool:
        return loader.standing is not None

    return is_clean


@history_mutant(SimStorage, "write_file_atomically")
def name_epochs_before_their_flush(write_file_atomically: Replacement) -> Replacement:
    """The checkpoint of leader epochs gets its name before its contents are on disk (KAFKA-16541)."""

    def write(storage: Any, path: str, data: bytes, *, flush_name: bool = True) -> None:
        if not path.endswith("leader-epoch-checkpoint"):
            write_file_atomically(storage, path, data, flush_name=flush_name)
            return
        storage.write_file(path + TEMPORARY_SUFFIX, data)
        storage.rename(path + TEMPORARY_SUFFIX, path)

    return write


@history_mutant(UnifiedLog, "check_records")
def serve_what_rotted(_: Replacement) -> Replacement:
    """A broker gives away what its disk has, whatever the checksums say, as Kafka's do."""

    def check_nothing(*_: Any) -> None:
        return None

    return check_nothing


@history_mutant(damage_repair, "wanted_by")
def believe_any_epoch(wanted_by: Replacement) -> Replacement:
    """A damaged range is filled with what another replica has at those offsets, of whatever leader epoch."""

    def wanted_of_any_epoch(log: Any, damage: Any) -> Any:
        return dataclasses.replace(wanted_by(log, damage), epochs=None)

    return wanted_of_any_epoch


@history_mutant(Partition, "_broker_epoch_of")
def forget_broker_epochs(_: Replacement) -> Replacement:
    """AlterPartition does not say in which life a broker was in sync: one may join that was started anew and
    has lost what it had (KIP-903)."""

    def unknown(*_: Any) -> int:
        return UNKNOWN_BROKER_EPOCH

    return unknown


@history_mutant(Partition, "has_enough_in_sync")
def acknowledge_with_too_few(_: Replacement) -> Replacement:
    """A produce is acknowledged though what is committed is on fewer replicas than min.insync.replicas."""

    def has_enough(_: Any) -> bool:
        return True

    return property(has_enough)  # type: ignore[return-value]


@history_mutant(AppendManager, "_is_unheard")
def end_producers_unheard(_: Replacement) -> Replacement:
    """A leader that no follower fetches from, since another one leads, ends a producer for a gap."""

    def is_unheard(*_: Any) -> bool:
        return False

    return is_unheard


@history_mutant(AppendManager, "_is_unheard")
def hear_fetches_from_before(_: Replacement) -> Replacement:
    """A fetch that lay in the socket while the leader stood still counts as heard."""

    def is_unheard(manager: Any, topic_partition: Any) -> bool:
        partition = manager._partitions.get(topic_partition)
        others = [each for each in partition.remote_replicas if each.broker_id in partition.isr]
        now_ms = monotonic_ms(partition.clock)
        return bool(others) and all(now_ms - each.last_heard_time_ms > manager._silence_ms for each in others)

    return is_unheard


@history_mutant(replica_fetcher, "Follower")
def apply_stale_answers(_: Replacement) -> Replacement:
    """A follower takes an answer to a fetch of before it heard of another leader epoch."""

    class AnyFetch(Follower):
        def is_current(self, _: Any) -> bool:
            return True

    return AnyFetch
