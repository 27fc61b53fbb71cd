"""RaftConfig: the settings of a metadata quorum, named as Kafka's with dots for underscores.

Membership: the roles that a node may have in its quorum. Both are immutable; any thread may read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import BOOLEAN, Settings, int32, int64, optional, setting
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.raft.batch_accumulator import MAX_BATCH_SIZE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig(Settings):
    """Times are in ms, sizes in bytes. Defaults are Kafka's where Kafka has the setting.

    Raises InvalidConfig for times with which no election could succeed, and for batches too large for a log.
    """

    PREFIX: ClassVar[str] = "controller."
    PREFIX_OF: ClassVar[str] = "quorum_"

    quorum_election_timeout_ms: int = setting(
        1_000, int32(1), "A voter without a leader waits up to twice this before it requests votes."
    )
    quorum_fetch_timeout_ms: int = setting(
        2_000, int32(1), "A follower starts an election after this long without an answer from its leader."
    )
    quorum_election_backoff_max_ms: int = setting(
        1_000, int32(0), "Maximum pause of a candidate that lost an election."
    )
    quorum_append_linger_ms: int = setting(
        25,
        int32(0),
        "How long to collect appends while earlier ones are not committed; the first never waits.",
    )
    quorum_request_timeout_ms: int = setting(2_000, int32(1), "Timeout of requests of the quorum.")
    quorum_retry_backoff_ms: int = setting(20, int32(0), "Pause before a request is retried.")
    # Well below the fetch timeout; otherwise a quorum without writes holds one election after another.
    quorum_fetch_wait_max_ms: int | None = setting(
        None,
        optional(int32(0)),
        "How long a leader without new records holds a fetch; at most half of the fetch timeout, and below"
        " the request timeout. Default: a third of the one or two thirds of the other, whichever is less.",
        is_ours=True,
    )
    quorum_fetch_max_bytes: int = setting(8 << 20, int32(1), "Maximum size of one fetch of the log.")
    quorum_fetch_snapshot_max_bytes: int = setting(
        8 << 20, int32(1), "Maximum size of one fetch of a snapshot."
    )
    quorum_max_batch_size_bytes: int = setting(
        MAX_BATCH_SIZE_BYTES,
        int32(1, MAX_BATCH_SIZE_BYTES),
        "Maximum size of a batch in the metadata log; at most metadata.log.segment.bytes.",
        is_ours=True,
    )
    quorum_auto_join_enable: bool = setting(
        False, BOOLEAN, "A controller that is an observer becomes a voter automatically (KIP-853)."
    )
    metadata_log_cleanup_interval_ms: int = setting(
        60_000,
        int64(1),
        "How often to look for old snapshots, and the log below them, to delete.",
        is_ours=True,
    )

    def check_together(self) -> None:
        """Raise InvalidConfig if the leader would hold a fetch for longer than a follower waits for it."""
        if self.fetch_wait_max_ms > self.quorum_fetch_timeout_ms // 2:
            raise InvalidConfig(
                f"controller.quorum.fetch.wait.max.ms={self.fetch_wait_max_ms} is above half of"
                f" controller.quorum.fetch.timeout.ms={self.quorum_fetch_timeout_ms}: lower the former"
            )
        if self.fetch_wait_max_ms >= self.quorum_request_timeout_ms:
            raise InvalidConfig(
                f"controller.quorum.fetch.wait.max.ms={self.fetch_wait_max_ms} is not below"
                f" controller.quorum.request.timeout.ms={self.quorum_request_timeout_ms}: idle fetches would"
                " time out, and followers start elections"
            )

    def require_log_takes_batches(self, log_segment_bytes: int) -> None:
        """Raise InvalidConfig if a batch may be larger than a segment of the metadata log.

        A leader that appends such a batch would fail.
        """
        if self.quorum_max_batch_size_bytes > log_segment_bytes:
            raise InvalidConfig(
                f"controller.quorum.max.batch.size.bytes={self.quorum_max_batch_size_bytes} is above"
                f" metadata.log.segment.bytes={log_segment_bytes}"
            )

    @property
    def fetch_wait_max_ms(self) -> int:
        """How long a leader without new records holds a fetch, in ms."""
        if self.quorum_fetch_wait_max_ms is None:
            return min(self.quorum_fetch_timeout_ms // 3, self.quorum_request_timeout_ms * 2 // 3)
        return self.quorum_fetch_wait_max_ms

    @property
    def check_quorum_timeout_ms(self) -> int:
        """A leader resigns if a majority has not fetched for this long, in ms (KAFKA-15489)."""
        return self.quorum_fetch_timeout_ms * 3 // 2

    @property
    def begin_quorum_epoch_timeout_ms(self) -> int:
        """How often a leader announces itself to a voter that does not fetch, in ms."""
        return max(self.quorum_fetch_timeout_ms // 2, 1)


def _every_node(_: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Which roles a node may have in the quorum, and how other nodes reach it.

    `can_be_voter`: the node is a controller (Kafka's `canBecomeVoter`). A voter that is not one replicates
    and grants votes but never stands for election, since it would lead without a controller.

    `endpoints`: where the node listens for the quorum, the default listener first; empty if nodes reach each
    other by id. `listener`: the name of the default listener; "" for the first of each voter. `auto_join`: an
    observer that can be a voter asks to become one (controller.quorum.auto.join.enable, KIP-853).
    `bootstrap`: the ids under which the transport reaches controller.quorum.bootstrap.servers.
    `is_controller(node_id)`: whether another node is a controller.
    """

    can_be_voter: bool = True
    endpoints: tuple[VoterEndpoint, ...] = ()
    listener: str = ""
    auto_join: bool = False
    bootstrap: tuple[int, ...] = ()
    is_controller: Callable[[int], bool] = _every_node
