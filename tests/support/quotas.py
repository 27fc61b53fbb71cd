"""Sets quotas on running nodes, and asks them as one user or another."""

from __future__ import annotations

from collections.abc import Mapping

from kreplica.cli.client_config import ClientConfig
from kreplica.cli.kafka_connection import KafkaConnection
from kreplica.common.messages.quotas import (
    AlterClientQuotasRequest,
    AlterQuotaEntryData,
    QuotaEntityData,
    QuotaOpData,
)
from kreplica.common.wire import error_of
from kreplica.runtime.listener import PLAIN
from kreplica.security.client_login import ClientLogin
from kreplica.security.sasl import Secret
from tests.support.polling import wait_until
from tests.support.tcp_cluster import TcpCluster

IN_PLAIN = ClientConfig({})


def set_quotas(cluster: TcpCluster, entity: Mapping[str, str | None], **quotas: float | None) -> None:
    """Set quotas of an entity, None removes one; return when all nodes have them."""
    entry = AlterQuotaEntryData(
        entity=tuple(QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()),
        ops=tuple(
            QuotaOpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()
        ),
    )
    with KafkaConnection(*next(iter(cluster.addresses.values())), IN_PLAIN) as node:
        [result] = node.ask(AlterClientQuotasRequest(entries=(entry,))).entries
    error = error_of(result.error_code, result.error_message)
    if error is not None:
        raise error
    nodes = [each.node for each in cluster.nodes.values()]
    key = tuple(sorted(entity.items()))

    def is_known() -> bool:
        known = [each.loader.published.quotas.get(key, {}) for each in nodes]
        return all(each.get(name) == value for each in known for name, value in quotas.items())

    wait_until(is_known, "all nodes know the quota")


def connection_of(cluster: TcpCluster, node_id: int, user: str) -> KafkaConnection:
    """Connect to a node's listener for clients, by PLAIN; the password is the user's name."""
    login = ClientConfig({}, ClientLogin(PLAIN, user, Secret(user)))
    return KafkaConnection(*cluster.client_addresses[node_id], login)


def muted(cluster: TcpCluster) -> int:
    """Return how many connections to the nodes are muted."""
    servers = [server for node in cluster.nodes.values() for server in node.servers]
    return sum(connection.is_muted for server in servers for connection in list(server.connections))
