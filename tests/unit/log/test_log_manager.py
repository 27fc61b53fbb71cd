"""LogManager over real files: directories and their locks, loading, checkpoints, deletion, offline disks."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kreplica
from kreplica.common.config import LogConfig, LogManagerConfig
from kreplica.common.errors import (
    InconsistentClusterId,
    InconsistentTopicId,
    InvalidFile,
    InvalidTopic,
    KafkaStorageError,
    LogDirLocked,
    LogDirNotFound,
    StorageIOError,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.checkpoint import OffsetCheckpointFile
from kreplica.log.log_manager import LogManager
from kreplica.log.meta_properties import MetaPropertiesFile
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.scheduler import ThreadScheduler, ThreadWorkers
from kreplica.runtime.storage import FileStorage
from tests.support.clocks import ManualClock
from tests.support.logs import checkpoint, get_or_create_log

CLUSTER = "dpbFJ6ZBRoSUiuWQ5q1v1w"
ORDERS = TopicPartition("orders", 0)
INITIAL_DELAY_MS = LogManagerConfig().log_initial_task_delay_ms
CHECKPOINT_INTERVAL_MS = LogManagerConfig().log_flush_offset_checkpoint_interval_ms
MARKER = ".kafka_cleanshutdown"


class FaultyStorage(FileStorage):
    """Refuses to change or open anything below the paths in `broken`."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

    def _check(self, path: str) -> None:
        if any(path.startswith(f"{broken}/") or path == broken for broken in self.broken):
            raise StorageIOError(f"{path}: the disk is gone")


def _checked(name: str):  # type: ignore[no-untyped-def]
    original = getattr(FileStorage, name)

    def method(self, path, *arguments, **named):  # type: ignore[no-untyped-def]
        self._check(path)
        return original(self, path, *arguments, **named)

    return method


for _name in (
    *("open_region", "read_file", "write_file_atomically", "write_file", "write_at", "list_directory"),
    *("make_directory", "rename", "remove", "remove_tree", "sync_directory", "lock_directory"),
):
    setattr(FaultyStorage, _name, _checked(_name))


class Node:
    """A LogManager with a clock that the test moves, and its periodic work at hand."""

    def __init__(self, *directories: Path, **settings: object) -> None:
        self.clock = ManualClock()
        self.errors: list[tuple[str, Exception]] = []
        self.scheduler = ThreadScheduler(self.clock, lambda name, error: self.errors.append((name, error)))
        self.storage = FaultyStorage()
        fields: dict[str, object] = {"cluster_id": CLUSTER, "node_id": 1, "config": LogConfig(), **settings}
        self.manager = LogManager(
            [str(directory) for directory in directories],
            storage=self.storage,
            clock=self.clock,
            scheduler=self.scheduler,
            workers=ThreadWorkers(2),
            random=random.Random(3),
            **fields,  # type: ignore[arg-type]
        )

    def start(self) -> LogManager:
        self.manager.startup()
        return self.manager

    def pass_(self, ms: int) -> None:
        self.clock.advance(ms)
        self.scheduler.run_due()
        assert self.errors == []


def started(*directories: Path, **settings: object) -> LogManager:
    return Node(*directories, **settings).start()


def append(log: UnifiedLog, count: int, text: bytes = b"value") -> None:
    for i in range(count):
        log.append_records([b"%s %d" % (text, i)])


def values(log: UnifiedLog) -> list[bytes | None]:
    return [record.value for batch in log.batches(log.log_start_offset) for record in batch]


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def rows(directory: Path, name: str) -> dict[TopicPartition, int]:
    return OffsetCheckpointFile(FileStorage(), str(directory / name)).read()


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk-0", tmp_path / "disk-1", tmp_path / "disk-2"]


# ---- directories ---------------------------------------------------------------------------------------


