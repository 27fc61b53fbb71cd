"""What a node answers while it starts."""

from __future__ import annotations

from typing import Any

from kreplica.common.errors import BrokerNotAvailable, UnknownTopicOrPartition
from kreplica.common.future import Future
from kreplica.common.messages.data import MetadataRequest, MetadataRequestTopic
from kreplica.sim.nodes.node_cluster import NodeCluster


def _ask(cluster: NodeCluster, node_id: int) -> Future[Any] | None:
    node = cluster.node(node_id)
    named: Any = MetadataRequestTopic(topic_id=None, name="orders")  # type: ignore[arg-type]
    request = MetadataRequest(
        topics=(named,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return None if node is None else node.handle(request)


def test_a_starting_broker_calls_no_topic_unknown() -> None:
    cluster = NodeCluster(brokers=3, seed=5)
    cluster.boot()
    cluster.result(cluster.client.admin.create_topic("orders", partitions=1, replication_factor=3))
    cluster.kill(3)
    cluster.start(3)
    answers: list[Future[Any]] = []

    def knows() -> bool:
        answer = _ask(cluster, 3)
        if answer is not None:
            answers.append(answer)
        return answer is not None and answer.done() and answer.exception() is None

    assert cluster.run_until(knows)
    *refused, answered = answers
    assert refused
    assert all(isinstance(each.exception(), BrokerNotAvailable) for each in refused)
    (topic,) = answered.result().topics
    assert topic.error_code != UnknownTopicOrPartition.code
