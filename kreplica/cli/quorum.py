"""`kreplica quorum`: show the metadata quorum of a cluster, and change its voters (KIP-595, KIP-853)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from kreplica.cli.kafka_connection import KafkaConnection, any_broker
from kreplica.cli.output import Fact, print_facts, say
from kreplica.common.errors import UnknownServerError
from kreplica.common.message import in_version, structure_of
from kreplica.common.messages.quorum import (
    AddRaftVoterRequest,
    Listener,
    RemoveRaftVoterRequest,
)
from kreplica.common.types import METADATA_TOPIC, Uuid
from kreplica.common.wire import error_of, topic_id_of, uuid_of

DESCRIBE_QUORUM = 55
DESCRIBE_CLUSTER = 60
CHANGE_TIMEOUT = timedelta(seconds=15)
COLUMNS = ("node", "role", "log_end_offset", "lag", "last_fetch_timestamp", "listeners", "directory")


def describe(bootstrap: str, as_json: bool) -> int:
    """Print the leader, the voters and the observers; returns the exit code."""
    with any_broker(bootstrap) as broker:
        answer = described_quorum(broker)
    partition = answer.topics[0].partitions[0]
    facts = ({"leader_epoch": partition.leader_epoch, **fact} for fact in _replicas(answer, partition))
    title = f"leader {partition.leader_id}  epoch {partition.leader_epoch}  HW {partition.high_watermark}"
    print_facts(title, COLUMNS, facts, as_json)
    return 0


def add_voter(
    bootstrap: str, cluster_id: str | None, node_id: int, directory: str, listeners: Sequence[str]
) -> int:
    """Make a running observer a voter."""
    # Kafka 4.0, which has version 0 only, knows this request as well.
    change = in_version(
        AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout=CHANGE_TIMEOUT,
            voter_id=node_id,
            voter_directory_id=uuid_of(Uuid.parse(directory)),
            listeners=tuple(map(parse_listener, listeners)),
        ),
        0,
    )
    return _change(bootstrap, change, f"node {node_id} is a voter")


def remove_voter(bootstrap: str, cluster_id: str | None, node_id: int, directory: str) -> int:
    """Remove a voter from the quorum."""
    change = RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=node_id, voter_directory_id=uuid_of(Uuid.parse(directory))
    )
    return _change(bootstrap, change, f"node {node_id} is not a voter any longer")


def parse_listener(text: str) -> Listener:
    """Parse a listener, `NAME://host:port`. Raises ValueError."""
    name, found, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not found or not name or not colon or not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"{text!r} is not NAME://host:port")
    make: Any = Listener
    listener: Listener = make(name=name, host=host.strip("[]"), port=int(port))
    return listener


def _change(bootstrap: str, request: Any, done: str) -> int:
    with any_broker(bootstrap) as broker:
        broker.newest(request.__api_key__, (request.__version__,))
        asked: Any = broker.newest(DESCRIBE_CLUSTER, (0, 1))
        cluster = broker.ask(asked(include_cluster_authorized_operations=False))
        answer = broker.ask(request)
    error = error_of(answer.error_code, answer.error_message)
    if error is not None:
        raise error
    say(f"{done}, in cluster {cluster.cluster_id} at {bootstrap}")
    return 0


def described_quorum(broker: KafkaConnection) -> Any:
    """Return the answer to DescribeQuorum. Raises the error that it contains."""
    kind: Any = broker.newest(DESCRIBE_QUORUM, (1, 2))
    topic: Any = structure_of(kind, "topics")
    partition: Any = structure_of(topic, "partitions")
    wanted = topic(topic_name=METADATA_TOPIC, partitions=(partition(partition_index=0),))
    answer = broker.ask(kind(topics=(wanted,)))
    error = error_of(answer.error_code, getattr(answer, "error_message", None))
    if error is None and not (answer.topics and answer.topics[0].partitions):
        error = UnknownServerError("an answer without the quorum's partition")
    if error is None:
        partition = answer.topics[0].partitions[0]
        error = error_of(partition.error_code, getattr(partition, "error_message", None))
    if error is not None:
        raise error
    return answer


def _replicas(answer: Any, partition: Any) -> Iterator[Fact]:
    ends = {each.replica_id: each.log_end_offset for each in partition.current_voters}
    leader_end = ends.get(partition.leader_id, -1)
    # Version 1 has neither the nodes' listeners nor their directories.
    listeners = {
        node.node_id: [f"{each.name}://{each.host}:{each.port}" for each in node.listeners]
        for node in getattr(answer, "nodes", ())
    }
    for role, replicas in (("voter", partition.current_voters), ("observer", partition.observers)):
        for each in replicas:
            directory = topic_id_of(getattr(each, "replica_directory_id", None))
            yield {
                "node": each.replica_id,
                "role": "leader" if each.replica_id == partition.leader_id else role,
                "log_end_offset": each.log_end_offset,
                "lag": leader_end - each.log_end_offset if each.log_end_offset >= 0 else None,
                "last_fetch_timestamp": each.last_fetch_timestamp,
                "last_caught_up_timestamp": each.last_caught_up_timestamp,
                "listeners": listeners.get(each.replica_id, []),
                "directory": None if directory == Uuid.ZERO else str(directory),
            }