def test_a_new_directory_is_given_its_meta_properties_once(directories: list[Path]) -> None:
    for _ in range(2):
        started(*directories).shutdown()
    found = [MetaPropertiesFile(FileStorage(), str(directory)).read() for directory in directories]
    assert {(each.cluster_id, each.node_id) for each in found if each} == {(CLUSTER, 1)}
    assert len({each.directory_id for each in found if each}) == 3
    again = [MetaPropertiesFile(FileStorage(), str(directory)).read() for directory in directories]
    assert again == found


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"cluster_id": "another"}, InconsistentClusterId), ({"node_id": 2}, InvalidFile)],
)
def test_a_foreign_directory_is_refused_and_nothing_changes_in_any(
    directories: list[Path], settings: dict[str, object], error: type[Exception]
) -> None:
    manager = started(directories[1])
    append(get_or_create_log(manager, ORDERS), 3)
    manager.shutdown()
    before = tree(directories[1])
    with pytest.raises(error):
        started(*directories, **settings)
    assert tree(directories[1]) == before
    assert tree(directories[0]) == tree(directories[2]) == {}
    started(*directories).shutdown()  # nothing was left locked


def test_a_broken_meta_properties_is_refused(directories: list[Path]) -> None:
    directories[0].mkdir()
    (directories[0] / "meta.properties").write_text("version=0\nbroker.id=1\n")
    with pytest.raises(InvalidFile):
        started(directories[0])


def test_a_directory_has_one_writer(directories: list[Path]) -> None:
    first = started(*directories[:2])
    with pytest.raises(LogDirLocked):
        started(directories[2], directories[1])
    assert not (directories[2] / "meta.properties").exists()
    first.shutdown()
    started(directories[2], directories[1]).shutdown()


def test_a_standalone_log_and_its_node_exclude_each_other(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(get_or_create_log(manager, ORDERS), 3)
    with pytest.raises(LogDirLocked, match="another writer"):
        kreplica.Log.open(tmp_path / "orders-0")
    with kreplica.Log.open(tmp_path / "orders-0", read_only=True) as log:
        assert len(list(log.read())) == 3
    manager.shutdown()
    with kreplica.Log.open(tmp_path / "orders-0") as log:
        log.append([b"alone"])
        with kreplica.Log.open(tmp_path / "payments-0") as beside:
            beside.append([b"another one"])
        with pytest.raises(LogDirLocked, match="another writer"):
            started(tmp_path)
    manager = started(tmp_path)
    log_of_node = manager.get_log(ORDERS)
    assert log_of_node is not None
    assert values(log_of_node)[-1] == b"alone"
    manager.shutdown()


def test_a_standalone_log_removes_the_mark_of_a_clean_shutdown(tmp_path: Path) -> None:
    # It may be killed while it writes; Kafka must not believe then that all is well.
    manager = started(tmp_path)
    append(get_or_create_log(manager, ORDERS), 3)
    manager.shutdown()
    assert (tmp_path / MARKER).exists()
    kreplica.Log.open(tmp_path / "orders-0", read_only=True).close()
    assert (tmp_path / MARKER).exists()
    with kreplica.Log.open(tmp_path / "orders-0"):
        assert not (tmp_path / MARKER).exists()


def test_a_directory_that_becomes_a_nodes_while_a_log_in_it_is_written_is_refused(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "orders-0") as log:
        log.append([b"alone"])
        with pytest.raises(LogDirLocked, match="orders-0: another writer has the log open"):
            started(tmp_path)
    started(tmp_path).shutdown()


# ---- start and stop ------------------------------------------------------------------------------------


def test_a_restart_reads_the_same_offsets_and_high_watermarks(directories: list[Path]) -> None:
    manager = started(*directories)
    partitions = [TopicPartition("orders", i) for i in range(7)]
    for partition in partitions:
        log = get_or_create_log(manager, partition)
        append(log, 5 + partition.partition, b"%d" % partition.partition)
        log.maybe_increment_high_watermark(3 + partition.partition)
    manager.shutdown()

    manager = started(*directories)
    assert {log.topic_partition for log in manager.logs()} == set(partitions)
    for partition in partitions:
        log = get_or_create_log(manager, partition)
        i = partition.partition
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 3 + i, 5 + i)
        assert values(log) == [b"%d %d" % (i, j) for j in range(5 + i)]
    manager.shutdown()


