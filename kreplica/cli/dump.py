"""`kreplica dump`: print the contents of a log's files, file by file."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from kreplica._core.batch_walk import SegmentWalk
from kreplica._core.log_state import LogStanding, read_standing
from kreplica.cli.output import Fact, print_json, print_table
from kreplica.common.errors import KreplicaError
from kreplica.common.quorum_state import parse_quorum_state
from kreplica.coordinator.group_records import to_json as groups_to_json
from kreplica.coordinator.share_records import to_json as shares_to_json
from kreplica.coordinator.transaction_records import to_json as transactions_to_json
from kreplica.log.checkpoint import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
)
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY, STATE_FILE
from kreplica.log.log_directory import CleanShutdownFile
from kreplica.log.meta_properties import MetaPropertiesFile
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.producer_state_manager import parse_snapshot
from kreplica.log.transaction_index import parse_entries
from kreplica.log.verify.checks import used_bytes
from kreplica.log.verify.segment import FileBatches
from kreplica.metadata.control_records import control_to_json, decode_control
from kreplica.metadata.serde import decode, to_json
from kreplica.record import Record, RecordBatch
from kreplica.record.control import ControlRecordType, parse_control_key
from kreplica.runtime.storage import FileStorage

BATCH_COLUMNS = (
    *("position", "base_offset", "last_offset", "records", "size", "leader_epoch", "codec", "max_timestamp"),
    *("producer_id", "producer_epoch", "base_sequence", "transactional", "control", "problem"),
)
RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers", "control", "problem")
GROUP_COLUMNS = ("offset", "timestamp", "type", "version", "key", "data", "control", "problem")
METADATA_COLUMNS = ("offset", "timestamp", "type", "version", "data", "control", "problem")


def run(paths: Sequence[str], deep: bool, as_json: bool) -> int:
    """Print the files at `paths`, and those inside directories; returns the exit code."""
    found_problem = False
    for path in _files(paths):
        dump = _Facts(path, deep)
        if as_json:
            for fact in dump:
                print_json({"file": str(path), **fact})
        else:
            # A table of records leaves the batches out, which would take most of its columns.
            shown = (fact for fact in dump if not (deep and fact.get("what") == "batch"))
            print_table(str(path), _columns(path, deep), shown)
        found_problem |= dump.found_problem
    return 1 if found_problem else 0


def is_known(path: Path) -> bool:
    """Whether it is a directory or a file that can be dumped."""
    return path.is_dir() or _reader(path.name) is not None


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.is_file() and _reader(file.name))
        else:
            yield path


class _Facts:
    """Iterates over the facts of a file. Afterwards `found_problem` says whether one was a problem."""

    def __init__(self, path: Path, deep: bool) -> None:
        self._path = path
        self._deep = deep
        self.found_problem = False

    def __iter__(self) -> Iterator[Fact]:
        reader = _reader(self._path.name)
        assert reader is not None, self._path
        try:
            for fact in reader(str(self._path), self._deep):
                self.found_problem |= "problem" in fact
                yield fact
        except KreplicaError as error:
            self.found_problem = True
            yield {"problem": str(error)}


# ---- one reader for each kind of file --------------------------------------------------------------------

Reader = Callable[[str, bool], Iterator[Fact]]
# Decodes a key and a value.
ToJson = Callable[[bytes, "bytes | None"], "dict[str, object] | None"]

OF_COORDINATORS: Mapping[str, ToJson] = {
    "__consumer_offsets": groups_to_json,
    "__share_group_state": shares_to_json,
    "__transaction_state": transactions_to_json,
}


@dataclass(frozen=True)
class _Kind:
    name: re.Pattern[str]
    columns: Sequence[str]
    read: Reader


def _reader(name: str) -> Reader | None:
    return next((kind.read for kind in KINDS if kind.name.fullmatch(name)), None)


def _columns(path: Path, deep: bool) -> Sequence[str]:
    columns = next(kind.columns for kind in KINDS if kind.name.fullmatch(path.name))
    if not deep or columns is not BATCH_COLUMNS:
        return columns
    if _holds_metadata(path):
        return METADATA_COLUMNS
    return RECORD_COLUMNS if _of_coordinator(path) is None else GROUP_COLUMNS


def _holds_metadata(path: Path) -> bool:
    """Whether a file of batches belongs to the metadata log, or is a snapshot of it."""
    return path.suffix == ".checkpoint" or path.absolute().parent.name == CLUSTER_METADATA_DIRECTORY


def _of_coordinator(path: Path) -> ToJson | None:
    """Return what decodes the records of a coordinator's topic; None for a segment of another topic."""
    topic = path.absolute().parent.name.rpartition("-")[0]
    return OF_COORDINATORS.get(topic)


