"""The metadata image over each of its stores: the tree, and an image that is damaged or of another log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import CorruptImage, InvalidRequest
from kreplica.metadata import image_writer
from kreplica.metadata.image_format import (
    STANDING_KEY,
    Node,
    OffsetAndEpoch,
    Standing,
    key_of,
    names_of,
    seal,
    seal_standing,
    unseal,
    unseal_standing,
)
from kreplica.metadata.image_writer import ImageStore
from kreplica.metadata.metadata_store import MemoryMetadataStore, MetadataStore
from kreplica.runtime.lmdb_store import LmdbMetadataStore

CLUSTER = "a3JlcGxpY2EtY29uZm9ybQ"


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    made = MemoryMetadataStore() if request.param == "memory" else LmdbMetadataStore(str(tmp_path / "image"))
    yield made
    made.close()


@pytest.fixture
def image(store: MetadataStore) -> ImageStore:
    return ImageStore(store, CLUSTER)


def create(image: ImageStore, *paths: str, offset: int = 1) -> None:
    image.write(
        {path: Node(path.encode(errors="replace"), offset) for path in paths}, OffsetAndEpoch(offset, 1)
    )


def nodes_of(image: ImageStore) -> dict[str, Node]:
    return {"/".join(names): Node(*node) for names, node in image.contents()}


STATE = "/brokers/topics/t/partitions/0"


# ---- the tree --------------------------------------------------------------------------------------------


def test_nodes_are_created_changed_and_removed(image: ImageStore) -> None:
    assert (image.applied, nodes_of(image)) == ((0, 0), {})
    image.write({"/brokers/ids/1": Node(b"one", 3), STATE: Node(b"leader 1", 6)}, OffsetAndEpoch(7, 2))
    assert image.applied == (7, 2)
    assert nodes_of(image) == {"/brokers/ids/1": (b"one", 3), STATE: (b"leader 1", 6)}
    image.write(
        {STATE: Node(b"leader 3", 8), "/brokers/ids/1": None, "/brokers/ids/9": None}, OffsetAndEpoch(9, 2)
    )
    assert nodes_of(image) == {STATE: (b"leader 3", 8)}


def test_a_version_may_change_without_the_bytes(image: ImageStore) -> None:
    create(image, STATE)
    image.write({STATE: Node(STATE.encode(), 5)}, OffsetAndEpoch(6, 1))
    assert nodes_of(image)[STATE].version == 5


def test_shorter_paths_come_first(image: ImageStore) -> None:
    paths = [STATE, "/brokers/topics/t", "/features/f", "/controller"]
    create(image, *paths)
    assert list(nodes_of(image)) == ["/controller", "/features/f", "/brokers/topics/t", STATE]


def test_names_that_sort_around_the_slash(image: ImageStore) -> None:
    paths = [f"/t/{name}/p" for name in ("a", "a!", "a-b", "a.b", "a0", "aé", "b")]
    create(image, *paths)
    assert set(nodes_of(image)) == set(paths)


def test_more_nodes_than_are_read_at_once(image: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_writer, "NODES_A_SCAN", 3)
    create(image, *(f"/t/{number:02}" for number in range(10)), "/u")
    assert len(nodes_of(image)) == 11


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//a", "/a//b", "/a\0", "/" + "x" * 510, "/a/b/c/d/e/f/g/h/i", "/\ud800", "/"]
)
def test_what_is_no_path(image: ImageStore, path: str) -> None:
    with pytest.raises(InvalidRequest):
        create(image, "/a", path)
    assert nodes_of(image) == {}


def test_the_longest_path(image: ImageStore) -> None:
    path = "/" + "x" * 509
    create(image, path)
    assert nodes_of(image)[path].data == path.encode()


@pytest.mark.parametrize("back", [(4, 2), (5, 1)])
def test_the_applied_offset_never_goes_back(image: ImageStore, back: tuple[int, int]) -> None:
    image.write({}, OffsetAndEpoch(5, 2))
    with pytest.raises(AssertionError, match="is before"):
        image.write({"/a": Node(b"", 0)}, OffsetAndEpoch(*back))
    assert (image.applied, nodes_of(image)) == ((5, 2), {})


PATHS = [f"/{a}{b}{c}" for a in "xy" for b in ("", "/x", "/x-") for c in ("", "/x")]
NODES = st.none() | st.builds(Node, st.binary(max_size=2), st.integers(-1, 2))


@given(st.lists(st.tuples(st.dictionaries(st.sampled_from(PATHS), NODES), st.booleans())))
def test_it_is_a_dictionary_of_paths(batches: list[tuple[dict[str, Node | None], bool]]) -> None:
    store = MemoryMetadataStore()
    image, model = ImageStore(store, CLUSTER), {}
    for offset, (nodes, is_reopened) in enumerate(batches):
        image.write(nodes, OffsetAndEpoch(offset, 1))
        model = {path: node for path, node in {**model, **nodes}.items() if node is not None}
        if is_reopened:
            image = ImageStore(store, CLUSTER)
        assert image.applied == (offset, 1)
        assert nodes_of(image) == model


# ---- an image that is not whole --------------------------------------------------------------------------


def test_the_format() -> None:
    key = key_of(STATE)
    assert key == b"\x05" + STATE.encode()
    assert names_of(key) == STATE.split("/")
    value = seal(key, Node(b"abc", 3))
    assert (value[4:12], value[12:]) == (b"\0\0\0\0\0\0\0\x03", b"abc")
    assert unseal(key, value) == (b"abc", 3)
    standing = Standing(CLUSTER, OffsetAndEpoch(5, 2), 7, 9)
    assert unseal_standing(seal_standing(standing)) == standing


@given(st.integers(0, 10), st.text("/a\0ß", max_size=12) | st.text(max_size=6))
def test_a_key_either_has_the_names_of_a_path_or_is_refused(depth: int, text: str) -> None:
    key = bytes([depth]) + text.encode(errors="surrogatepass")
    try:
        names = names_of(key)
    except CorruptImage:
        with pytest.raises((InvalidRequest, AssertionError)):
            assert key_of(text) == key
    else:
        assert names == text.split("/")
        assert key_of(text) == key


@given(st.data())
def test_a_flipped_bit_is_found(data: st.DataObject) -> None:
    for key, value in (
        (STANDING_KEY, seal_standing(Standing(CLUSTER, OffsetAndEpoch(5, 2)))),
        (key_of(STATE), seal(key_of(STATE), Node(b"leader 1", 4))),
    ):
        changed = bytearray(value)
        changed[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(CorruptImage, match="CRC"):
            unseal(key, bytes(changed))
        with pytest.raises(CorruptImage, match="CRC"):
            unseal(key, value[: data.draw(st.integers(0, len(value) - 1))])


def test_a_broken_value_is_found(store: MetadataStore, image: ImageStore) -> None:
    create(image, STATE, "/brokers/ids/1")
    key = key_of(STATE)
    good = store.get(key)
    store.write({key: good[:-1] + bytes([good[-1] ^ 1])})
    with pytest.raises(CorruptImage):
        nodes_of(image)
    with pytest.raises(CorruptImage):
        image.write({STATE: Node(b"", 2)}, OffsetAndEpoch(2, 1))
    # The value of another node is as wrong as noise.
    store.write({key: store.get(key_of("/brokers/ids/1"))})
    with pytest.raises(CorruptImage):
        nodes_of(image)
    store.write({key: good})
    assert len(nodes_of(image)) == 2


def test_a_lost_and_a_stale_node_are_found(store: MetadataStore, image: ImageStore) -> None:
    create(image, STATE)
    key, stale = key_of(STATE), store.get(key_of(STATE))
    image.write({STATE: Node(b"leader 2", 1)}, OffsetAndEpoch(2, 1))
    for bad in (None, stale):
        good = store.get(key)
        store.write({key: bad})
        with pytest.raises(CorruptImage, match="nodes, but"):
            nodes_of(image)
        store.write({key: good})
    assert nodes_of(image)[STATE] == (b"leader 2", 1)


@pytest.mark.parametrize("key", [b"\x02/a", b"\x01a", b"\x01/\xff"])
def test_a_key_that_is_no_path_is_found(store: MetadataStore, image: ImageStore, key: bytes) -> None:
    store.write({key: seal(key, Node(b"", 0))})
    with pytest.raises(CorruptImage, match="not the key of a node"):
        nodes_of(image)


def test_a_store_that_leads_in_a_circle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryMetadataStore()
    image = ImageStore(store, CLUSTER)
    create(image, "/a", "/b")
    scan = store.scan
    monkeypatch.setattr(store, "scan", lambda prefix, _after, limit: scan(prefix, b"", limit))
    with pytest.raises(CorruptImage, match="comes after"):
        nodes_of(image)


def test_an_image_of_another_cluster_or_format_is_refused(store: MetadataStore, image: ImageStore) -> None:
    create(image, "/a")
    with pytest.raises(CorruptImage, match="belongs to cluster"):
        ImageStore(store, "another")
    value = store.get(STANDING_KEY)
    store.write({STANDING_KEY: None})
    with pytest.raises(CorruptImage, match="how far its log is applied"):
        ImageStore(store, CLUSTER)
    node = unseal(STANDING_KEY, value)
    for broken, text in (
        (node._replace(version=1), "version 1; only 2 is supported"),
        (node._replace(data=node.data[:20]), "truncated"),
        (node._replace(data=node.data[:28] + b"\xff"), "not UTF-8"),
    ):
        store.write({STANDING_KEY: seal(STANDING_KEY, broken)})
        with pytest.raises(CorruptImage, match=text):
            ImageStore(store, CLUSTER)
    store.clear()
    assert ImageStore(store, CLUSTER).applied == (0, 0)
    assert store.scan(b"", b"", 1) == []


@pytest.mark.parametrize(
    ("end_offset", "epoch", "text"),
    [
        (10, 3, None),
        (11, 3, None),
        (9, 3, "the log ends at 9"),
        (10, 2, "has epoch 2 there"),
        (10, None, "does not reach there"),
    ],
)
def test_an_image_has_to_be_a_past_of_the_log(
    image: ImageStore, end_offset: int, epoch: int | None, text: str | None
) -> None:
    image.check_against_log(0, {}.get)  # an empty one is of any
    image.write({}, OffsetAndEpoch(10, 3))
    if text is None:
        image.check_against_log(end_offset, {10: epoch}.get)
    else:
        with pytest.raises(CorruptImage, match=text):
            image.check_against_log(end_offset, {10: epoch}.get)


def test_a_power_cut_in_memory_takes_the_last_write() -> None:
    store = MemoryMetadataStore()
    image = ImageStore(store, CLUSTER)
    create(image, "/a", "/b")
    image.write({"/a": None, "/b": Node(b"2", 2), "/c": Node(b"", 2)}, OffsetAndEpoch(2, 1))
    store.lose_last_write()
    again = ImageStore(store, CLUSTER)
    assert again.applied == (1, 1)
    assert nodes_of(again) == {"/a": (b"/a", 1), "/b": (b"/b", 1)}
