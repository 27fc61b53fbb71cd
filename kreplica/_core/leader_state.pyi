from typing import Any

from kreplica._core.purgatory import Watermark

NEVER_MS: int
UNKNOWN_BROKER_EPOCH: int

class FetchClock:
    last_fetch_time_ms: int
    previous_fetch_time_ms: int
    def __init__(self, last_fetch_time_ms: int = ...) -> None: ...
    def fetched(self, now_ms: int) -> None: ...

class Replica:
    broker_id: int
    log_end_offset: int
    log_start_offset: int
    last_fetch_leader_log_end_offset: int
    last_fetch_time_ms: int
    previous_fetch_time_ms: int
    last_caught_up_time_ms: int
    broker_epoch: int
    last_sent_high_watermark: int
    fetched_in_epoch: bool
    diverged: bool
    damaged: bool
    fetch_clock: FetchClock | None
    def __init__(self, broker_id: int) -> None: ...
    def reset_replica_state(
        self, now_ms: int, leader_end_offset: int, *, is_new_leader: bool, is_in_sync: bool
    ) -> None: ...
    def update_fetch_state(
        self, fetch_offset: int, log_start_offset: int, now_ms: int, leader_end_offset: int, broker_epoch: int
    ) -> None: ...
    def leader_moved_on(self) -> None: ...
    @property
    def last_heard_time_ms(self) -> int: ...
    def is_heard(self, now_ms: int, silence_ms: int) -> bool: ...
    def asks_again(self, fetch_offset: int) -> bool: ...
    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool: ...

class Term:
    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def leads(self) -> bool: ...
    @property
    def log(self) -> Any: ...
    @property
    def epoch_start_offset(self) -> int | None: ...
    @property
    def watermark(self) -> Watermark: ...
    def __init__(
        self,
        leader: int,
        leader_epoch: int,
        *,
        log: Any = None,
        epoch_start_offset: int | None = None,
        watermark: Watermark | None = None,
    ) -> None: ...

class LeaderState:
    leader_isr_update_lock: Any
    queue: Any
    refused_sequences: dict[tuple[int, int], int]
    key: int
    term: Term
    state: Any
    alive_broker_epoch: Any
    fetch_waiters: dict[Any, None]
    low_watermark_waiters: int
    replicas_by_id: dict[int, Replica]
    remote_replicas: tuple[Replica, ...]
    watched_replicas: tuple[Replica, ...]
    unwatched_replicas: tuple[Replica, ...]
    @property
    def has_enough_in_sync(self) -> bool: ...
    @property
    def is_under_min_isr(self) -> bool: ...
    @property
    def is_at_min_isr(self) -> bool: ...
    def least_in_sync(self) -> int: ...
    def appended(self, log: Any, former_end: int) -> bool: ...
    def increment_high_watermark(self, log: Any, now_ms: int | None) -> bool: ...
    def advance_high_watermark(self, log: Any, offset: int) -> bool: ...
    def update_follower_high_watermark(self, leader_high_watermark: int, leader_epoch: int) -> bool: ...
