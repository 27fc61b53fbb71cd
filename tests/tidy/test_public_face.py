"""What users import is pinned: a name that goes or changes is a decision, not an accident."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

import kreplica
from tests.tidy.tree import ROOT

NAMES = {
    *("Cluster", "KreplicaError", "Log", "LogAppendInfo", "Record", "RecordBatch", "errors"),
    *(
        "AppendResult",
        "Partition",
        "RecordMetadata",
        "ReplicaManager",
        "Security",
        "Simulation",
        "TopicPartition",
        "aio",
        "embedding",
        "enable_logging",
    ),
}

MEMBERS = {
    "Log": {
        *("open", "close", "path", "config"),
        *("append", "append_one", "append_batch", "append_arrow"),
        *("read", "batches", "offset_for_timestamp"),
        *("arrow_batches", "column_reader", "to_arrow", "to_numpy", "to_pandas", "to_polars"),
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
    "ReplicaManager": {"broker_id", "metrics", "partitions", "append", "delete_records"},
    "ReplicaNode": {"manager", "partition", "append", "read", "handle", "apply", "close"},
}


def members_of(kind: type) -> set[str]:
    members = {*dir(kind), *vars(kind).get("__annotations__", {})}
    return {member for member in members if not member.startswith("_")}


def test_names_of_the_package() -> None:
    assert set(kreplica.__all__) == NAMES
    assert {name for name in dir(kreplica) if not name.startswith("__")} == NAMES
    assert not [name for name in NAMES if not hasattr(kreplica, name)]


def modules_after(program: str) -> set[str]:
    """Return the modules, but for those of every Python program, that a program has loaded at its end."""
    report = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "

    def loaded(source: str) -> set[str]:
        command = [sys.executable, "-c", report + source]
        run = subprocess.run(
            command, capture_output=True, check=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        return set(run.stderr.split())

    return loaded(program) - loaded("pass")


# What a program starts with, and the packages that it may load for that.
STARTS = {
    "import kreplica": set(),
    "import kreplica; kreplica.errors": set(),
    "import kreplica; kreplica.Log": {"cramjam"},
    "import kreplica; kreplica.Cluster": {"cramjam", "lmdb"},
}
# Modules that take long to import and that no start needs.
LATE = {
    *("asyncio", "dataclasses", "difflib", "hashlib", "inspect", "multiprocessing", "socket", "subprocess"),
    *("kreplica.log.diff", "kreplica.log.repair", "kreplica.log.verify", "kreplica.runtime.tcp_server"),
    "kreplica.sim",
}


@pytest.mark.parametrize(("program", "packages"), STARTS.items())
def test_a_start_imports_only_what_it_uses(program: str, packages: set[str]) -> None:
    loaded = modules_after(program)
    of_cython = {"cython_runtime", *(name for name in loaded if name.startswith("_cython_"))}
    first_names = {name.split(".")[0] for name in loaded} - of_cython
    assert first_names - sys.stdlib_module_names - {"kreplica"} == packages
    assert LATE & loaded == set()


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "--help"], ["serve", "-h"]], ids=" ".join)
def test_help_imports_no_engine_and_reads_no_options(arguments: list[str]) -> None:
    loaded = modules_after(f"sys.argv = {['kreplica', *arguments]}; from kreplica.cli import main; main()")
    assert "typer" in loaded
    assert {"confluent_kafka", "cramjam", "lmdb", "pyarrow", "pydantic", "rich"} & loaded == set()
    frame = {"kreplica", "kreplica.cli", "kreplica.cli.app", "kreplica.common", "kreplica.common.errors"}
    frame |= {"kreplica.cli.operator_commands", "kreplica.cli.options"}
    assert {name for name in loaded if name.startswith("kreplica")} <= frame | {
        "kreplica._core",
        "kreplica._core.status",
    }


def test_the_package_alone_imports_none_of_its_modules() -> None:
    assert {name for name in modules_after("import kreplica") if name.startswith("kreplica")} == {"kreplica"}


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