def test_the_mark_of_a_clean_shutdown_is_written_last_and_removed_before_loading(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(get_or_create_log(manager, ORDERS), 3)
    assert not (tmp_path / MARKER).exists()
    manager.shutdown()
    assert (tmp_path / MARKER).exists()
    node, seen = Node(tmp_path), []
    node.manager.startup(lambda done, total: seen.append((done, total, (tmp_path / MARKER).exists())))
    assert seen == [(1, 1, False)]
    node.manager.shutdown()
    assert (tmp_path / MARKER).exists()


def test_progress_counts_every_log_loaded_in_parallel(directories: list[Path]) -> None:
    manager = started(*directories)
    for i in range(20):
        get_or_create_log(manager, TopicPartition("orders", i))
    manager.shutdown()
    node, seen, threads = Node(*directories), [], set()

    def note(done: int, total: int) -> None:
        seen.append((done, total))
        threads.add(threading.current_thread().name)

    node.manager.startup(note)
    assert seen == [(i, 20) for i in range(1, 21)]
    assert all(name.startswith("kreplica-worker") for name in threads)
    node.manager.shutdown()


def test_a_start_that_fails_holds_nothing(directories: list[Path]) -> None:
    manager = started(*directories[:2])
    for i in range(4):
        append(get_or_create_log(manager, TopicPartition("orders", i)), 3)
    manager.shutdown()
    broken = next(directories[0].glob("orders-*")) / "leader-epoch-checkpoint"
    content = broken.read_bytes() if broken.exists() else b"0\n0\n"
    broken.write_bytes(b"no checkpoint")
    with pytest.raises(InvalidFile):
        started(*directories[:2])
    broken.write_bytes(content)
    manager = started(*directories[:2])
    assert sorted(log.log_end_offset for log in manager.logs()) == [3, 3, 3, 3]
    manager.shutdown()


def test_a_directory_that_only_looks_like_a_partition_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "backup-2024").mkdir()
    (tmp_path / "backup-2024" / "notes.txt").write_text("mine")
    manager = started(tmp_path)
    assert manager.logs() == []
    manager.shutdown()
    assert tree(tmp_path / "backup-2024") == {"notes.txt": b"mine"}


# ---- checkpoints ---------------------------------------------------------------------------------------


def test_checkpoints_hold_what_is_flushed_started_and_replicated(tmp_path: Path) -> None:
    node = Node(tmp_path)
    manager = node.start()
    log, other = (get_or_create_log(manager, TopicPartition("orders", i)) for i in (0, 1))
    append(log, 10)
    append(other, 4)
    log.flush()
    append(log, 2)
    log.maybe_increment_high_watermark(11)
    log.maybe_increment_log_start_offset(6)
    checkpoint(manager)
    manager.checkpoint_high_watermarks()
    both = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    assert rows(tmp_path, "recovery-point-offset-checkpoint") == dict(zip(both, (10, 0), strict=True))
    assert rows(tmp_path, "log-start-offset-checkpoint") == {ORDERS: 6}
    assert rows(tmp_path, "replication-offset-checkpoint") == dict(zip(both, (11, 0), strict=True))
    manager.shutdown()
    assert rows(tmp_path, "recovery-point-offset-checkpoint") == dict(zip(both, (12, 4), strict=True))
    manager = started(tmp_path)
    restarted = manager.get_log(ORDERS)
    assert restarted is not None
    assert (restarted.log_start_offset, restarted.high_watermark) == (6, 11)
    manager.shutdown()


