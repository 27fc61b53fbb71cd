"""`kreplica isr-history`: print the changes of leaders and ISRs that the metadata log contains.

The log has the offset and time of each change and survives restarts; it goes back to its oldest snapshot. It
is read from a node's files, also while the node runs, whose last changes may not be committed yet; or from
the leader of a running quorum (watch.of_quorum).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kreplica._core.batch_walk import SegmentWalk
from kreplica.cli.output import Fact, print_facts
from kreplica.common.errors import KreplicaError, OffsetOutOfRange
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY, LOG_SUFFIX, parse_file_name
from kreplica.log.verify.segment import FileBatches
from kreplica.metadata.batch_reader import Batch, decoded
from kreplica.metadata.image_paths import TreeChange, partition_at
from kreplica.metadata.metadata_loader import TreeReplay
from kreplica.raft.snapshots import parse_snapshot_name
from kreplica.runtime.storage import FileStorage

COLUMNS = (
    *("timestamp", "offset", "topic", "partition", "change", "leader", "leader_epoch", "isr", "left"),
    "joined",
)


def run(
    changes: Iterator[TreeChange],
    replay: TreeReplay,
    source: str,
    topic: str | None,
    partition: int | None,
    as_json: bool,
) -> int:
    """Print what `replay` found at `source`, oldest first; returns the exit code."""
    facts = (
        fact
        for fact in history(changes, replay)
        if topic in (None, fact["topic"]) and partition in (None, fact["partition"])
    )
    print_facts(source, COLUMNS, facts, as_json)
    return 0


def metadata_log_in(directory: Path) -> Path:
    """Return the metadata log's directory: `directory` or one inside it. Raises ValueError without a log."""
    for path in (directory.absolute(), directory / CLUSTER_METADATA_DIRECTORY):
        if path.name == CLUSTER_METADATA_DIRECTORY and any(path.glob(f"*{LOG_SUFFIX}")):
            return path
    raise ValueError(f"{directory} has no metadata log: name a node's log directory")


def history(changes: Iterator[TreeChange], replay: TreeReplay) -> Iterator[Fact]:
    """Yield the changes of leaders and ISRs among `changes`, which `replay` makes."""
    for change in changes:
        place = partition_at(change.path)
        value = change.new or change.old
        if place is None or (change.old and change.new and _shown(change.old) == _shown(change.new)):
            continue
        is_of_snapshot = change.version < replay.snapshot_end
        kind = "changed" if change.old else "snapshot" if is_of_snapshot else "created"
        before = value["isr"] if change.old is None else change.old["isr"]
        after = [] if change.new is None else change.new["isr"]
        yield {
            "timestamp": change.timestamp_ms,
            "offset": change.version,
            "topic": place.topic,
            "partition": place.partition,
            "change": kind if change.new else "deleted",
            "leader": NO_LEADER if value["leader"] is None else value["leader"],
            "leader_epoch": value["leader_epoch"],
            "isr": after,
            "left": [each for each in before if each not in after],
            "joined": [each for each in after if each not in before],
        }


def _shown(partition: dict[str, Any]) -> tuple[object, ...]:
    """What a change has to concern to be printed."""
    return partition["leader"], partition["leader_epoch"], set(partition["isr"])


class MetadataFiles:
    """Reads the metadata log at `directory`, from its first snapshot or record on, and again as it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def changes(self, replay: TreeReplay) -> Iterator[TreeChange]:
        """Replay what the log has since the last call, and yield the changes.

        Raises CorruptMessage and similar errors, and OffsetOutOfRange if the log no longer has the next
        record.
        """
        names = [path.name for path in self._directory.iterdir()]
        segments = sorted(
            (int(name.removesuffix(LOG_SUFFIX)), name)
            for name in names
            if name.endswith(LOG_SUFFIX) and parse_file_name(name)
        )
        if not replay.end.offset and segments:
            yield from self._load(replay, names, segments[0][0])
        end = replay.end.offset
        if segments and segments[0][0] > end:
            raise OffsetOutOfRange(f"{self._directory}: the log begins at {segments[0][0]}, after {end}")
        for place, (_, name) in enumerate(segments):
            if place + 1 == len(segments) or segments[place + 1][0] > end:
                for batch in _batches(self._directory / name, may_be_cut=place + 1 == len(segments)):
                    yield from replay.replay(batch)

    def _load(self, replay: TreeReplay, names: list[str], first: int) -> Iterator[TreeChange]:
        snapshots = {found: name for name in names if (found := parse_snapshot_name(name)) is not None}
        before = sorted(each for each in snapshots if each.offset <= first)
        # A log that does not go back to an earlier snapshot has lost what is below the next one.
        start = (before[-1:] or (sorted(snapshots)[:1] if first else [])) or None
        if start is not None:
            batches = list(_batches(self._directory / snapshots[start[0]]))
            yield from replay.load(batches, start[0], max(batch.append_timestamp for batch in batches))


def _batches(path: Path, *, may_be_cut: bool = False) -> Iterator[Batch]:
    """Yield the batches of the file. Raises CorruptMessage and similar errors.

    `may_be_cut`: the last batch may be incomplete, because the node runs or was killed.
    """
    storage = FileStorage()
    with storage.open_region(str(path), max(1, storage.size(str(path))), writable=False) as region:
        found = FileBatches(SegmentWalk(region, judges_alone=True))
        for _, batch in found:
            if isinstance(batch, KreplicaError):
                raise batch
            yield decoded(batch)
        if found.error is not None and not may_be_cut and not found.rest_is_zero():
            raise found.error
