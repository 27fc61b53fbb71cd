"""Mutants: known ways to lose data, built into the code for as long as a test wants them.

Each is a bug that some implementation has had; while it is switched on, the invariant that it breaks must
notice, or the simulation looks without seeing. A mutant replaces a function of the code under test and puts
it back. Thread rule: one thread, and no other simulation beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kreplica._core.fetch_frames import FetchAnswer
from kreplica.common.errors import StorageIOError
from kreplica.controller.manual_controller import ManualController
from kreplica.log.local_log import LocalLog
from kreplica.log.unified_log import UnifiedLog
from kreplica.replica import isr_policy, partition
from kreplica.replica.delayed_requests import DelayedRequests
from kreplica.replica.partition import Partition
from kreplica.replica.replica_fetcher import ReplicaFetcher
from kreplica.replica.replica_fetcher_manager import ReplicaFetcherManager

Replacement = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`owner`'s function `name` is replaced by what `make` makes of it. `help`: the bug."""

    owner: Any
    name: str
    make: Callable[[Replacement], Replacement]
    help: str


MUTANTS: dict[str, Mutant] = {}


def mutant(owner: Any, name: str) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """Register the decorated function as the maker of a replacement for `owner.name`."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        MUTANTS[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """Have the mutant of MUTANTS in the code while the block runs."""
    with built_in(MUTANTS[name]):
        yield


@contextmanager
def built_in(chosen: Mutant) -> Iterator[None]:
    """Have the mutant in the code while the block runs."""
    # From the class's own table, so that a static or class method is put back as one.
    is_own = chosen.name in vars(chosen.owner)
    original = vars(chosen.owner)[chosen.name] if is_own else getattr(chosen.owner, chosen.name)
    setattr(chosen.owner, chosen.name, chosen.make(original))
    try:
        yield
    finally:
        if is_own:
            setattr(chosen.owner, chosen.name, original)
        else:
            # It was inherited, from a native class.
            delattr(chosen.owner, chosen.name)


@mutant(Partition, "increment_high_watermark")
def commit_without_followers(_: Replacement) -> Replacement:
    """The high watermark is the leader's own end."""

    def increment(partition: Any, log: Any, _: int | None) -> bool:
        end = log.state.log_end_offset
        if end <= log.high_watermark:
            return False
        partition.advance_high_watermark(log, end)
        partition.term.watermark.advance(end)
        return True

    return increment


@mutant(Partition, "_set_state")
def commit_without_those_about_to_join(set_state: Replacement) -> Replacement:
    """The high watermark waits for the committed ISR alone, not for the maximal one (KAFKA-8836)."""

    def set_committed(partition: Any, state: Any) -> None:
        set_state(partition, state)
        partition.watched_replicas = tuple(
            replica for replica in partition.remote_replicas if replica.broker_id in state.isr
        )
        partition.unwatched_replicas = ()

    return set_committed


@mutant(isr_policy, "what_keeps_out")
def join_too_early(_: Replacement) -> Replacement:
    """A replica may join the ISR as soon as it has fetched, wherever it stands."""

    def keeps_out(replica: Any, _: Any, brokers: Any) -> str | None:
        return isr_policy.what_makes_ineligible(replica, brokers)

    return keeps_out


@mutant(Partition, "update_follower_high_watermark")
def follow_the_mark_down(_: Replacement) -> Replacement:
    """A follower takes the leader's high watermark as it is, also where it is lower than its own."""

    def update(partition: Any, leader_high_watermark: int, _: int) -> bool:
        with partition.leader_isr_update_lock:
            log = partition.local_log
            before: int = log.high_watermark
            moved: bool = log.update_high_watermark(min(leader_high_watermark, log.log_end_offset)) != before
            return moved

    return update