def test_the_scheduler_checkpoints_and_flushes(tmp_path: Path) -> None:
    node = Node(tmp_path, config=LogConfig.parse({"flush.ms": 2_000}))
    manager = node.start()
    log = get_or_create_log(manager, ORDERS)
    append(log, 5)
    node.pass_(1_000)
    assert log.flush_offset == 0
    node.pass_(1_500)
    assert log.flush_offset == 5
    assert rows(tmp_path, "recovery-point-offset-checkpoint") == {}
    node.pass_(INITIAL_DELAY_MS + CHECKPOINT_INTERVAL_MS)
    assert rows(tmp_path, "recovery-point-offset-checkpoint") == {ORDERS: 5}
    manager.shutdown()
    assert len(node.scheduler) == 0


def test_the_flusher_visits_only_logs_that_flush_ms_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visited: list[UnifiedLog] = []
    monkeypatch.setattr(UnifiedLog, "flush_if_due", lambda log, _: visited.append(log))
    flushed = LogConfig.parse({"flush.ms": 500})
    node = Node(tmp_path, configs={"other": flushed})
    manager = node.start()
    get_or_create_log(manager, ORDERS)
    other = get_or_create_log(manager, TopicPartition("other", 0))
    node.pass_(1_500)
    assert set(visited) == {other}
    manager.shutdown()


# ---- logs ----------------------------------------------------------------------------------------------


def test_new_logs_go_to_the_given_directory_or_to_the_one_with_the_fewest(directories: list[Path]) -> None:
    manager = started(*directories)
    for i in range(6):
        get_or_create_log(manager, TopicPartition("orders", i))
    assert [len(list(directory.glob("orders-*"))) for directory in directories] == [2, 2, 2]
    get_or_create_log(manager, TopicPartition("placed", 0), directory=str(directories[2]))
    assert (directories[2] / "placed-0").is_dir()
    with pytest.raises(LogDirNotFound):
        get_or_create_log(manager, TopicPartition("placed", 1), directory="/nowhere")
    manager.shutdown()


def test_a_log_is_created_once(tmp_path: Path) -> None:
    manager = started(tmp_path)
    assert manager.get_log(ORDERS) is None
    log = get_or_create_log(manager, ORDERS)
    assert get_or_create_log(manager, ORDERS) is log is manager.get_log(ORDERS)
    with pytest.raises(InvalidTopic):
        get_or_create_log(manager, TopicPartition("no/topic", 0))
    manager.shutdown()


def test_a_log_of_another_topic_of_the_name_is_refused(tmp_path: Path) -> None:
    mine, other = Uuid.generate(random.Random(1)), Uuid.generate(random.Random(2))
    manager = started(tmp_path)
    get_or_create_log(manager, ORDERS, topic_id=mine)
    get_or_create_log(manager, ORDERS, topic_id=mine)
    with pytest.raises(InconsistentTopicId):
        get_or_create_log(manager, ORDERS, topic_id=other)
    manager.shutdown()
    manager = started(tmp_path)
    with pytest.raises(InconsistentTopicId):
        get_or_create_log(manager, ORDERS, topic_id=other)
    assert PartitionMetadataFile(FileStorage(), str(tmp_path / "orders-0")).read() == mine
    manager.shutdown()


def test_a_log_without_a_topic_id_is_given_one(tmp_path: Path) -> None:
    topic_id = Uuid.generate(random.Random(1))
    manager = started(tmp_path)
    get_or_create_log(manager, ORDERS)
    get_or_create_log(manager, ORDERS, topic_id=topic_id)
    assert PartitionMetadataFile(FileStorage(), str(tmp_path / "orders-0")).read() == topic_id
    manager.shutdown()


def test_a_topics_configuration_reaches_its_logs_now_and_later(tmp_path: Path) -> None:
    manager = started(tmp_path, configs={"small": LogConfig.parse({"segment.bytes": 2_000})})
    assert get_or_create_log(manager, TopicPartition("small", 0)).config.segment_bytes == 2_000
    log = get_or_create_log(manager, ORDERS)
    manager.configs.change({"orders": LogConfig.parse({"segment.bytes": 1_000})})
    append(log, 40)
    assert len(log.local.segments) > 1
    assert get_or_create_log(manager, TopicPartition("orders", 1)).config.segment_bytes == 1_000
    assert manager.configs.of("other") == LogConfig()
    manager.shutdown()


