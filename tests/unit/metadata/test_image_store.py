"""The metadata image over each of its stores: the tree, transactions, watches, and an image that is not
whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import (
    BadVersion,
    CorruptImage,
    InvalidRequest,
    KreplicaError,
    NodeExists,
    NoNode,
    NotEmpty,
)
from kreplica.metadata import image_store
from kreplica.metadata.image_format import (
    STANDING_KEY,
    Node,
    OffsetAndEpoch,
    Standing,
    key_of,
    names_of,
    path_of,
    seal,
    seal_standing,
    unseal,
    unseal_standing,
)
from kreplica.metadata.image_store import ImageStore
from kreplica.metadata.metadata_store import MemoryMetadataStore, MetadataStore
from kreplica.metadata.watches import ChildrenChanged, DataChanged
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


def create(image: ImageStore, *paths: str, offset: int = 1) -> list:
    with image.begin() as transaction:
        for path in paths:
            transaction.create(path, path.encode(), make_parents=True)
        return transaction.commit(OffsetAndEpoch(offset, 1))


STATE = "/brokers/topics/t/partitions/0/state"


# ---- the tree --------------------------------------------------------------------------------------------


def test_nodes_come_and_go(image: ImageStore) -> None:
    assert (image.applied, image.children("/"), image.get(STATE)) == ((0, 0), [], None)
    with image.begin() as transaction:
        transaction.create("/brokers")
        transaction.create("/brokers/ids")
        transaction.create("/brokers/ids/1", b"one")
        transaction.create(STATE, b"leader 1", make_parents=True)
        assert transaction.get(STATE) == (b"leader 1", 0)
        assert transaction.children("/brokers") == ["ids", "topics"]
        assert (image.get(STATE), image.children("/")) == (None, [])
        transaction.commit(OffsetAndEpoch(7, 2))
    assert image.applied == (7, 2)
    assert image.get(STATE) == Node(b"leader 1", 0)
    assert image.get("/brokers/topics/t") == Node(b"", 0)
    assert image.children("/brokers/topics") == ["t"]
    assert image.children("/brokers/ids/1") == []
    with image.begin() as transaction:
        assert transaction.set(STATE, b"leader 2", version=0) == 1
        assert transaction.set(STATE, b"leader 3") == 2
        transaction.delete("/brokers/ids/1", version=0)
        transaction.commit(OffsetAndEpoch(9, 2))
    assert image.get(STATE) == Node(b"leader 3", 2)
    assert not image.exists("/brokers/ids/1")
    assert image.exists("/brokers/ids")
    assert image.exists("/")
    assert list(image.contents()) == [(path.split("/"), node.data) for path, node in image.nodes()]
    assert [path for path, _ in image.nodes()] == [
        *("/brokers", "/brokers/ids", "/brokers/topics", "/brokers/topics/t"),
        *("/brokers/topics/t/partitions", "/brokers/topics/t/partitions/0", STATE),
    ]


def test_a_change_that_may_not_be_changes_nothing(image: ImageStore) -> None:
    create(image, "/brokers/ids/1")
    refused = [
        (NodeExists, lambda t: t.create("/brokers/ids/1")),
        (NodeExists, lambda t: t.create("/brokers", make_parents=True)),
        (NoNode, lambda t: t.create("/config/topics/t")),
        (NoNode, lambda t: t.set("/config", b"")),
        (NoNode, lambda t: t.delete("/config")),
        (NoNode, lambda t: t.delete_tree("/config")),
        (NoNode, lambda t: t.delete("/brokers/ids/1/x")),
        (BadVersion, lambda t: t.set("/brokers/ids/1", b"", version=1)),
        (BadVersion, lambda t: t.delete("/brokers/ids/1", version=1)),
        (NotEmpty, lambda t: t.delete("/brokers/ids")),
    ]
    with image.begin() as transaction:
        for kind, change in refused:
            with pytest.raises(kind):
                change(transaction)
        assert transaction.commit(OffsetAndEpoch(2, 1)) == []
    assert image.get("/brokers/ids/1") == Node(b"/brokers/ids/1", 0)
    assert not image.exists("/config")


def test_names_that_sort_around_the_slash(image: ImageStore) -> None:
    names = ["a", "a!", "a-b", "a.b", "a0", "aé", "b"]
    create(image, *(f"/t/{name}/p" for name in names))
    assert image.children("/t") == names
    assert [image.children(f"/t/{name}") for name in names] == [["p"]] * len(names)


def test_a_tree_is_deleted_with_all_that_is_below(image: ImageStore) -> None:
    create(image, STATE, "/brokers/topics/t/partitions/1/state", "/brokers/topics/tt/partitions/0")
    with image.begin() as transaction:
        transaction.create("/brokers/topics/t/partitions/2", b"")
        transaction.delete_tree("/brokers/topics/t")
        assert not transaction.exists("/brokers/topics/t/partitions/2")
        assert transaction.children("/brokers/topics") == ["tt"]
        transaction.commit(OffsetAndEpoch(2, 1))
    assert list(image.contents()) == [(path.split("/"), node.data) for path, node in image.nodes()]
    assert [path for path, _ in image.nodes()] == [
        *("/brokers", "/brokers/topics", "/brokers/topics/tt", "/brokers/topics/tt/partitions"),
        "/brokers/topics/tt/partitions/0",
    ]


def test_more_children_than_are_read_at_once(image: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_store, "NODES_A_SCAN", 3)
    create(image, *(f"/t/{number:02}" for number in range(10)), "/u")
    assert image.children("/t") == [f"{number:02}" for number in range(10)]
    assert len(list(image.nodes())) == 12


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//a", "/a//b", "/a\0", "/" + "x" * 510, "/a/b/c/d/e/f/g/h/i", "/\ud800", "/"]
)
def test_what_is_no_path(image: ImageStore, path: str) -> None:
    with pytest.raises(InvalidRequest), image.begin() as transaction:
        transaction.create(path, make_parents=True)
    with pytest.raises(InvalidRequest):
        image.get(path)
    assert list(image.nodes()) == []


def test_the_longest_path(image: ImageStore) -> None:
    path = "/" + "x" * 509
    create(image, path)
    assert image.get(path).data == path.encode()


# ---- transactions ----------------------------------------------------------------------------------------


def test_there_is_one_transaction_at_a_time(image: ImageStore) -> None:
    with image.begin() as transaction:
        with pytest.raises(InvalidRequest, match="open"):
            image.begin()
        transaction.create("/a")
    with pytest.raises(InvalidRequest, match="has ended"):
        transaction.commit(OffsetAndEpoch(1, 1))
    with pytest.raises(InvalidRequest, match="has ended"):
        transaction.create("/b")
    assert not image.exists("/a")
    create(image, "/b")


@pytest.mark.parametrize("back", [(4, 2), (5, 1)])
def test_the_applied_offset_never_goes_back(image: ImageStore, back: tuple[int, int]) -> None:
    with image.begin() as transaction:
        transaction.commit(OffsetAndEpoch(5, 2))
    with image.begin() as transaction:
        transaction.create("/a")
        with pytest.raises(InvalidRequest, match="cannot go back"):
            transaction.commit(OffsetAndEpoch(*back))
        transaction.commit(OffsetAndEpoch(5, 2))
    assert image.exists("/a")


class Tree:
    """A slow model: a dict, and the rules."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def parent(self, path: str) -> str:
        return path.rpartition("/")[0] or "/"

    def create(self, path: str, data: bytes) -> None:
        if path in self.nodes:
            raise NodeExists
        if self.parent(path) != "/" and self.parent(path) not in self.nodes:
            raise NoNode
        self.nodes[path] = Node(data, 0)

    def set(self, path: str, data: bytes, version: int) -> None:
        self.expect(path, version)
        self.nodes[path] = Node(data, self.nodes[path].version + 1)

    def delete(self, path: str, version: int) -> None:
        self.expect(path, version)
        if self.children(path):
            raise NotEmpty
        del self.nodes[path]

    def delete_tree(self, path: str) -> None:
        self.expect(path, -1)
        self.nodes = {p: n for p, n in self.nodes.items() if p != path and not p.startswith(path + "/")}

    def expect(self, path: str, version: int) -> None:
        if path not in self.nodes:
            raise NoNode
        if version not in (-1, self.nodes[path].version):
            raise BadVersion

    def children(self, path: str) -> list[str]:
        return sorted(p.rpartition("/")[2] for p in self.nodes if self.parent(p) == path)


