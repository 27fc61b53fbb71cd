"""The roles and settings of a simulated cluster's nodes; with these settings much happens in a short time.

No state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kreplica.broker.node_config import BOTH, BrokerConfig, NodeConfig, Role
from kreplica.broker.node_settings import with_settings
from kreplica.common.config import MetadataLogConfig
from kreplica.controller.controller_config import ControllerConfig
from kreplica.coordinator.group_config import GroupConfig
from kreplica.raft.raft_config import RaftConfig
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.broker_factory import CLUSTER_ID, LOG_CONFIG
from kreplica.sim.node import DIRECTORY

# The first id of dedicated controllers.
FIRST_CONTROLLER_ID = 1001
# More voters make every metadata commit slower.
MOST_COMBINED_VOTERS = 3

# Short timeouts, so that they expire within few events.
RAFT_CONFIG = RaftConfig(
    quorum_election_timeout_ms=100,
    quorum_fetch_timeout_ms=300,
    quorum_election_backoff_max_ms=100,
    quorum_append_linger_ms=5,
    quorum_request_timeout_ms=200,
    quorum_retry_backoff_ms=20,
    quorum_max_batch_size_bytes=4_096,
    metadata_log_cleanup_interval_ms=300,
)
CONTROLLER_CONFIG = ControllerConfig(
    broker_session_timeout_ms=300,
    broker_session_hint_ms=100,
    broker_session_max_timeout_ms=1_200,
    broker_session_decay_ms=2_000,
    leader_imbalance_check_interval_seconds=1,
    unclean_leader_election_interval_ms=300,
)
BROKER_CONFIG = BrokerConfig(
    broker_heartbeat_interval_ms=50,
    broker_heartbeat_timeout_ms=100,
    broker_registration_retry_backoff_ms=20,
)
REPLICA_CONFIG = ReplicaConfig(
    replica_lag_time_max_ms=300,
    replica_fetch_wait_max_ms=50,
    replica_fetch_backoff_ms=30,
    replica_socket_timeout_ms=150,
    replica_high_watermark_checkpoint_interval_ms=300,
)
GROUP_CONFIG = GroupConfig(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=50,
    offsets_load_buffer_size=4_096,
    offsets_topic_num_partitions=4,
    offsets_topic_segment_bytes=1 << 20,
)
# So small that a node which was away for a moment has to install a snapshot.
METADATA_LOG_CONFIG = MetadataLogConfig(
    log_segment_bytes=4_096,
    max_retention_bytes=1,
    max_retention_ms=200,
    log_max_record_bytes_between_snapshots=3_000,
)


def roles_of(brokers: int, controllers: int, standbys: int = 0) -> dict[int, frozenset[Role]]:
    """Return the roles of brokers 1 to `brokers` and of `controllers` plus `standbys` dedicated controllers.

    The ids of controllers start at 1001. With 0 controllers, the first three brokers (one, of fewer than
    three) are controllers, too.
    """
    combined = 0 if controllers else MOST_COMBINED_VOTERS if brokers >= MOST_COMBINED_VOTERS else 1
    roles: dict[int, frozenset[Role]] = {
        node_id: BOTH if node_id <= combined else frozenset({"broker"}) for node_id in range(1, brokers + 1)
    }
    for node_id in range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers + standbys):
        roles[node_id] = frozenset({"controller"})
    return roles


def node_config(
    node_id: int, roles: frozenset[Role], replication_factor: int, settings: Mapping[str, object]
) -> NodeConfig:
    """Return the configuration of a node; `settings` by Kafka's names. Raises InvalidConfig."""
    config = NodeConfig(
        node_id=node_id,
        cluster_id=CLUSTER_ID,
        directories=(DIRECTORY,),
        roles=roles,
        raft=RAFT_CONFIG,
        controller=dataclasses.replace(CONTROLLER_CONFIG, default_replication_factor=replication_factor),
        broker=BROKER_CONFIG,
        replica=REPLICA_CONFIG,
        group=GROUP_CONFIG,
        log=LOG_CONFIG,
        metadata_log=METADATA_LOG_CONFIG,
    )
    return with_settings(config, settings)
