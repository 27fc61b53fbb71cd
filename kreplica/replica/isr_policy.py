"""The rules of the ISR: which follower may join, which must leave, and why.

Everything here is a function of values, needs no lock, and changes nothing; Partition applies the rules. A
follower counts as caught up by time, as in Kafka since 0.9, or by messages, as in Kafka before that (KIP-16).
"""

from __future__ import annotations

from typing import Protocol

from kreplica._core.leader_state import NEVER_MS, UNKNOWN_BROKER_EPOCH, Replica, Term
from kreplica.replica.partition_state import BrokerMetadata, IsrChangeReason
from kreplica.replica.replica_config import ReplicaConfig

LAG_MAX_MESSAGES = 4_000
LAG_TIME_MAX_MS = 30_000


# ---- joining -----------------------------------------------------------------------------------------------


def what_keeps_out(replica: Replica, term: Term, brokers: BrokerMetadata) -> str | None:
    """Return the rule that keeps the follower out of the leader's ISR now, in words; None if it may join."""
    not_eligible = what_makes_ineligible(replica, brokers)
    if not_eligible is not None:
        return not_eligible
    log = term.log
    assert log is not None
    assert term.epoch_start_offset is not None
    if not replica.fetched_in_epoch:
        return f"it has not fetched in leader epoch {term.leader_epoch}"
    if replica.diverged:
        return "its log diverges from the leader's"
    if replica.log_end_offset < log.high_watermark:
        return f"it is below the high watermark {log.high_watermark}"
    if begins_too_low(replica, log.log_start_offset):
        return f"its log begins at {replica.log_start_offset}, below the leader's at {log.log_start_offset}"
    if replica.log_end_offset < term.epoch_start_offset:
        # An earlier leader may have committed records that this leader does not know to be committed
        # (KAFKA-7128).
        return f"it is below {term.epoch_start_offset}, where leader epoch {term.leader_epoch} begins"
    return None


def begins_too_low(replica: Replica, leader_log_start: int) -> bool:
    """Return whether the follower has records below the leader's log start.

    The leader knows no epochs there, so these records may differ from those that were committed. The follower
    deletes them when the answer to its fetch gives it the leader's log start.
    """
    return 0 <= replica.log_start_offset < leader_log_start


def what_makes_ineligible(replica: Replica, brokers: BrokerMetadata) -> str | None:
    """Return why the follower's broker may be in no ISR; None if it is eligible (KIP-841, KIP-903)."""
    broker_id = replica.broker_id
    if brokers.is_broker_shutting_down(broker_id):
        return "its broker is shutting down or has shut down"
    if brokers.is_broker_fenced(broker_id):
        return "its broker is fenced"
    registered = brokers.get_alive_broker_epoch(broker_id)
    if registered is None:
        return "its broker is not registered"
    if replica.broker_epoch not in (UNKNOWN_BROKER_EPOCH, registered):
        return f"it fetched in broker epoch {replica.broker_epoch}, registered is {registered}"
    if replica.damaged:
        return "a range of its log is damaged"
    return None


# ---- leaving -----------------------------------------------------------------------------------------------


def why_out(
    replica: Replica | None, broker_id: int, brokers: BrokerMetadata, now_ms: int, lag_ms: int
) -> IsrChangeReason:
    """Return the most direct reason why a follower is more than `lag_ms` behind."""
    if replica is None:
        return IsrChangeReason.NEW
    if replica.damaged:
        return IsrChangeReason.DAMAGED
    absent = _why_broker_is_absent(broker_id, brokers)
    if absent is not None:
        return absent
    if replica.diverged:
        return IsrChangeReason.DIVERGED
    if replica.last_caught_up_time_ms == NEVER_MS:
        # It was never in sync under this leader.
        return IsrChangeReason.NEW
    is_fetching = now_ms - replica.last_heard_time_ms <= lag_ms
    return IsrChangeReason.SLOW if is_fetching else IsrChangeReason.STUCK


def why_controller_changed(broker_id: int, kind: str, brokers: BrokerMetadata) -> IsrChangeReason:
    """Return why the controller changed the ISR without a request: `kind` is "shrink" or "expand"."""
    absent = _why_broker_is_absent(broker_id, brokers) if kind == "shrink" else None
    return absent or IsrChangeReason.CONTROLLER


def _why_broker_is_absent(broker_id: int, brokers: BrokerMetadata) -> IsrChangeReason | None:
    # A controlled shutdown ends with a fence, and its registration keeps both: the shutdown is the cause.
    if brokers.is_broker_shutting_down(broker_id):
        return IsrChangeReason.SHUTTING_DOWN
    return IsrChangeReason.FENCED if brokers.get_alive_broker_epoch(broker_id) is None else None


# ---- lag ---------------------------------------------------------------------------------------------------


class IsrPolicy(Protocol):
    """When a follower counts as caught up. Immutable; all partitions of a broker may share one.

    `replica_lag_time_max_ms`: the longest lag, in ms.
    """

    @property
    def replica_lag_time_max_ms(self) -> int: ...

    def is_caught_up(self, replica: Replica, leader_end_offset: int, now_ms: int) -> bool:
        """Return whether the follower may stay in the ISR of a leader whose log ends at
        `leader_end_offset`."""
        ...


class LagByTime:
    """replica.lag.time.max.ms alone: a follower is in sync if it had the whole log at some moment within
    that time (30 s since KIP-537)."""

    __slots__ = ("replica_lag_time_max_ms",)

    def __init__(self, replica_lag_time_max_ms: int = LAG_TIME_MAX_MS) -> None:
        self.replica_lag_time_max_ms = replica_lag_time_max_ms

    def is_caught_up(self, replica: Replica, leader_end_offset: int, now_ms: int) -> bool:
        return replica.is_caught_up(leader_end_offset, now_ms, self.replica_lag_time_max_ms)


class LagByMessages:
    """replica.lag.max.messages, and replica.lag.time.max.ms for a follower that has stopped fetching.

    A follower that lags by `replica_lag_max_messages` or more leaves, so a burst of that size removes every
    follower.
    """

    __slots__ = ("replica_lag_max_messages", "replica_lag_time_max_ms")

    def __init__(
        self,
        replica_lag_max_messages: int = LAG_MAX_MESSAGES,
        replica_lag_time_max_ms: int = LAG_TIME_MAX_MS,
    ) -> None:
        self.replica_lag_max_messages = replica_lag_max_messages
        self.replica_lag_time_max_ms = replica_lag_time_max_ms

    def is_caught_up(self, replica: Replica, leader_end_offset: int, now_ms: int) -> bool:
        if replica.log_end_offset == leader_end_offset:
            return True
        # A follower that has not fetched in this epoch has reported no offset. It gets as much time as one
        # that has stopped fetching.
        heard_ms = max(replica.last_fetch_time_ms, replica.last_caught_up_time_ms)
        if now_ms - heard_ms > self.replica_lag_time_max_ms:
            return False
        return (
            replica.log_end_offset < 0
            or leader_end_offset - replica.log_end_offset < self.replica_lag_max_messages
        )


def isr_policy_of(config: ReplicaConfig) -> IsrPolicy:
    """Return the policy that the broker is configured for."""
    if config.replica_lag_max_messages is None:
        return LagByTime(config.replica_lag_time_max_ms)
    return LagByMessages(config.replica_lag_max_messages, config.replica_lag_time_max_ms)