@mutant(Partition, "update_follower_high_watermark")
def believe_any_mark(_: Replacement) -> Replacement:
    """A follower takes its leader's high watermark for its own, beyond the end of its log."""

    def update(self: Partition, leader_high_watermark: int, leader_epoch: int) -> bool:
        with self.leader_isr_update_lock:
            log = self.follower_log(leader_epoch)
            if leader_high_watermark <= log.high_watermark:
                return False
            log.state.advance(leader_high_watermark, log.last_stable_offset)
            return True

    return update


@mutant(ReplicaFetcher, "_fetched")
def mix_up_partitions(fetched: Replacement) -> Replacement:
    """A follower takes the answer for one partition as that for the next one."""

    def take(fetcher: ReplicaFetcher, response: Any) -> None:
        if isinstance(response, FetchAnswer):
            parts = response.partitions
            answers = [answer for *_, answer in parts]
            parts[:] = [(*part[:2], answers[i - 1]) for i, part in enumerate(parts)]
        fetched(fetcher, response)

    return take


@mutant(ReplicaFetcherManager, "remove_fetcher_for_partitions")
def lead_and_follow(_: Replacement) -> Replacement:
    """A new leader goes on fetching from the former one."""

    def remove(*_: Any) -> dict[Any, Any]:
        return {}

    return remove


@mutant(partition, "_diverging_epoch")
def never_diverge(_: Replacement) -> Replacement:
    """A leader does not report to followers that their logs diverge from its own (KIP-279, KIP-595)."""

    def diverging_epoch(*_: Any) -> None:
        return None

    return diverging_epoch


@mutant(ReplicaFetcherManager, "follow")
def cut_to_the_mark(follow: Replacement) -> Replacement:
    """A follower begins by cutting its log to its own high watermark, as Kafka did before KIP-101."""

    def cut_and_follow(manager: Any, partition: Any, state: Any) -> None:
        partition.truncate_to(partition.high_watermark)
        follow(manager, partition, state)

    return cut_and_follow


@mutant(DelayedRequests, "await_commit")
def acknowledge_at_once(_: Replacement) -> Replacement:
    """A produce with acks=all is answered as soon as the leader has it."""

    def await_commit(_: Any, status: Any, _timeout_ms: int, future: Any) -> None:
        future.set_result(status.response)

    return await_commit


@mutant(Partition, "fetch_records")
def show_the_uncommitted(fetch_records: Replacement) -> Replacement:
    """Consumers read to the end of the leader's log (KAFKA-9196)."""

    def fetch(partition: Any, fetch_offset: int, max_bytes: int, **options: Any) -> Any:
        return fetch_records(partition, fetch_offset, max_bytes, **{**options, "isolation": "log_end"})

    return fetch


@mutant(UnifiedLog, "upper_bound")
def show_open_transactions(upper_bound: Replacement) -> Replacement:
    """Readers of committed records get all that the replicas have, whatever becomes of its transaction."""

    def bound(log: Any, isolation: str) -> Any:
        return upper_bound(log, "high_watermark" if isolation == "txn_committed" else isolation)

    return bound


@mutant(UnifiedLog, "aborted_transactions")
def keep_quiet_about_aborts(_: Replacement) -> Replacement:
    """Readers do not learn which transactions were aborted."""

    def none(*_: Any) -> list[Any]:
        return []

    return none


@mutant(ManualController, "decide")
def forget_the_leader(decide: Replacement) -> Replacement:
    """A change of the ISR leaves out the leader, which did not name itself."""

    def decide_without(
        controller: Any, topic_partition: Any, *, isr: Sequence[int] | None = None, **others: Any
    ) -> Any:
        if isr is not None and len(isr) > 1:
            leader = controller.partitions[topic_partition].leader
            isr = [each for each in isr if each != leader]
        return decide(controller, topic_partition, isr=isr, **others)

    return decide_without


@mutant(LocalLog, "flush")
def flush_once_more(flush: Replacement) -> Replacement:
    """A flush that failed is tried again, which reports success although the pages are lost (KAFKA-10778)."""

    def flush_again(log: Any, *arguments: Any, **settings: Any) -> None:
        with suppress(StorageIOError):
            flush(log, *arguments, **settings)

    return flush_again
