"""BrokerHeartbeatManager: the sessions of brokers: when each was last heard, and what state it should be in.

Each heartbeat renews a broker's session. A broker whose session has ended is to be fenced. With short
sessions leaders flap, with long ones producers wait, so three rules move the end of a session:

- A stalled controller could not hear any broker, so it extends all sessions by the time of the stall.
- A closed connection is a hint: the rest of the session is cut to `broker.session.hint.ms`. It does not end
  the session, since a connection may break while the broker lives. The next heartbeat restores the whole
  session.
- A broker that comes back after its session ended, without a restart, was fenced too early. Its session is
  doubled from then on, up to `broker.session.max.timeout.ms`. Each `broker.session.decay.ms` without another
  such mistake takes back one doubling.

Only the active controller knows the sessions. A new controller gives each broker a whole session, or a longer
one (`broker.session.failover.ms`), since the broker has to find the new controller first. Times are
monotonic, in nanoseconds. Owned by the controller's loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from kreplica.common.dataclass import dataclass
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.controller.controller_config import ControllerConfig

# How many times per session the controller checks, even if no session ends. A late check shows how long the
# controller was stalled.
CHECKS_A_SESSION = 8
NOT_SHUTTING_DOWN = -1


class BrokerControlState(enum.Enum):
    """The state that the controller wants a broker to have."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


@dataclass(slots=True)
class BrokerHeartbeatState:
    """The session of one broker.

    `metadata_offset`: the last record that the broker has applied, -1 if unknown.
    `controlled_shutdown_offset`: the broker may shut down when the others have applied the records up to
    here; NOT_SHUTTING_DOWN if it is not shutting down.
    """

    broker_id: int
    epoch: int
    is_fenced: bool
    deadline_ns: int
    metadata_offset: int = -1
    controlled_shutdown_offset: int = NOT_SHUTTING_DOWN
    was_expired: bool = False
    lengthenings: int = 0
    lengthened_at_ns: int = 0

    @property
    def control_state(self) -> BrokerControlState:
        if self.is_fenced:
            return BrokerControlState.FENCED
        if self.controlled_shutdown_offset != NOT_SHUTTING_DOWN:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.UNFENCED


