"""meta.properties: Java's syntax, Kafka's names, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidFile
from kreplica.common.types import Uuid
from kreplica.log.meta_properties import MetaProperties, MetaPropertiesFile, parse_properties
from tests.support.damage import bit_flips, truncations
from tests.support.memory_storage import MemoryStorage

PATH = "data/meta.properties"
DIRECTORY_ID = Uuid.parse("k-y5uEouS4C-yxncP1dpSQ")

# As Kafka 4.3.0 on Java 17 wrote it, with a cluster id made to be escaped.
KAFKA_WROTE = """#
#Sat Nov 21 08:35:09 UTC 2026
node.id=3
directory.id=k-y5uEouS4C-yxncP1dpSQ
version=1
cluster.id=we\\=i\\:r d\\#é€\\!
""".encode()
PROPERTIES = MetaProperties("we=i:r d#é€!", 3, DIRECTORY_ID)


def without_comments(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if not line.startswith(b"#")]


def test_kafkas_lines() -> None:
    assert MetaPropertiesFile.parse(KAFKA_WROTE, PATH) == PROPERTIES
    assert without_comments(MetaPropertiesFile.format(PROPERTIES)) == without_comments(KAFKA_WROTE)


def test_through_the_storage() -> None:
    storage = MemoryStorage()
    file = MetaPropertiesFile(storage, "data")
    assert file.read() is None
    file.write(PROPERTIES)
    storage.crash()
    assert file.read() == PROPERTIES


def test_javas_syntax() -> None:
    text = (
        b"! a comment\n\n  # another\\\n"
        b"a=1\nb : 2\nc 3\n\td\t=\t4\ne\ng = one\\\n   two\\\n\n"
        b"h\\=i=back\\\\slash\\tand\\qnone\r\nj==k\n \\ l = m \n"
    )
    assert parse_properties(text, PATH) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4",
        "e": "",
        "g": "onetwo",
        "h=i": "back\\slash\tandqnone",
        "j": "=k",
        " l": "m ",
    }


@pytest.mark.parametrize(
    ("find", "put"),
    [
        (b"version=1", b"version=0"),
        (b"version=1", b"version=2"),
        (b"version=1\n", b""),
        (b"node.id=3", b"node.id="),
        (b"node.id=3", b"broker.id=3"),
        (b"node.id=3", b"node.id=-3"),
        (b"node.id=3", b"node.id=2147483648"),
        (b"node.id=3", "node.id=٣".encode()),
        (b"node.id=3", b"node.id=" + b"3" * 5000),
        (b"node.id=3", b"node.id=3\nnode.id=3"),
        (b"k-y5uEouS4C-yxncP1dpSQ", b"none"),
        (b"k-y5uEouS4C-yxncP1dpSQ", b"AAAAAAAAAAAAAAAAAAAAAg"),
        (b"cluster.id", b"cluster_id"),
        (b"r d", b"r\\u0020d"),
        ("é".encode(), b"\xe9"),
        (b"\\!\n", b"\\!"),
        (b"\\!\n", b"\\!\\"),
    ],
)
def test_refused_with_its_name(find: bytes, put: bytes) -> None:
    assert find in KAFKA_WROTE
    with pytest.raises(InvalidFile, match=f"^{PATH}: ") as caught:
        MetaPropertiesFile.parse(KAFKA_WROTE.replace(find, put), PATH)
    assert len(str(caught.value)) < 200


def test_directory_id_may_be_missing_and_other_names_be_there() -> None:
    data = b"version=1\nnode.id=0\ncluster.id=c\nsomething.else=1\n"
    assert MetaPropertiesFile.parse(data, PATH) == MetaProperties("c", 0)
    assert b"directory.id" not in MetaPropertiesFile.format(MetaProperties("c", 0))


def test_every_truncation_is_refused() -> None:
    for cut in truncations(KAFKA_WROTE):
        with pytest.raises(InvalidFile):
            MetaPropertiesFile.parse(cut, PATH)


def test_flipped_bits_are_refused_or_keep_to_the_rules() -> None:
    for flipped in bit_flips(KAFKA_WROTE):
        try:
            found = MetaPropertiesFile.parse(flipped, PATH)
        except InvalidFile:
            continue
        assert found.node_id >= 0


CLUSTER_IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(CLUSTER_IDS, st.integers(0, 2**31 - 1), st.none() | st.just(DIRECTORY_ID))
def test_round_trip(cluster_id: str, node_id: int, directory_id: Uuid | None) -> None:
    properties = MetaProperties(cluster_id, node_id, directory_id)
    assert MetaPropertiesFile.parse(MetaPropertiesFile.format(properties), PATH) == properties


@given(st.text(st.sampled_from("ab\\ \t\n\r=:#!u1"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        values = parse_properties(text.encode() + b"\n", PATH)
    except InvalidFile:
        return
    assert len(values) <= text.count("\n") + 1