PATHS = [f"/{a}{b}{c}" for a in "xy" for b in ("", "/x", "/x-") for c in ("", "/x")]
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(PATHS), st.binary(max_size=2)),
    st.tuples(st.just("set"), st.sampled_from(PATHS), st.binary(max_size=2), st.integers(-1, 2)),
    st.tuples(st.just("delete"), st.sampled_from(PATHS), st.integers(-1, 2)),
    st.tuples(st.just("delete_tree"), st.sampled_from(PATHS)),
)


@given(st.lists(st.tuples(st.lists(OPERATIONS, max_size=8), st.sampled_from(["commit", "drop", "reopen"]))))
def test_it_is_a_tree_in_a_dict(batches: list) -> None:
    store = MemoryMetadataStore()
    image, model = ImageStore(store, CLUSTER), Tree()
    for path in PATHS:
        image.watches.watch_data(path, "data")
        image.watches.watch_children(path, "children")
    for offset, (operations, end) in enumerate(batches):
        before = dict(model.nodes)
        with image.begin() as transaction:
            for name, *arguments in operations:
                outcomes = []
                for tree in (transaction, model):
                    try:
                        getattr(tree, name)(*arguments)
                        outcomes.append(None)
                    except KreplicaError as error:
                        outcomes.append(type(error))
                assert outcomes[0] == outcomes[1], (name, arguments)
            assert all(transaction.children(path) == model.children(path) for path in ("/", *PATHS))
            assert all(transaction.get(path) == model.nodes.get(path) for path in PATHS)
            if end == "drop":
                model.nodes = before
            else:
                check_events(transaction.commit(OffsetAndEpoch(offset, 1)), before, model)
        assert dict(image.nodes()) == model.nodes
        if end == "reopen":
            watches, image = image.watches, ImageStore(store, CLUSTER)
            image.watches = watches
            assert image.applied == (offset, 1)


