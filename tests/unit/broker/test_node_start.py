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


def test_nodes_that_stop_together_do_not_wait_for_each_other() -> None:
    spent_ms = []
    for seed in range(10):
        cluster = NodeCluster(3, seed=seed)
        cluster.boot()
        before_ms = cluster.now_ms()
        left = [cluster.shut_down(node_id) for node_id in (1, 2, 3)]
        assert cluster.run_until(lambda left=left: all(each.done() for each in left), 10_000)
        spent_ms.append(cluster.now_ms() - before_ms)
    # A voter that has just voted waits for the new leader's word, which stops as well.
    assert sorted(spent_ms)[8] < 700
    assert max(spent_ms) < 1_500
