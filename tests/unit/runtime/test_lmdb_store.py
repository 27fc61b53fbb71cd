"""The image in LMDB: it outlives its process, grows under its readers, and a broken file is an error, not a
crash.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kreplica.common.errors import CorruptImage, LogClosed, StorageFull, StorageIOError
from kreplica.metadata.image_format import Node, OffsetAndEpoch
from kreplica.metadata.image_writer import ImageStore
from kreplica.metadata.metadata_store import MAX_KEY_BYTES, MemoryMetadataStore
from kreplica.runtime import lmdb_store
from kreplica.runtime.lmdb_store import DATA_FILE, SUM_FILE, LmdbMetadataStore, discard

CLUSTER = "a3JlcGxpY2EtY29uZm9ybQ"
KEYS = st.binary(min_size=1, max_size=3) | st.binary(min_size=MAX_KEY_BYTES, max_size=MAX_KEY_BYTES)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=20), max_size=6)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "image")


@pytest.fixture
def opened(directory: str) -> Iterator[LmdbMetadataStore]:
    store = LmdbMetadataStore(directory)
    yield store
    store.close()


def as_left_by_a_kill(directory: str, target: Path) -> str:
    """The directory as a process leaves it that ends without a word."""
    target.mkdir()
    shutil.copy(Path(directory) / DATA_FILE, target)
    shutil.copy(Path(directory) / "lock.mdb", target)
    return str(target)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHANGES, max_size=6), st.data())
def test_it_does_what_the_one_in_memory_does(
    opened: LmdbMetadataStore, batches: list, data: st.DataObject
) -> None:
    opened.clear()
    memory = MemoryMetadataStore()
    for changes in batches:
        opened.write(changes)
        memory.write(changes)
        prefix, after = data.draw(st.binary(max_size=2)), data.draw(st.binary(max_size=2))
        for limit in (1, 3, 100):
            assert opened.scan(prefix, after, limit) == memory.scan(prefix, after, limit)
        for key in changes:
            assert opened.get(key) == memory.get(key)
    many = {bytes([number % 3, number]): b"" for number in range(100)}
    opened.write(many)
    memory.write(many)
    for limit in (lmdb_store.FEW - 1, lmdb_store.FEW, lmdb_store.FEW + 1, 33, 34, 100):
        for prefix in (b"", b"\0", b"\1", b"\2", b"\3"):
            assert opened.scan(prefix, b"", limit) == memory.scan(prefix, b"", limit)
    memory.clear()
    opened.clear()
    assert opened.scan(b"", b"", 1) == memory.scan(b"", b"", 1) == []


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_what_was_committed_is_there_again(directory: str, tmp_path: Path, how: str) -> None:
    store = LmdbMetadataStore(directory)
    image = ImageStore(store, CLUSTER)
    image.write({"/brokers/ids/1": Node(b"one", 6)}, OffsetAndEpoch(7, 2))
    left = as_left_by_a_kill(directory, tmp_path / "killed")
    store.close()
    assert (Path(directory) / SUM_FILE).exists()
    opened = directory if how == "closed" else left
    again = LmdbMetadataStore(opened)
    image = ImageStore(again, CLUSTER)
    assert image.applied == (7, 2)
    assert contents(image) == {"/brokers/ids/1": (b"one", 6)}
    assert not (Path(opened) / SUM_FILE).exists()
    again.close()


def test_a_file_is_walked_unless_it_was_closed(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[str] = []
    walk: Callable[[str], list[str]] = lmdb.verify.verify
    monkeypatch.setattr(lmdb_store.lmdb.verify, "verify", lambda path: walked.append(path) or walk(path))
    store = LmdbMetadataStore(directory)
    store.write({b"a": b"1"})
    left = as_left_by_a_kill(directory, tmp_path / "killed")
    store.close()
    LmdbMetadataStore(directory).close()
    assert walked == []
    LmdbMetadataStore(left).abandon()
    assert not (Path(left) / SUM_FILE).exists()
    LmdbMetadataStore(left).close()
    LmdbMetadataStore(left).close()
    assert walked == [os.path.join(left, DATA_FILE)] * 2
    # The sum of another file, or no sum at all, is as good as none.
    for text in (b"", b'{"version": 1, "bytes": 1, "crc32c": 2}'):
        (Path(left) / SUM_FILE).write_bytes(text)
        LmdbMetadataStore(left).close()
    assert len(walked) == 4


def test_the_map_grows_and_readers_go_on(directory: str) -> None:
    store = LmdbMetadataStore(directory, smallest_map_bytes=1 << 17)
    store.write({b"first": b"1"})
    seen: list[object] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.append((store.get(b"first"), store.scan(b"f", b"", 1)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(40):
            store.write({b"%03d" % (number * 8 + i): bytes(5000) for i in range(8)})
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert store.map_bytes > 1 << 20
    assert set(map(repr, seen)) == {repr((b"1", [(b"first", b"1")]))}
    assert len(store.scan(b"", b"", 1000)) == 321
    store.close()
    again = LmdbMetadataStore(directory, smallest_map_bytes=1 << 12)
    again.write({b"more": bytes(100_000)})
    again.close()


def test_the_map_has_an_end(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_store, "LARGEST_MAP_BYTES", 1 << 17)
    store = LmdbMetadataStore(directory, smallest_map_bytes=1 << 17)
    with pytest.raises(StorageFull, match="maximum of 131072 bytes"):
        store.write({b"large": bytes(1 << 18)})
    store.write({b"small": b"1"})
    store.close()


def test_a_full_disk_costs_the_batch_alone(directory: str) -> None:
    store = LmdbMetadataStore(directory)
    store.write({b"a": b"1"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.map_bytes, limits[1]))
    try:
        with pytest.raises(StorageFull):
            store.write({b"a": b"2", b"large": bytes(1 << 20)})
        store.write({b"small": bytes(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (store.get(b"a"), store.get(b"large")) == (b"1", None)
    store.write({b"a": b"2", b"large": bytes(1 << 20)})
    assert store.get(b"a") == b"2"
    store.close()


def test_a_commit_that_the_disk_failed_is_the_last(directory: str) -> None:
    class Failing:
        def begin(self, *, write: bool) -> object:
            assert write
            raise lmdb.Error("mdb_txn_commit", errno.EIO)

    store = LmdbMetadataStore(directory)
    store.write({b"a": b"1"})
    env, store._env = store._env, Failing()
    with pytest.raises(StorageIOError):
        store.write({b"a": b"2"})
    store._env = env
    for call in (lambda: store.write({b"a": b"2"}), lambda: store.get(b"a"), store.clear):
        with pytest.raises(StorageIOError):
            call()
    store.close()
    assert not (Path(directory) / SUM_FILE).exists()


def test_a_closed_store_says_so(directory: str) -> None:
    store = LmdbMetadataStore(directory)
    store.close()
    store.close()
    calls = (lambda: store.get(b"a"), lambda: store.write({}), store.clear, lambda: store.scan(b"", b"", 1))
    for call in calls:
        with pytest.raises(LogClosed):
            call()


def test_an_image_that_is_discarded_begins_anew(directory: str) -> None:
    discard(directory)  # nothing there yet
    store = LmdbMetadataStore(directory)
    store.write({b"a": b"1"})
    store.close()
    data = Path(directory) / DATA_FILE
    data.write_bytes(bytes(len(data.read_bytes())))
    with pytest.raises(CorruptImage):
        LmdbMetadataStore(directory)
    discard(directory)
    store = LmdbMetadataStore(directory)
    assert store.get(b"a") is None
    store.close()


# ---- rot -------------------------------------------------------------------------------------------------

FLIPS = int(os.environ.get("KREPLICA_FLIP_BYTES", "50"))


def grown_image(directory: str) -> dict:
    """An image with pages of all kinds: branches, overflow, some freed; closed, with its sum."""
    store = LmdbMetadataStore(directory)
    image = ImageStore(store, CLUSTER)
    for batch in range(4):
        nodes: dict[str, Node | None] = {f"/large-{batch}": Node(bytes(9000), batch)}
        for number in range(60):
            path = f"/brokers/topics/topic-{number}/partitions/{batch}"
            nodes[path] = Node(bytes([batch]) * 40, batch)
        for earlier in range(batch):
            nodes[f"/brokers/topics/topic-{batch}/partitions/{earlier}"] = None
        image.write(nodes, OffsetAndEpoch(batch, 1))
    written = contents(image)
    store.close()
    return written


def contents(image: ImageStore) -> dict[str, Node]:
    return {"/".join(names): Node(*node) for names, node in image.contents()}


def is_refused(directory: str, nodes: dict) -> bool:
    """Whether the image is refused; if it is not, it is what was written."""
    try:
        store = LmdbMetadataStore(directory)
    except CorruptImage:
        return True
    try:
        assert contents(ImageStore(store, CLUSTER)) == nodes
    except CorruptImage:
        return True
    finally:
        store.close()
    return False


def test_rot_is_refused_or_does_not_matter(directory: str, tmp_path: Path) -> None:
    nodes = grown_image(directory)
    data = (Path(directory) / DATA_FILE).read_bytes()
    sums = (Path(directory) / SUM_FILE).read_bytes()
    chance = random.Random(FLIPS)
    used = len(data.rstrip(b"\0"))
    places = [chance.randrange(used) for _ in range(FLIPS)] + list(range(0, 8192, 127))
    refused = 0
    for place in places:
        target = tmp_path / "rotten"
        target.mkdir()
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        (target / DATA_FILE).write_bytes(changed)
        if place % 2:
            (target / SUM_FILE).write_bytes(sums)
        refused += is_refused(str(target), nodes)
        shutil.rmtree(target)
    assert 0 < refused < len(places)


def test_a_file_cut_short_is_refused(directory: str, tmp_path: Path) -> None:
    nodes = grown_image(directory)
    data = (Path(directory) / DATA_FILE).read_bytes()
    used = len(data.rstrip(b"\0"))
    for length in (0, 1, 100, 4096, 8192, 10_000, used // 2, used - 4096, used - 1, len(data) - 4096):
        target = tmp_path / str(length)
        target.mkdir()
        (target / DATA_FILE).write_bytes(data[:length])
        assert is_refused(str(target), nodes) == (length < used)
