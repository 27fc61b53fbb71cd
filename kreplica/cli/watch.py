"""`kreplica watch`: print the changes of a cluster's metadata, from a running quorum or a log on disk.

A running quorum is asked with Kafka's Fetch and FetchSnapshot, as by an observer without an id; the leader
answers committed records only. A log on disk may be that of a running node; its last changes may not be
committed yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kreplica.cli.isr_history import MetadataFiles
from kreplica.cli.kafka_connection import KafkaConnection, any_broker
from kreplica.cli.output import print_json
from kreplica.cli.quorum import described_quorum
from kreplica.common.closing import Closing
from kreplica.common.errors import KreplicaError, NetworkException
from kreplica.common.types import Uuid
from kreplica.common.wire import error_of
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.image_format import ROOT, OffsetAndEpoch, check_path
from kreplica.metadata.image_paths import TreeChange
from kreplica.metadata.metadata_loader import TreeReplay
from kreplica.raft.raft_messages import (
    FetchPosition,
    make_fetch_request,
    make_snapshot_request,
    offset_and_epoch_in,
    only_partition,
)
from kreplica.raft.voter_set import ReplicaKey

# Fetches with this id change nothing on the leader.
OBSERVER = ReplicaKey(-1, Uuid.ZERO)
DESCRIBE_CLUSTER = 60
FETCH_BYTES = 1 << 20
# How long a fetch waits at the leader, and how often files and a quorum without a leader are looked at.
WAIT_MS = 500
LOOK_S = 0.2
# How long to try at first, and how long to wait for a leader once one has answered.
CONNECT_S = 5.0
NO_LEADER_S = 30.0


def run(changes: Iterator[TreeChange], path: str, as_json: bool) -> int:
    """Print the changes at `path` and below it; returns the exit code."""
    below = path if path == ROOT else f"{path}/"
    for change in changes:
        if change.path == path or change.path.startswith(below):
            if as_json:
                print_json(change._asdict())
            else:
                print(described(change), flush=True)
    return 0


def described(change: TreeChange) -> str:
    """Return the change as a line: the version, the path, and the fields that differ."""
    return f"{change.version:>8}  {change.path}  {difference_of(change.old, change.new)}"


def difference_of(old: Any, new: Any) -> str:
    """Return what differs between two values as text."""
    if old is None or new is None:
        return "deleted" if new is None else f"created {_brief(new)}"
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{old} -> {new}"
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return "  ".join(f"{name} {_brief(old.get(name))} -> {_brief(new.get(name))}" for name in names)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name}={_brief(each)}" for name, each in value.items())
    return str(value).replace("'", "")


def checked_path(path: str) -> str:
    """Return the path. Raises ValueError if it is invalid."""
    try:
        check_path(path)
    except KreplicaError as error:
        raise ValueError(str(error)) from error
    return path


# ---- a metadata log on disk -------------------------------------------------------------------------------


def of_directory(directory: Path, *, from_beginning: bool, timeout_s: float | None) -> Iterator[TreeChange]:
    """Yield the changes in the metadata log at `directory`, as they are appended.

    `from_beginning`: begin with its oldest change. Ends after `timeout_s` seconds without a change.
    """
    files, replay = MetadataFiles(directory), TreeReplay()
    earlier = list(files.changes(replay))
    if from_beginning:
        yield from earlier
    changed_at = time.monotonic()
    while timeout_s is None or time.monotonic() - changed_at < timeout_s:
        for change in files.changes(replay):
            changed_at = time.monotonic()
            yield change
        time.sleep(LOOK_S)


# ---- a running quorum -------------------------------------------------------------------------------------


def of_quorum(
    bootstrap: str, *, from_beginning: bool, timeout_s: float | None, replay: TreeReplay | None = None
) -> Iterator[TreeChange]:
    """Yield the committed changes of a running quorum. Follows its leader.

    `from_beginning`: begin with the oldest change that the leader has. `replay` makes the changes. Ends after
    `timeout_s` seconds without a change; with 0, at the high watermark. Raises NetworkException if no leader
    of the quorum answers within CONNECT_S seconds, or later within NO_LEADER_S.
    """
    replay = TreeReplay() if replay is None else replay
    is_caught_up, patience_s = False, CONNECT_S
    changed_at = led_at = time.monotonic()
    while timeout_s is None or not is_caught_up or time.monotonic() - changed_at < timeout_s:
        try:
            with _Leader(bootstrap) as leader:
                while timeout_s is None or not is_caught_up or time.monotonic() - changed_at < timeout_s:
                    changes, is_at_end = leader.fetch(replay)
                    led_at, patience_s = time.monotonic(), NO_LEADER_S
                    if changes:
                        changed_at = led_at
                    if from_beginning or is_caught_up:
                        yield from changes
                    is_caught_up = is_caught_up or is_at_end
        except (KreplicaError, OSError) as error:
            if time.monotonic() - led_at > patience_s:
                raise NetworkException(f"no leader of the quorum answers at {bootstrap}: {error}") from error
            time.sleep(LOOK_S)


class _Leader(Closing):
    """A connection to the quorum's leader. Raises NetworkException and other errors if no node leads."""

    def __init__(self, bootstrap: str) -> None:
        with any_broker(bootstrap) as broker:
            kind: Any = broker.newest(DESCRIBE_CLUSTER, (0, 1))
            cluster = broker.ask(kind(include_cluster_authorized_operations=False))
            answer = described_quorum(broker)
        self._cluster_id = cluster.cluster_id
        partition = answer.topics[0].partitions[0]
        self._epoch = int(partition.leader_epoch)
        addresses = [
            (listener.host, listener.port)
            for node in getattr(answer, "nodes", ())
            if node.node_id == partition.leader_id
            for listener in node.listeners
        ]
        # A node without a listener for controllers alone, such as a combined one of `kreplica.Cluster`.
        addresses += [
            (each.host, each.port) for each in cluster.brokers if each.broker_id == partition.leader_id
        ]
        if not addresses:
            raise NetworkException(f"the address of the quorum's leader {partition.leader_id} is unknown")
        self._connection = KafkaConnection(*addresses[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def fetch(self, replay: TreeReplay) -> tuple[list[TreeChange], bool]:
        """Return the next changes, and whether these are all for now."""
        offset, last_epoch = replay.end
        position = FetchPosition(self._epoch, offset, last_epoch, 0)
        request = make_fetch_request(
            self._cluster_id, OBSERVER, position, max_wait_ms=WAIT_MS, max_bytes=FETCH_BYTES
        )
        answer = self._checked(self._connection.ask(request))
        snapshot_id = offset_and_epoch_in(answer.snapshot_id)
        if snapshot_id is not None:
            data = self._snapshot(snapshot_id)
            return list(replay.load(decoded_batches(data), snapshot_id)), False
        mark = int(answer.high_watermark)
        batches = [batch for batch in decoded_batches(answer.records or b"") if batch.last_offset < mark]
        changes = [change for batch in batches for change in replay.replay(batch)]
        return changes, replay.end.offset >= mark >= 0

    def _snapshot(self, snapshot_id: OffsetAndEpoch) -> bytes:
        data = b""
        size = 1
        while len(data) < size:
            request = make_snapshot_request(
                self._cluster_id, OBSERVER, self._epoch, snapshot_id, len(data), FETCH_BYTES
            )
            answer = self._checked(self._connection.ask(request))
            size = int(answer.size)
            data += bytes(answer.unaligned_records or b"")
        return data

    @staticmethod
    def _checked(answer: Any) -> Any:
        error = error_of(answer.error_code)
        if error is None:
            partition = only_partition(answer)
            error = error_of(partition.error_code)
            if error is None:
                return partition
        raise error