def test_retention_goes_over_all_logs_and_removes_files_later(directories: list[Path]) -> None:
    settings = {"segment.bytes": 1_000, "retention.bytes": 3_000, "file.delete.delay.ms": 60_000}
    node = Node(*directories, config=LogConfig.parse(settings))
    manager = node.start()
    logs = [get_or_create_log(manager, TopicPartition("orders", i)) for i in range(3)]
    for log in logs:
        append(log, 100)
        log.maybe_increment_high_watermark(100)
    before = [log.size for log in logs]
    node.pass_(INITIAL_DELAY_MS)
    assert all(log.size < size for log, size in zip(logs, before, strict=True))
    assert all(values(log)[-1] == b"value 99" for log in logs)
    deleted = [path for d in directories for path in d.rglob("*.log.deleted")]
    assert deleted
    node.pass_(60_000)
    assert not any(path.exists() for path in deleted)
    manager.shutdown()


# ---- deletion ------------------------------------------------------------------------------------------


def deleted_directories(directory: Path) -> Iterator[Path]:
    return directory.glob("*-delete")


def test_deletion_renames_at_once_and_removes_later(tmp_path: Path) -> None:
    node = Node(tmp_path, config=LogConfig.parse({"file.delete.delay.ms": 5_000}))
    manager = node.start()
    log = get_or_create_log(manager, ORDERS)
    append(log, 3)
    manager.delete_logs([ORDERS])
    assert manager.get_log(ORDERS) is None
    assert not (tmp_path / "orders-0").exists()
    (renamed,) = deleted_directories(tmp_path)
    assert renamed.name.startswith("orders-0.")
    assert manager.delete_logs([ORDERS]) == []
    # The name is free again at once.
    assert get_or_create_log(manager, ORDERS).log_end_offset == 0
    node.pass_(4_999)
    assert renamed.exists()
    node.pass_(2)
    assert not renamed.exists()
    assert manager.get_log(ORDERS) is not None
    manager.shutdown()


