"""BrokerHeartbeatManager: when each broker was last heard, and what follows from that.

A broker has a session, which each heartbeat renews; one whose session has ended is to be fenced. A session
that is too short makes leaders flap, one that is too long holds writers up, so its end moves by three rules:

- A controller that was itself kept from looking adds the time to every session. It could not have heard
  anybody.
- A closed connection is a hint: what is left of the session is cut to `broker.session.hint.ms`. It never ends
  it, since a connection may break and the broker live. A heartbeat makes the session whole again.
- A broker that comes back in the same life after it was fenced was fenced too early. Its session is twice as
  long from then on, up to `broker.session.max.timeout.ms`; each `broker.session.decay.ms` without another
  such mistake takes one doubling back.

All of it is the active controller's memory and nobody else's: a new controller gives every broker a whole
session, or a longer one (`broker.session.failover.ms`), since the broker has to find it first. Times are
monotonic, in nanoseconds. It belongs to the controller's loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from kreplica.controller.controller_config import ControllerConfig

NANOSECONDS_PER_MS = 1_000_000
# So often within a session the controller looks, also where nobody's session ends: a look that is late tells
# that the controller was held up, and how long.
CHECKS_A_SESSION = 8
NOT_SHUTTING_DOWN = -1


class BrokerControlState(enum.Enum):
    """What the controller wants a broker to be."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


@dataclass(slots=True)
class BrokerHeartbeatState:
    """What is known of one broker. `metadata_offset`: the last record it has applied, -1 if it told none.

    `controlled_shutdown_offset`: the record up to which the others have to know that it leads nothing any
    more, NOT_SHUTTING_DOWN otherwise.
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
    """The sessions of all registered brokers; see the module."""

    def __init__(self, config: ControllerConfig) -> None:
        self._timeout_ns = config.broker_session_timeout_ms * NANOSECONDS_PER_MS
        self._failover_ns = (config.broker_session_failover_ms or 0) * NANOSECONDS_PER_MS
        self._hint_ns = config.broker_session_hint_ms * NANOSECONDS_PER_MS
        self._max_timeout_ns = config.broker_session_max_timeout_ms * NANOSECONDS_PER_MS
        self._decay_ns = config.broker_session_decay_ms * NANOSECONDS_PER_MS
        self._brokers: dict[int, BrokerHeartbeatState] = {}

    # ---- who is there -------------------------------------------------------------------------------------

    def register(self, broker_id: int, epoch: int, now_ns: int, *, is_fenced: bool) -> None:
        """A broker is registered in `epoch`, from now on with a whole session.

        What made its sessions longer stays with its id: the machine is the same one.
        """
        known = self._brokers.get(broker_id)
        state = BrokerHeartbeatState(broker_id, epoch, is_fenced, 0)
        if known is not None:
            state.lengthenings, state.lengthened_at_ns = known.lengthenings, known.lengthened_at_ns
        state.deadline_ns = now_ns + self.session_ns(state, now_ns)
        self._brokers[broker_id] = state

    def remove(self, broker_id: int) -> None:
        """The broker is no longer registered."""
        self._brokers.pop(broker_id, None)

    def get(self, broker_id: int) -> BrokerHeartbeatState | None:
        return self._brokers.get(broker_id)

    def await_after_failover(self, broker_id: int, now_ns: int) -> None:
        """The broker knows another controller and has to find this one: until it is heard first it has time
        for that."""
        state = self._brokers[broker_id]
        state.deadline_ns = max(state.deadline_ns, now_ns + self._failover_ns)

    # ---- sessions -----------------------------------------------------------------------------------------

    def touch(self, broker_id: int, now_ns: int, metadata_offset: int) -> None:
        """The broker was heard: its session begins anew."""
        state = self._brokers[broker_id]
        state.metadata_offset = max(state.metadata_offset, metadata_offset)
        if state.was_expired:
            state.was_expired = False
            state.lengthenings = self._lengthenings(state, now_ns) + 1
            state.lengthened_at_ns = now_ns
        state.deadline_ns = now_ns + self.session_ns(state, now_ns)

    def connection_lost(self, broker_id: int, now_ns: int) -> None:
        """The connection to the broker was closed: a hint, no proof."""
        state = self._brokers.get(broker_id)
        if state is not None:
            state.deadline_ns = min(state.deadline_ns, now_ns + self._hint_ns)

    def controller_stalled(self, stall_ns: int) -> None:
        """The controller could hear nobody for so long."""
        for state in self._brokers.values():
            state.deadline_ns += stall_ns

    def fence(self, broker_id: int, *, expired: bool) -> None:
        """The broker is fenced; `expired`: since it was not heard."""
        state = self._brokers[broker_id]
        state.is_fenced = True
        state.was_expired = expired
        state.controlled_shutdown_offset = NOT_SHUTTING_DOWN

    def unfence(self, broker_id: int) -> None:
        self._brokers[broker_id].is_fenced = False

    def has_valid_session(self, broker_id: int, epoch: int, now_ns: int) -> bool:
        """Whether the broker of that epoch may be alive: its session has not ended."""
        state = self._brokers.get(broker_id)
        return state is not None and state.epoch == epoch and now_ns < state.deadline_ns

    def expired_brokers(self, now_ns: int) -> list[int]:
        """The brokers to be fenced now, all of them: two may end in one look (KAFKA-13173)."""
        return [
            state.broker_id
            for state in self._brokers.values()
            if not state.is_fenced and now_ns >= state.deadline_ns
        ]

    def next_check_ns(self, now_ns: int) -> int:
        """When to look again: as the next session ends, and often enough to notice a stall."""
        latest = now_ns + max(self._timeout_ns // CHECKS_A_SESSION, NANOSECONDS_PER_MS)
        ends = (state.deadline_ns for state in self._brokers.values() if not state.is_fenced)
        return min(latest, max(min(ends, default=latest), now_ns))

    def session_ns(self, state: BrokerHeartbeatState, now_ns: int) -> int:
        """How long the broker may be silent now."""
        doubled = self._timeout_ns << self._lengthenings(state, now_ns)
        return min(doubled, self._max_timeout_ns)

    def _lengthenings(self, state: BrokerHeartbeatState, now_ns: int) -> int:
        # At most what leads to the longest session, so that it decays from there.
        longest = (self._max_timeout_ns // self._timeout_ns).bit_length()
        passed = (now_ns - state.lengthened_at_ns) // self._decay_ns if self._decay_ns else state.lengthenings
        return max(min(state.lengthenings, longest) - passed, 0)

    # ---- what a broker is to be ----------------------------------------------------------------------------

    def next_state(
        self,
        broker_id: int,
        *,
        wants_fence: bool,
        wants_shutdown: bool,
        metadata_offset: int,
        has_leaderships: Callable[[], bool],
    ) -> BrokerControlState:
        """What the broker's heartbeat makes of it.

        It is unfenced once it knows its own registration, so it has caught up with all that was decided
        before. It may shut down once it leads nothing, and all active brokers have heard of that.
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
        """The broker shuts down in order; the others have to know the records up to `offset` first."""
        state = self._brokers[broker_id]
        state.controlled_shutdown_offset = max(state.controlled_shutdown_offset, offset)

    def lowest_active_offset(self) -> int:
        """The last record that every active broker has applied; beyond all of them where none is active."""
        return min(
            (
                state.metadata_offset
                for state in self._brokers.values()
                if state.control_state is BrokerControlState.UNFENCED
            ),
            default=1 << 63,
        )