def _segment(path: str, deep: bool) -> Iterator[Fact]:
    storage = FileStorage()
    fact_of, decode_record = _record_fact, _of_coordinator(Path(path))
    if _holds_metadata(Path(path)):
        fact_of = _metadata_fact
    elif decode_record is not None:
        fact_of = partial(_coordinator_fact, decode_record)
    with storage.open_region(path, max(1, storage.size(path)), writable=False) as region:
        found = FileBatches(SegmentWalk(region, judges_alone=True))
        for position, batch in found:
            if isinstance(batch, KreplicaError):
                yield {"what": "problem", "position": position, "problem": str(batch)}
                continue
            yield _batch_fact(batch, position)
            if deep:
                yield from _record_facts(batch, position, fact_of)
        if found.error is not None:
            position, left = found.walk.position, found.walk.limit - found.walk.position
            if found.rest_is_zero():
                yield {"what": "unused", "position": position, "size": left}
            else:
                text = f"{found.error}; {left} bytes unread"
                yield {"what": "problem", "position": position, "problem": text}


def _batch_fact(batch: RecordBatch, position: int) -> Fact:
    fact: dict[str, object] = {
        "what": "batch",
        "position": position,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "records": batch.record_count,
        "size": batch.size,
        "leader_epoch": batch.leader_epoch,
        "crc": batch.crc,
        "codec": batch.codec,
        "timestamp_type": batch.timestamp_type,
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "delete_horizon_timestamp": batch.delete_horizon_ms,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": None,
    }
    try:
        batch.check()
        if batch.is_control and batch.record_count:
            fact["control"] = _control_name(batch.control_type)
    except KreplicaError as error:
        fact["problem"] = str(error)
    return fact


def _record_facts(
    batch: RecordBatch, position: int, fact_of: Callable[[Record, int, bool], Fact]
) -> Iterator[Fact]:
    try:
        for record in batch:
            yield fact_of(record, position, batch.is_control)
    except KreplicaError:
        return  # the line of the batch has it


def _record_fact(record: Record, position: int, is_control: bool) -> Fact:
    fact: dict[str, object] = {
        "what": "record",
        "position": position,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": [{"name": name, "value": value} for name, value in record.headers],
    }
    if is_control:
        fact["control"] = _control_name(parse_control_key(record.key))
    return fact


def _metadata_fact(record: Record, position: int, is_control: bool) -> Fact:
    """Return the decoded record of the metadata log, or the plain record if its kind is unknown."""
    plain = _record_fact(record, position, is_control)
    try:
        if not is_control:
            said = to_json(decode(record.value or b""))
        elif (message := decode_control(record.key, record.value)) is not None:
            said = {"version": message.version, "data": control_to_json(message)}
        else:
            return plain
    except KreplicaError as error:
        return {**plain, "problem": str(error)}
    return {name: plain[name] for name in plain if name not in ("key", "value", "headers")} | said


def _coordinator_fact(decode_record: ToJson, record: Record, position: int, is_control: bool) -> Fact:
    """Return the decoded record of a coordinator's topic, or the plain record if its kind is unknown."""
    plain = _record_fact(record, position, is_control)
    if is_control:
        return plain
    try:
        said = decode_record(record.key or b"", record.value)
    except KreplicaError as error:
        return {**plain, "problem": str(error)}
    if said is None:
        return plain
    return {name: plain[name] for name in plain if name not in ("key", "value", "headers")} | said


def _control_name(number: int | None) -> str:
    names = {kind.value: kind.name.lower() for kind in ControlRecordType}
    return names.get(-1 if number is None else number, str(number))


def _index(entry: struct.Struct, names: tuple[str, str]) -> Reader:
    """Return a reader of fixed-size entries. Offsets in them are relative to the base in the file's name."""

    def read(path: str, deep: bool) -> Iterator[Fact]:
        del deep
        data = FileStorage().read_file(path)
        base = int(Path(path).name.split(".")[0])
        whole = len(data) // entry.size * entry.size
        used = used_bytes(data, entry.size)
        for fields in entry.iter_unpack(data[: min(used, whole)]):
            yield {name: value + base * (name == "offset") for name, value in zip(names, fields, strict=True)}
        if used > whole:
            yield {"problem": f"{len(data) - whole} bytes behind the last entry, at {whole}"}

    return read


