"""Mutants of the native lanes: bugs in what they check or wait for, met by random runs.

The bugs of what both paths share are in mutants and history_mutants. Thread rule: as in mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica._core.fetch_lane import FetchLane, LaneFetch
from kreplica.common.future import resolved
from kreplica.replica import fetch_manager
from kreplica.replica.delayed_requests import DelayedRequests, PartitionResponse
from tests.mutants.mutants import Mutant, Replacement

LANE_MUTANTS: dict[str, Mutant] = {}


def lane_mutant(owner: Any, name: str) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for LANE_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        LANE_MUTANTS[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
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


@lane_mutant(DelayedRequests, "await_token")
def acknowledge_natively_at_once(_: Replacement) -> Replacement:
    """A produce with acks=all that the lane took is answered as soon as the leader has it."""

    def await_token(_: Any, token: Any, *_waits: Any) -> None:
        token.answer(resolved({0: PartitionResponse(token.base_offset)}))

    return await_token