def test_a_deletion_that_a_stop_interrupted_is_completed_at_the_start(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(get_or_create_log(manager, ORDERS), 3)
    manager.delete_logs([ORDERS])
    manager.shutdown()
    assert list(deleted_directories(tmp_path))
    manager = started(tmp_path)
    assert manager.logs() == []
    assert not list(deleted_directories(tmp_path))
    manager.shutdown()


def test_a_topic_with_the_longest_name_is_deleted(tmp_path: Path) -> None:
    manager = started(tmp_path)
    longest = TopicPartition("t" * 249, 123)
    get_or_create_log(manager, longest)
    manager.delete_logs([longest])
    (renamed,) = deleted_directories(tmp_path)
    assert len(renamed.name) == 255
    assert "-123." in renamed.name
    manager.shutdown()


# ---- a disk that fails ---------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_opened_is_offline_and_the_others_work(directories: list[Path]) -> None:
    node = Node(*directories)
    node.storage.broken.add(str(directories[1]))
    manager = node.start()
    assert list(manager.offline_directories) == [str(directories[1])]
    for i in range(4):
        append(get_or_create_log(manager, TopicPartition("orders", i)), 2)
    with pytest.raises(KafkaStorageError, match="offline"):
        get_or_create_log(manager, TopicPartition("placed", 0), directory=str(directories[1]))
    manager.shutdown()
    assert (directories[0] / MARKER).exists()


def test_a_node_without_a_directory_does_not_start(directories: list[Path]) -> None:
    node = Node(*directories)
    node.storage.broken.update(map(str, directories))
    with pytest.raises(KafkaStorageError, match="no log directory"):
        node.start()


def test_a_log_that_cannot_be_loaded_takes_its_directory_offline(directories: list[Path]) -> None:
    manager = started(*directories)
    for i in range(9):
        append(get_or_create_log(manager, TopicPartition("orders", i)), 2)
    manager.shutdown()
    node = Node(*directories)
    node.storage.broken.add(str(next(directories[2].glob("orders-*"))))
    manager = node.start()
    assert list(manager.offline_directories) == [str(directories[2])]
    assert len(manager.logs()) == 6
    assert all(not log.local.directory.startswith(str(directories[2])) for log in manager.logs())
    manager.shutdown()
    assert not (directories[2] / MARKER).exists()
    assert (directories[1] / MARKER).exists()


def test_a_disk_that_fails_in_the_periodic_work_goes_offline_alone(directories: list[Path]) -> None:
    node = Node(*directories[:2])
    manager = node.start()
    lost, kept = (get_or_create_log(manager, TopicPartition("orders", i)) for i in range(2))
    append(lost, 2)
    append(kept, 2)
    node.storage.broken.add(str(directories[0]))
    node.pass_(INITIAL_DELAY_MS)
    assert list(manager.offline_directories) == [str(directories[0])]
    assert manager.logs() == [kept]
    with pytest.raises(KafkaStorageError):
        append(lost, 1)
    append(kept, 1)
    # A new log goes to what is left.
    assert get_or_create_log(manager, ORDERS).local.directory.startswith(str(directories[1]))
    manager.shutdown()


def test_failing_a_directory_names_the_partitions_that_are_gone(directories: list[Path]) -> None:
    manager = started(*directories[:2])
    first = get_or_create_log(manager, ORDERS)
    gone = manager.fail(str(directories[0]), StorageIOError("no more"))
    assert gone == [ORDERS]
    assert manager.fail(str(directories[0]), StorageIOError("again")) == []
    with pytest.raises(KafkaStorageError):
        append(first, 1)
    manager.shutdown()


# ---- what a stop that was none leaves ---------------------------------------------------------------------


def test_after_a_crash_all_that_was_written_is_there(tmp_path: Path) -> None:
    manager = started(tmp_path / "node")
    for i in range(3):
        append(get_or_create_log(manager, TopicPartition("orders", i)), 5)
    # What a killed process leaves: the files as they are.
    shutil.copytree(tmp_path / "node", tmp_path / "killed")
    manager.shutdown()
    manager = started(tmp_path / "killed")
    assert [len(values(log)) for log in manager.logs()] == [5, 5, 5]
    assert all(log.damage is None for log in manager.logs())
    manager.shutdown()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_idle_logs_hold_no_descriptor(tmp_path: Path) -> None:
    manager = started(tmp_path)
    for i in range(50):
        append(get_or_create_log(manager, TopicPartition("orders", i)), 1)
    manager.shutdown()
    manager = started(tmp_path)
    # Only those below the directory count: what other tests have left open may be closed at any moment.
    names = (_name_of(descriptor) for descriptor in os.listdir("/proc/self/fd"))
    held = [name for name in names if name.startswith(str(tmp_path))]
    assert held == [f"{tmp_path}/.lock"]
    assert all(path.stat().st_size < 4096 for path in tmp_path.rglob("*") if path.is_file())
    manager.shutdown()


def _name_of(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def test_a_cut_lowers_the_cleaners_checkpoint_before_the_cleaner_has_seen_the_log(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(get_or_create_log(manager, ORDERS), 10)
    manager.shutdown()
    OffsetCheckpointFile(FileStorage(), f"{tmp_path}/cleaner-offset-checkpoint").write({ORDERS: 8})
    manager = started(tmp_path)
    log = manager.get_log(ORDERS)
    assert log is not None
    log.truncate_to(5)
    assert rows(tmp_path, "cleaner-offset-checkpoint") == {ORDERS: 5}
    manager.shutdown()