def _parsed(parse: Callable[[bytes, str], Iterable[Fact]]) -> Reader:
    """Return a reader that parses a small file as a whole."""

    def read(path: str, deep: bool) -> Iterator[Fact]:
        del deep
        yield from parse(FileStorage().read_file(path), path)

    return read


def _aborted(data: bytes, path: str) -> Iterable[Fact]:
    base = int(Path(path).name.split(".")[0])
    return [entry._asdict() for entry in parse_entries(data, path, base)]


def _producers(data: bytes, path: str) -> Iterable[Fact]:
    for entry in parse_snapshot(data, path):
        yield {
            "producer_id": entry.producer_id,
            "producer_epoch": entry.producer_epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_data_offset,
            "offset_delta": entry.last_offset_delta,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.current_txn_first_offset,
        }


def _offsets(data: bytes, path: str) -> Iterable[Fact]:
    for key, offset in OffsetCheckpointFile.parse(data, path).items():
        yield {"topic": key.topic, "partition": key.partition, "offset": offset}


def _epochs(data: bytes, path: str) -> Iterable[Fact]:
    return [entry._asdict() for entry in LeaderEpochCheckpointFile.parse(data, path)]


def _topic_id(data: bytes, path: str) -> Iterable[Fact]:
    return [{"topic_id": str(PartitionMetadataFile.parse(data, path))}]


def _properties(data: bytes, path: str) -> Iterable[Fact]:
    properties = MetaPropertiesFile.parse(data, path)
    directory_id = properties.directory_id
    return [
        {
            "cluster_id": properties.cluster_id,
            "node_id": properties.node_id,
            "directory_id": None if directory_id is None else str(directory_id),
        }
    ]


def _quorum_state(data: bytes, path: str) -> Iterable[Fact]:
    state = asdict(parse_quorum_state(data, path))
    return [state | {"voted_directory_id": str(parse_quorum_state(data, path).voted_directory_id)}]


def _clean_shutdown(data: bytes, path: str) -> Iterable[Fact]:
    return [{"broker_epoch": CleanShutdownFile.parse(data, path)}]


def _standing(data: bytes, path: str) -> Iterable[Fact]:
    standing = read_standing(data)
    return [{"problem": f"{path}: holds no whole state"} if standing is None else standing._asdict()]


def _kinds() -> Iterator[_Kind]:
    def kind(name: str, columns: Sequence[str], read: Reader) -> _Kind:
        return _Kind(re.compile(name), columns, read)

    snapshot = ("producer_id", "producer_epoch", "last_sequence", "last_offset", "last_timestamp")
    aborted = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    quorum = ("leader_epoch", "leader_id", "voted_id", "voted_directory_id", "current_voters", "data_version")
    yield kind(r"\d{20}\.log|(\d{20}-\d{10}|bootstrap)\.checkpoint", BATCH_COLUMNS, _segment)
    yield kind(r"\d{20}\.index", ("offset", "position"), _index(struct.Struct(">ii"), ("offset", "position")))
    yield kind(
        r"\d{20}\.timeindex", ("timestamp", "offset"), _index(struct.Struct(">qi"), ("timestamp", "offset"))
    )
    yield kind(r"\d{20}\.txnindex", aborted, _parsed(_aborted))
    yield kind(r"\d{20}\.snapshot", (*snapshot, "current_txn_first_offset"), _parsed(_producers))
    yield kind(re.escape(LEADER_EPOCH_CHECKPOINT), ("epoch", "start_offset"), _parsed(_epochs))
    for name in (
        *(RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT),
        *(LOG_START_OFFSET_CHECKPOINT, CLEANER_CHECKPOINT),
    ):
        yield kind(re.escape(name), ("topic", "partition", "offset"), _parsed(_offsets))
    yield kind(r"partition\.metadata", ("topic_id",), _parsed(_topic_id))
    yield kind(r"meta\.properties", ("cluster_id", "node_id", "directory_id"), _parsed(_properties))
    yield kind("quorum-state", quorum, _parsed(_quorum_state))
    yield kind(r"\.kafka_cleanshutdown", ("broker_epoch",), _parsed(_clean_shutdown))
    yield kind(re.escape(STATE_FILE), (*LogStanding._fields, "problem"), _parsed(_standing))


KINDS = tuple(_kinds())
