"""What users import is pinned: a name that goes or changes is a decision, not an accident."""

from __future__ import annotations

import inspect
import subprocess
import sys

import kreplica

NAMES = {
    *("Cluster", "KreplicaError", "Log", "LogAppendInfo", "Record", "RecordBatch", "errors"),
    *(
        "AppendResult",
        "Partition",
        "RecordMetadata",
        "ReplicaManager",
        "Simulation",
        "TopicPartition",
        "aio",
        "embedding",
    ),
}

MEMBERS = {
    "Log": {
        *("open", "close", "path", "config"),
        *("append", "append_batch", "append_arrow"),
        *("read", "batches", "offset_for_timestamp"),
        *("arrow_batches", "column_reader", "to_arrow"),
        *("log_start_offset", "log_end_offset", "high_watermark", "last_stable_offset", "flush_offset"),
        *("size", "damage", "damages", "recovery"),
        *("open_transactions", "abort_transaction"),
        *("flush", "roll", "truncate_to", "delete_records", "delete_old_segments", "compact"),
    },
    "AppendResult": {"batches", "topic", "partition", "base_offset", "last_offset", "record_count"},
    "Record": {"key", "value", "headers", "offset", "timestamp", "timestamp_type"},
}


EMBEDDING = {
    *("CONTROLLER_ID", "ClusterState", "Controller", "FrameTransport", "LeaderAndIsr", "LocalNetwork"),
    *("Partition", "PartitionResponse", "ReplicaManager", "ReplicaNode", "TopicPartition", "Transport"),
}
EMBEDDING_MEMBERS = {
    "Controller": {
        *("add_broker", "remove_broker", "create_topic", "elect"),
        *("state", "subscribe", "unsubscribe", "handle", "close"),
    },
    "FrameTransport": {"send", "serve", "receive", "connection_closed", "watch_connections", "close"},
    "Partition": {
        *("topic_partition", "replicas", "is_leader", "leader", "leader_epoch", "partition_epoch"),
        *("isr", "isr_history", "why_not_in_isr", "is_under_replicated", "is_under_min_isr", "is_damaged"),
        *("log_start_offset", "high_watermark", "log_end_offset"),
        *("fetch_records", "fetch_offset_for_timestamp"),
    },
    "ReplicaNode": {"manager", "partition", "append", "read", "handle", "apply", "close"},
}


def members_of(kind: type) -> set[str]:
    members = {*dir(kind), *vars(kind).get("__annotations__", {})}
    return {member for member in members if not member.startswith("_")}


def test_names_of_the_package() -> None:
    assert set(kreplica.__all__) == NAMES
    assert {name for name in dir(kreplica) if not name.startswith("__")} == NAMES
    assert not [name for name in NAMES if not hasattr(kreplica, name)]


def test_the_protocols_messages_are_imported_only_when_they_are_needed() -> None:
    program = "import sys, kreplica; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"kio", "pyarrow", "uvloop", "pyspark"}.isdisjoint(run.stdout.split())


def test_names_of_its_classes() -> None:
    for name, members in MEMBERS.items():
        assert members_of(getattr(kreplica, name)) == members


def test_names_for_embedding() -> None:
    assert set(kreplica.embedding.__all__) == EMBEDDING
    for name, members in EMBEDDING_MEMBERS.items():
        assert members_of(getattr(kreplica.embedding, name)) == members


def test_every_error_is_reached_and_distinct() -> None:
    for name, kind in vars(kreplica.errors).items():
        if inspect.isclass(kind) and issubclass(kind, kreplica.KreplicaError):
            assert kind.__name__ == name
            assert kind.__doc__
            assert isinstance(kind.code, int)
            assert isinstance(kind.retriable, bool)
