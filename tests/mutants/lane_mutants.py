"""Mutants of the native lanes: bugs in what they check or wait for, met by random runs or by a script.

The bugs of what both paths share are in mutants and history_mutants. Thread rule: as in mutants.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica._core.fetch_lane import FetchLane, LaneFetch
from kreplica._core.produce_lane import LaneAppend, ProduceLane
from kreplica._core.region import Slice
from kreplica.common.future import resolved
from kreplica.replica import append_manager, fetch_manager
from kreplica.replica.delayed_requests import PartitionResponse
from tests.mutants.mutants import Mutant, Replacement

LANE_MUTANTS: dict[str, Mutant] = {}
# Random runs do not meet these: a late answer breaks no rule, and the simulated network copies at once.
SCRIPTED_LANE_MUTANTS: dict[str, Mutant] = {}


def lane_mutant(
    owner: Any, name: str, mutants: dict[str, Mutant] = LANE_MUTANTS
) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for LANE_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        mutants[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@lane_mutant(fetch_manager, "FetchLane")
def read_natively_in_any_epoch(_: Replacement) -> Replacement:
    """The lane compares no leader epoch: neither the follower's, nor that of its last record."""

    class AnyEpoch(LaneFetch):
        def is_plain(self, cached: Any) -> bool:
            known = cached.current_leader_epoch, cached.last_fetched_epoch
            log = None if cached.partition is None else cached.partition.leader_log_if_local
            if log is not None and log.epochs.entries:
                cached.current_leader_epoch = cached.partition.leader_epoch
                cached.last_fetched_epoch = log.epochs.entries[-1].epoch
            try:
                return super().is_plain(cached)
            finally:
                cached.current_leader_epoch, cached.last_fetched_epoch = known

    return partial(FetchLane, kind=AnyEpoch)


@lane_mutant(fetch_manager, "FetchLane")
def count_natively_what_is_out_of_bounds(_: Replacement) -> Replacement:
    """The lane takes a follower for caught up, wherever it fetches from."""

    class CaughtUp(LaneFetch):
        def is_plain(self, cached: Any) -> bool:
            log = None if cached.partition is None else cached.partition.leader_log_if_local
            if log is not None and cached.is_unanswered:
                cached.fetch_offset = log.log_end_offset
            return super().is_plain(cached)

    return partial(FetchLane, kind=CaughtUp)


@lane_mutant(append_manager, "ProduceLane")
def acknowledge_natively_at_once(_: Replacement) -> Replacement:
    """A produce with acks=all that the lane took is answered as soon as the leader has it."""

    class Careless(ProduceLane):
        def await_commits(self, appends: list[LaneAppend]) -> None:
            for append in appends:
                append.answer(resolved({0: PartitionResponse(append.base_offset)}))

    return Careless


@lane_mutant(fetch_manager, "FetchLane", SCRIPTED_LANE_MUTANTS)
def wake_no_waiting_fetch(_: Replacement) -> Replacement:
    """A fetch that waits in the lane is answered when its time is up, and not when records come."""

    class Asleep(LaneFetch):
        def try_complete(self) -> bool:
            return False

    return partial(FetchLane, kind=Asleep)


@lane_mutant(fetch_manager, "FetchLane", SCRIPTED_LANE_MUTANTS)
def answer_without_a_pin(_: Replacement) -> Replacement:
    """The lane answers with memory that a truncation and later appends may overwrite."""

    class Unpinned(FetchLane):
        def take(self, frame: Any, answered: Any, grants: Any = None) -> Any:
            def answer(buffers: list[Any] | None, error: BaseException | None) -> None:
                answered(buffers and [_unpinned(each) for each in buffers], error)

            return super().take(frame, answer, grants)

    return Unpinned


def _unpinned(buffer: Any) -> Any:
    if not isinstance(buffer, Slice):
        return buffer
    return memoryview((ctypes.c_ubyte * len(buffer)).from_address(buffer.address)).cast("B")
