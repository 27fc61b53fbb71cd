"""Settings of the nodes of a cluster in one process: directories, roles and timeouts.

Nodes in one process notice at once when another one is gone, so sessions are short: see "Timeouts" in
docs/OPERATING.md for the figures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from kreplica.broker.node_config import BOTH, BrokerConfig, NodeConfig, Role
from kreplica.broker.node_settings import with_settings
from kreplica.client.arguments import LONGEST_MS
from kreplica.common.dataclass import dataclass, replace
from kreplica.common.errors import InconsistentClusterId, InvalidConfig, InvalidFile
from kreplica.common.json_file import parse_object
from kreplica.common.ports import Storage
from kreplica.controller.controller_config import ControllerConfig
from kreplica.coordinator.group_config import GroupConfig
from kreplica.raft.raft_config import RaftConfig
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.runtime.storage import FileStorage

LAYOUT_FILE = "kreplica.cluster.json"
LAYOUT_VERSION = 1
# More voters slow down every metadata commit.
MOST_COMBINED_VOTERS = 3
DEFAULT_REPLICATION_FACTOR = 3
# The ids of dedicated controllers start here.
FIRST_CONTROLLER_ID = 1001

RAFT = RaftConfig(
    quorum_election_timeout_ms=100,
    quorum_fetch_timeout_ms=500,
    quorum_election_backoff_max_ms=100,
    quorum_request_timeout_ms=250,
    quorum_retry_backoff_ms=5,
    quorum_append_linger_ms=0,
)
CONTROLLER = ControllerConfig(
    broker_session_timeout_ms=200,
    broker_session_hint_ms=75,
    broker_session_failover_ms=700,
    broker_session_max_timeout_ms=1_600,
    metadata_max_idle_interval_ms=5_000,
)
BROKER = BrokerConfig(
    broker_heartbeat_interval_ms=50,
    broker_heartbeat_timeout_ms=100,
    broker_registration_retry_backoff_ms=10,
    # Wait without limit for a quorum: nothing would restart a node that gave up.
    initial_broker_registration_timeout_ms=LONGEST_MS,
)
REPLICA = ReplicaConfig(
    # A follower hears of its leader's change a moment before the leader does.
    replica_fetch_backoff_ms=10,
    # Requests sent while the network is cut are lost; there is no TCP to resend them.
    replica_socket_timeout_ms=2_000,
    controller_socket_timeout_ms=2_000,
)
# Members in one process join at once or not at all, and a coordinator notices at once when one is gone.
GROUP = GroupConfig(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=20,
    group_consumer_min_session_timeout_ms=100,
    group_consumer_session_timeout_ms=3_000,
    group_consumer_min_heartbeat_interval_ms=10,
    group_consumer_heartbeat_interval_ms=50,
    group_consumer_assignment_interval_ms=0,
    group_share_min_session_timeout_ms=100,
    group_share_session_timeout_ms=3_000,
    group_share_min_heartbeat_interval_ms=10,
    group_share_heartbeat_interval_ms=50,
    group_share_assignment_interval_ms=0,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of a cluster, by id, with their roles."""

    cluster_id: str
    roles: Mapping[int, frozenset[Role]]

    @property
    def brokers(self) -> list[int]:
        return [node_id for node_id, roles in self.roles.items() if "broker" in roles]

    @property
    def controllers(self) -> list[int]:
        return [node_id for node_id, roles in self.roles.items() if "controller" in roles]


def new_layout(cluster_id: str, brokers: int, controllers: int) -> Layout:
    """Return a layout with brokers 1 to `brokers`. Raises InvalidConfig.

    `controllers`: the number of dedicated controllers. With 0 the first three brokers are controllers too, or
    only the first one if there are fewer than three.
    """
    if brokers < 1 or controllers < 0:
        raise InvalidConfig(
            f"a cluster needs at least 1 broker: brokers={brokers}, controllers={controllers}"
        )
    roles: dict[int, frozenset[Role]] = {}
    combined = 0 if controllers else MOST_COMBINED_VOTERS if brokers >= MOST_COMBINED_VOTERS else 1
    for node_id in range(1, brokers + 1):
        roles[node_id] = BOTH if node_id <= combined else frozenset({"broker"})
    for node_id in range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers):
        roles[node_id] = frozenset({"controller"})
    return Layout(cluster_id, roles)


def read_layout(directory: str) -> Layout | None:
    """Return the layout of the cluster in the directory, or None. Raises InvalidFile."""
    path = os.path.join(directory, LAYOUT_FILE)
    storage = FileStorage()
    if not storage.exists(path):
        return None
    fields: dict[str, Any] = parse_object(storage.read_file(path), path)
    nodes, cluster_id = fields.get("nodes"), fields.get("cluster_id")
    if fields.get("version") != LAYOUT_VERSION or not isinstance(cluster_id, str):
        raise InvalidFile(f"{path}: not a layout of version {LAYOUT_VERSION}")
    if not isinstance(nodes, dict) or not all(key.isdecimal() for key in nodes):
        raise InvalidFile(f"{path}: has no valid list of nodes")
    roles = {int(key): frozenset(value) for key, value in nodes.items() if isinstance(value, list)}
    if len(roles) != len(nodes) or not all(each and each <= BOTH for each in roles.values()):
        raise InvalidFile(f"{path}: a node has no role, or an unknown one")
    return Layout(cluster_id, roles)


def write_layout(directory: str, layout: Layout, storage: Storage) -> None:
    """Write the layout into the directory; must be done before a new node runs."""
    nodes = {str(node_id): sorted(roles) for node_id, roles in layout.roles.items()}
    fields = {"version": LAYOUT_VERSION, "cluster_id": layout.cluster_id, "nodes": nodes}
    text = json.dumps(fields, indent=1) + "\n"
    storage.write_file_atomically(os.path.join(directory, LAYOUT_FILE), text.encode())


def extended(layout: Layout, brokers: int) -> Layout:
    """Return the layout with brokers added up to `brokers`."""
    missing = range(1, brokers + 1)
    more = {node_id: frozenset[Role]({"broker"}) for node_id in missing if node_id not in layout.roles}
    return Layout(layout.cluster_id, {**layout.roles, **more}) if more else layout


def node_config(layout: Layout, node_id: int, directory: str, settings: Mapping[str, object]) -> NodeConfig:
    """Return the configuration of one node. Raises InvalidConfig for invalid settings."""
    config = NodeConfig(
        node_id=node_id,
        cluster_id=layout.cluster_id,
        directories=(os.path.join(directory, f"node-{node_id}"),),
        roles=layout.roles[node_id],
        raft=RAFT,
        controller=replace(
            CONTROLLER, default_replication_factor=min(len(layout.brokers), DEFAULT_REPLICATION_FACTOR)
        ),
        broker=BROKER,
        replica=REPLICA,
        group=GROUP,
    )
    return with_settings(config, settings)


def check_cluster_id(layout: Layout, cluster_id: str | None, directory: str) -> None:
    """Raises InconsistentClusterId if the directory belongs to another cluster than requested."""
    if cluster_id is not None and cluster_id != layout.cluster_id:
        raise InconsistentClusterId(f"{directory} belongs to cluster {layout.cluster_id}, not {cluster_id}")