class BrokerHeartbeatManager:
    """The sessions of all registered brokers."""

    def __init__(self, config: ControllerConfig) -> None:
        self._timeout_ns = config.broker_session_timeout_ms * NANOSECONDS_PER_MS
        self._failover_ns = (config.broker_session_failover_ms or 0) * NANOSECONDS_PER_MS
        self._hint_ns = config.broker_session_hint_ms * NANOSECONDS_PER_MS
        self._max_timeout_ns = config.broker_session_max_timeout_ms * NANOSECONDS_PER_MS
        self._decay_ns = config.broker_session_decay_ms * NANOSECONDS_PER_MS
        self._brokers: dict[int, BrokerHeartbeatState] = {}

    # ---- brokers ------------------------------------------------------------------------------------------

    def register(self, broker_id: int, epoch: int, now_ns: int, *, is_fenced: bool) -> None:
        """Start a session for a broker registered in `epoch`.

        The doublings of its session are kept with its id, since the machine is the same.
        """
        known = self._brokers.get(broker_id)
        state = BrokerHeartbeatState(broker_id, epoch, is_fenced, 0)
        if known is not None:
            state.lengthenings, state.lengthened_at_ns = known.lengthenings, known.lengthened_at_ns
        state.deadline_ns = now_ns + self.session_ns(state, now_ns)
        self._brokers[broker_id] = state

    def remove(self, broker_id: int) -> None:
        """Remove a broker that is no longer registered."""
        self._brokers.pop(broker_id, None)

    def get(self, broker_id: int) -> BrokerHeartbeatState | None:
        return self._brokers.get(broker_id)

    def await_after_failover(self, broker_id: int, now_ns: int) -> None:
        """Extend the session of a broker until its first heartbeat: it has to find this new controller
        first.
        """
        state = self._brokers[broker_id]
        state.deadline_ns = max(state.deadline_ns, now_ns + self._failover_ns)

    # ---- sessions -----------------------------------------------------------------------------------------

    def touch(self, broker_id: int, now_ns: int, metadata_offset: int) -> None:
        """Restart the session of a broker after a heartbeat."""
        state = self._brokers[broker_id]
        state.metadata_offset = max(state.metadata_offset, metadata_offset)
        if state.was_expired:
            state.was_expired = False
            state.lengthenings = self._lengthenings(state, now_ns) + 1
            state.lengthened_at_ns = now_ns
        state.deadline_ns = now_ns + self.session_ns(state, now_ns)

    def connection_lost(self, broker_id: int, now_ns: int) -> None:
        """Shorten the session of a broker whose connection was closed. That is a hint, not a proof."""
        state = self._brokers.get(broker_id)
        if state is not None:
            state.deadline_ns = min(state.deadline_ns, now_ns + self._hint_ns)

    def controller_stalled(self, stall_ns: int) -> None:
        """Extend all sessions by the time in which the controller was stalled."""
        for state in self._brokers.values():
            state.deadline_ns += stall_ns

    def fence(self, broker_id: int, *, expired: bool) -> None:
        """Mark the broker as fenced. `expired`: because its session ended."""
        state = self._brokers[broker_id]
        state.is_fenced = True
        state.was_expired = expired
        state.controlled_shutdown_offset = NOT_SHUTTING_DOWN

    def unfence(self, broker_id: int) -> None:
        self._brokers[broker_id].is_fenced = False

    def has_valid_session(self, broker_id: int, epoch: int, now_ns: int) -> bool:
        """Return whether the broker of that epoch may be alive: its session has not ended."""
        state = self._brokers.get(broker_id)
        return state is not None and state.epoch == epoch and now_ns < state.deadline_ns

    def expired_brokers(self, now_ns: int) -> list[int]:
        """Return all brokers to fence now. Two sessions may end before the same check (KAFKA-13173)."""
        return [
            state.broker_id
            for state in self._brokers.values()
            if not state.is_fenced and now_ns >= state.deadline_ns
        ]

    def next_check_ns(self, now_ns: int) -> int:
        """Return when to check next: when the next session ends, and often enough to notice a stall."""
        latest = now_ns + max(self._timeout_ns // CHECKS_A_SESSION, NANOSECONDS_PER_MS)
        ends = (state.deadline_ns for state in self._brokers.values() if not state.is_fenced)
        return min(latest, max(min(ends, default=latest), now_ns))

    def session_ns(self, state: BrokerHeartbeatState, now_ns: int) -> int:
        """Return the broker's current session timeout."""
        doubled = self._timeout_ns << self._lengthenings(state, now_ns)
        return min(doubled, self._max_timeout_ns)

    def _lengthenings(self, state: BrokerHeartbeatState, now_ns: int) -> int:
        # Count at most the doublings that lead to the longest session, so that it decays from there.
        longest = (self._max_timeout_ns // self._timeout_ns).bit_length()
        passed = (now_ns - state.lengthened_at_ns) // self._decay_ns if self._decay_ns else state.lengthenings
        return max(min(state.lengthenings, longest) - passed, 0)

    # ---- the state of a broker -----------------------------------------------------------------------------

    def next_state(
        self,
        broker_id: int,
        *,
        wants_fence: bool,
        wants_shutdown: bool,
        metadata_offset: int,
        has_leaderships: Callable[[], bool],
    ) -> BrokerControlState:
        """Return the state that follows from a broker's heartbeat.

        A broker is unfenced once it has applied its own registration, and so all decisions before it. It may
        shut down once it leads nothing and all active brokers know that.
        """
        state = self._brokers[broker_id]
        current = state.control_state
        if current is BrokerControlState.FENCED:
            if wants_shutdown:
                return BrokerControlState.SHUTDOWN_NOW
            if wants_fence or metadata_offset < state.epoch:
                return BrokerControlState.FENCED
            return BrokerControlState.UNFENCED
        if current is BrokerControlState.UNFENCED:
            if wants_fence:
                return BrokerControlState.SHUTDOWN_NOW if wants_shutdown else BrokerControlState.FENCED
            if not wants_shutdown:
                return BrokerControlState.UNFENCED
            return (
                BrokerControlState.CONTROLLED_SHUTDOWN
                if has_leaderships()
                else BrokerControlState.SHUTDOWN_NOW
            )
        if has_leaderships() or state.controlled_shutdown_offset > self.lowest_active_offset():
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.SHUTDOWN_NOW

    def begin_controlled_shutdown(self, broker_id: int, offset: int) -> None:
        """Start a controlled shutdown. The other brokers must apply the records up to `offset` first."""
        state = self._brokers[broker_id]
        state.controlled_shutdown_offset = max(state.controlled_shutdown_offset, offset)

    def lowest_active_offset(self) -> int:
        """Return the last record that every active broker has applied; 2**63 if no broker is active."""
        return min(
            (
                state.metadata_offset
                for state in self._brokers.values()
                if state.control_state is BrokerControlState.UNFENCED
            ),
            default=1 << 63,
        )