def check_events(events: list, before: dict[str, Node], model: Tree) -> None:
    """Each watch is told what differs, once, and nothing else."""
    changed = {path: model.nodes.get(path) for path in PATHS if before.get(path) != model.nodes.get(path)}
    told = [event for event in events if isinstance(event, DataChanged)]
    assert [(event.path, event.node) for event in told] == sorted(changed.items())
    former = Tree()
    former.nodes = before
    lists = {path: (former.children(path), model.children(path)) for path in PATHS}
    expected = {
        path: (tuple(sorted({*new} - {*old})), tuple(sorted({*old} - {*new})))
        for path, (old, new) in lists.items()
        if old != new
    }
    told = [event for event in events if isinstance(event, ChildrenChanged)]
    assert {event.path: (event.created, event.deleted) for event in told} == expected
    assert len(told) == len(expected)


# ---- watches ---------------------------------------------------------------------------------------------


def test_watches_are_told_after_the_commit(image: ImageStore) -> None:
    create(image, "/brokers/topics/old")
    image.watches.watch_children("/brokers/topics", "TopicChangeListener")
    image.watches.watch_data("/brokers/topics/new", "AddPartitionsListener")
    with image.begin() as transaction:
        transaction.create("/brokers/topics/new", b"1")
        transaction.create("/brokers/topics/passing")
        transaction.delete("/brokers/topics/passing")
        transaction.delete("/brokers/topics/old")
        transaction.set("/brokers/topics/new", b"2")
        events = transaction.commit(OffsetAndEpoch(2, 1))
    assert events == [
        DataChanged("AddPartitionsListener", "/brokers/topics/new", Node(b"2", 1)),
        ChildrenChanged("TopicChangeListener", "/brokers/topics", ("new",), ("old",)),
    ]
    with image.begin() as transaction:
        transaction.delete("/brokers/topics/new")
        assert transaction.commit(OffsetAndEpoch(3, 1)) == [
            DataChanged("AddPartitionsListener", "/brokers/topics/new", None),
            ChildrenChanged("TopicChangeListener", "/brokers/topics", (), ("new",)),
        ]


def test_watches_of_several_and_of_nobody(image: ImageStore) -> None:
    image.watches.watch_children("/", 1)
    image.watches.watch_children("/", 2)
    image.watches.watch_children("/", 1)
    image.watches.watch_data("/a", 1)
    assert create(image, "/a") == [
        DataChanged(1, "/a", Node(b"/a", 0)),
        ChildrenChanged(1, "/", ("a",), ()),
        ChildrenChanged(2, "/", ("a",), ()),
    ]
    for path, token in (("/", 1), ("/a", 1), ("/b", 1)):
        image.watches.unwatch(path, token)
    assert create(image, "/b", offset=2) == [ChildrenChanged(2, "/", ("b",), ())]
    image.watches.unwatch("/", 2)
    assert create(image, "/c", offset=3) == []


