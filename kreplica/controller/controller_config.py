"""ControllerConfig: the settings of a controller, named as Kafka's with dots for underscores."""

from __future__ import annotations

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import BOOLEAN, Settings, int32, int64, optional, setting
from kreplica.common.types import INT16_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(Settings):
    """Times are in ms unless the name says otherwise, sizes in bytes. Defaults are Kafka's.

    See BrokerHeartbeatManager for `broker_session_*`. Raises InvalidConfig.
    """

    broker_session_timeout_ms: int = setting(
        9_000, int32(1), "Fence a broker after this long without a heartbeat."
    )
    broker_session_hint_ms: int = setting(
        1_000, int32(1), "The same after the broker's last connection was closed.", is_ours=True
    )
    # The broker has to find the new controller, which may take a fetch timeout of the quorum.
    broker_session_failover_ms: int | None = setting(
        None,
        optional(int32(0)),
        "The same after a controller's fail-over, until the broker's first heartbeat. Default: a session.",
        is_ours=True,
    )
    broker_session_max_timeout_ms: int = setting(
        72_000,
        int32(1),
        "Maximum session of a broker that was repeatedly fenced too early.",
        is_ours=True,
    )
    broker_session_decay_ms: int = setting(
        60_000,
        int32(0),
        "Undo one lengthening of the session after this long without a false alarm.",
        is_ours=True,
    )

    auto_leader_rebalance_enable: bool = setting(True, BOOLEAN, "Return leadership to preferred replicas.")
    leader_imbalance_check_interval_seconds: int = setting(
        300, int64(1), "How often to check the balance of leaders."
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10, int32(0), "Rebalance a broker that does not lead this percentage of its preferred partitions."
    )
    unclean_leader_election_interval_ms: int = setting(
        300_000,
        int64(1),
        "How often to elect leaders uncleanly for partitions without one, if that is enabled.",
    )
    metadata_max_idle_interval_ms: int = setting(
        500, int32(0), "How often an idle active controller writes a NoOpRecord. 0: never."
    )
    default_replication_factor: int = setting(
        1, int32(1, INT16_MAX), "Replicas of a topic that is created without a replication factor."
    )
    num_partitions: int = setting(
        1, int32(1), "Partitions of a topic that is created without a number of partitions."
    )

    def check_together(self) -> None:
        """Raise InvalidConfig unless hint <= session <= longest session."""
        session_ms = self.broker_session_timeout_ms
        if self.broker_session_hint_ms > session_ms:
            raise InvalidConfig(
                f"broker.session.hint.ms={self.broker_session_hint_ms} is above"
                f" broker.session.timeout.ms={session_ms}"
            )
        if self.broker_session_max_timeout_ms < session_ms:
            raise InvalidConfig(
                f"broker.session.max.timeout.ms={self.broker_session_max_timeout_ms} is below"
                f" broker.session.timeout.ms={session_ms}"
            )
