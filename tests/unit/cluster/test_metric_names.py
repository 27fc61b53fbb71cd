"""The names and tags of a cluster's metrics are Kafka's."""

from __future__ import annotations

from pathlib import Path

from kreplica.cluster import Cluster
from kreplica.common.metrics import Duration, Meter, MetricName

KAFKA = Path(__file__).parents[2] / "data" / "kafka-4.3" / "metrics.txt"
# What Kafka has no name for.
OURS = {
    "kafka.server:type=ReplicaManager,name=DamagedPartitionsCount",
    "kafka.server:type=ReplicaManager,name=DamageRepairsPerSec",
    "kafka.server:type=ReplicaManager,name=FailedDamageRepairsPerSec",
    # Kafka's before 4.0, and of its controller before KRaft.
    "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations,delayedOperation",
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation",
    "kafka.controller:type=KafkaController,name=ControllerFailoversPerSec",
    # The space of the disks, for alerts.
    "kafka.server:type=LogDirectory,name=TotalBytes,logDirectory",
    "kafka.server:type=LogDirectory,name=UsableBytes,logDirectory",
    # How long a fetch takes. Kafka reports it as the request latency of replica-fetcher-metrics.
    # Requests that took the native path, and those that Python decided, by the reason.
    "kafka.server:type=ProduceLane,name=TakenRequests",
    "kafka.server:type=ProduceLane,name=DeclinedRequests,reason",
    "kafka.server:type=FetchLane,name=TakenRequests",
    "kafka.server:type=FetchLane,name=DeclinedRequests,reason",
    # Answers of leaders that needed a decision, by its reason.
    "kafka.server:type=FetcherStats,name=DeclinedAnswers,brokerHost,brokerPort,clientId,reason",
    "kafka.server:type=FetcherStats,name=DeclinedPartitions,brokerHost,brokerPort,clientId,reason",
    "kafka.server:type=FetcherStats,name=requestTime,brokerHost,brokerPort,clientId",
    "kafka.server:type=FetcherStats,name=totalTime,brokerHost,brokerPort,clientId",
    # Kafka has it, too, and the recorded list does not.
    "kafka.server:type=Request,name=exempt-request-time",
    # Of the metadata on each node; Kafka has them in KafkaController and broker-metadata-metrics.
    "kafka.server:type=MetadataLoader,name=LastAppliedRecordOffset",
    "kafka.server:type=MetadataLoader,name=MetadataApplyErrorCount",
    "kafka.server:type=MetadataLoader,name=MetadataImageErrorCount",
}


def form(name: MetricName) -> str:
    return f"{name.group}:type={name.type},name={name.name}" + "".join(f",{tag}" for tag, _ in name.tags)


def test_names_and_tags_are_those_of_a_running_kafka() -> None:
    known = {line for line in KAFKA.read_text().splitlines() if not line.startswith("#")}
    with Cluster(2) as cluster:
        cluster.create_topic("orders", partitions=4, replication_factor=2)
        cluster.append("orders", [b"a"], partition=0).result(30)
        found = [(name, value) for node in cluster._nodes._running() for name, value in node.metrics]
    assert {form(name) for name, _ in found} - known - OURS == set()
    fetchers = {str(name) for name, _ in found if name.type == "FetcherStats"}
    assert any("clientId=ReplicaFetcherThread-0-2" in name for name in fetchers)
    # A count is no rate.
    rates = [value for name, value in found if name.name.endswith(("-rate", "-avg", "-max"))]
    assert rates
    assert not any(isinstance(value, (Meter, Duration)) for value in rates)
    states = {name.name for name, _ in found if name.type == "raft-metrics"}
    wanted = {line.split("name=")[1] for line in known if "type=raft-metrics" in line}
    assert states == wanted