def test_what_is_dropped_is_no_event(image: ImageStore) -> None:
    image.watches.watch_children("/", "token")
    with image.begin() as transaction:
        transaction.create("/a")
    with image.begin() as transaction:
        assert transaction.commit(OffsetAndEpoch(1, 1)) == []


# ---- an image that is not whole --------------------------------------------------------------------------


def test_the_format() -> None:
    key = key_of(STATE)
    assert key == b"\x06" + STATE.encode()
    assert path_of(key) == STATE
    value = seal(key, Node(b"abc", 3))
    assert (value[4:12], value[12:]) == (b"\0\0\0\0\0\0\0\x03", b"abc")
    assert unseal(key, value) == (b"abc", 3)
    standing = Standing(CLUSTER, OffsetAndEpoch(5, 2), 7, 9)
    assert unseal_standing(seal_standing(standing)) == standing


@given(st.integers(0, 10), st.text("/a\0ß", max_size=12) | st.text(max_size=6))
def test_the_names_of_a_key_are_those_of_its_path(depth: int, text: str) -> None:
    key = bytes([depth]) + text.encode(errors="surrogatepass")
    try:
        names = path_of(key).split("/")
    except CorruptImage:
        with pytest.raises(CorruptImage, match="not the key of a node"):
            names_of(key)
    else:
        assert names_of(key) == names


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
        image.get(STATE)
    with pytest.raises(CorruptImage):
        list(image.nodes())
    with image.begin() as transaction, pytest.raises(CorruptImage):
        transaction.set(STATE, b"")
    # The value of another node is as wrong as noise.
    store.write({key: store.get(key_of("/brokers/ids/1"))})
    with pytest.raises(CorruptImage):
        image.get(STATE)
    store.write({key: good})
    assert len(dict(image.nodes())) == 8


def test_a_lost_and_a_stale_node_are_found(store: MetadataStore, image: ImageStore) -> None:
    create(image, STATE)
    key, stale = key_of(STATE), store.get(key_of(STATE))
    with image.begin() as transaction:
        transaction.set(STATE, b"leader 2")
        transaction.commit(OffsetAndEpoch(2, 1))
    for bad in (None, stale):
        good = store.get(key)
        store.write({key: bad})
        with pytest.raises(CorruptImage, match="nodes, but"):
            list(image.nodes())
        store.write({key: good})
    assert dict(image.nodes())[STATE] == (b"leader 2", 1)


@pytest.mark.parametrize("key", [b"\x02/a", b"\x01a", b"\x01/\xff"])
def test_a_key_that_is_no_path_is_found(store: MetadataStore, image: ImageStore, key: bytes) -> None:
    store.write({key: seal(key, Node(b"", 0))})
    with pytest.raises(CorruptImage, match="not the key of a node"):
        list(image.nodes())


def test_a_store_that_leads_in_a_circle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryMetadataStore()
    image = ImageStore(store, CLUSTER)
    create(image, "/a", "/b")
    scan = store.scan
    monkeypatch.setattr(store, "scan", lambda prefix, _after, limit: scan(prefix, b"", limit))
    for read in (lambda: list(image.nodes()), lambda: image.children("/")):
        with pytest.raises(CorruptImage, match="comes after"):
            read()


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
        (node._replace(version=2), "version 2; only 1 is supported"),
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
    with image.begin() as transaction:
        transaction.commit(OffsetAndEpoch(10, 3))
    if text is None:
        image.check_against_log(end_offset, {10: epoch}.get)
    else:
        with pytest.raises(CorruptImage, match=text):
            image.check_against_log(end_offset, {10: epoch}.get)


def test_a_power_cut_in_memory_takes_the_last_write() -> None:
    store = MemoryMetadataStore()
    image = ImageStore(store, CLUSTER)
    create(image, "/a", "/b")
    with image.begin() as transaction:
        transaction.delete("/a")
        transaction.set("/b", b"2")
        transaction.create("/c")
        transaction.commit(OffsetAndEpoch(2, 1))
    store.lose_last_write()
    again = ImageStore(store, CLUSTER)
    assert again.applied == (1, 1)
    assert dict(again.nodes()) == {"/a": (b"/a", 0), "/b": (b"/b", 0)}


def test_events_are_immutable() -> None:
    event = DataChanged("token", "/a", None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.path = "/b"
