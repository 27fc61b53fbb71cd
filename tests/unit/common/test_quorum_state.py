"""The text of quorum-state: Kafka's bytes, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidFile, UnsupportedVersion
from kreplica.common.quorum_state import QuorumStateData, format_quorum_state, parse_quorum_state
from kreplica.common.types import INT32_MAX, INT64_MAX, Uuid
from tests.support.damage import bit_flips, truncations

# As FileQuorumStateStore of Kafka 4.3.0 wrote them.
KAFKA_WROTE = [
    (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":2},{"voterId":1}],"data_version":0}',
        QuorumStateData(leader_epoch=3, leader_id=1, current_voters=(2, 1), data_version=0),
    ),
    (
        b'{"leaderId":-1,"leaderEpoch":3,"votedId":2,"votedDirectoryId":"GOoy2S__S-W61Ll1gj1JxQ",'
        b'"data_version":1}',
        QuorumStateData(3, voted_id=2, voted_directory_id=Uuid.parse("GOoy2S__S-W61Ll1gj1JxQ")),
    ),
    (
        b'{"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
        QuorumStateData(leader_epoch=3, leader_id=1),
    ),
]


@pytest.mark.parametrize(("data", "state"), KAFKA_WROTE)
def test_kafkas_bytes(data: bytes, state: QuorumStateData) -> None:
    assert parse_quorum_state(data) == state
    assert format_quorum_state(state) == data


NODES = st.integers(-1, INT32_MAX)
STATES = st.one_of(
    st.builds(
        QuorumStateData,
        st.integers(0, INT32_MAX),
        NODES,
        NODES,
        st.binary(min_size=16, max_size=16).map(Uuid),
    ),
    st.builds(
        QuorumStateData,
        st.integers(0, INT32_MAX),
        NODES,
        NODES,
        cluster_id=st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        applied_offset=st.integers(0, INT64_MAX),
        current_voters=st.none() | st.lists(st.integers(0, INT32_MAX), max_size=5).map(tuple),
        data_version=st.just(0),
    ),
)


@given(STATES)
def test_round_trip(state: QuorumStateData) -> None:
    assert parse_quorum_state(format_quorum_state(state)) == state


@pytest.mark.parametrize("version", [2, 7, INT32_MAX])
def test_another_version_is_refused_by_that_name(version: int) -> None:
    fields = json.loads(KAFKA_WROTE[1][0]) | {"data_version": version}
    with pytest.raises(UnsupportedVersion, match=f"version {version}"):
        parse_quorum_state(json.dumps(fields).encode(), "data/quorum-state")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        {"leaderEpoch": -1},
        {"leaderEpoch": None},
        {"leaderEpoch": "3"},
        {"leaderEpoch": 3.0},
        {"leaderEpoch": True},
        {"leaderEpoch": INT32_MAX + 1},
        {"leaderId": -2},
        {"votedId": [1]},
        {"data_version": -1},
        {"data_version": "1"},
        {"votedDirectoryId": "short", "currentVoters": 5},
        {"votedDirectoryId": None, "currentVoters": [1]},
        {"votedDirectoryId": 7, "currentVoters": [{"voterId": -1}]},
        {"votedDirectoryId": "", "clusterId": None},
    ],
)
def test_wrong_fields_refused(which: int, change: dict[str, object]) -> None:
    fields = json.loads(KAFKA_WROTE[which][0]) | change
    with pytest.raises(InvalidFile, match=r"^data/quorum-state: "):
        parse_quorum_state(json.dumps(fields).encode(), "data/quorum-state")


@pytest.mark.parametrize("data", [data for data, _ in KAFKA_WROTE])
def test_missing_fields_refused(data: bytes) -> None:
    fields = json.loads(data)
    for name in fields:
        with pytest.raises(InvalidFile):
            parse_quorum_state(json.dumps({n: v for n, v in fields.items() if n != name}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\0" * 100,
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"leaderEpoch":' + b"9" * 10_000 + b"}",
        KAFKA_WROTE[2][0][:-1] + b',"leaderId":2}',
        KAFKA_WROTE[2][0] * 2,
    ],
)
def test_what_is_no_single_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidFile):
        parse_quorum_state(data)


@pytest.mark.parametrize("data", [data for data, _ in KAFKA_WROTE])
def test_truncations_and_flips_are_refused_or_keep_the_shape(data: bytes) -> None:
    for cut in truncations(data):
        with pytest.raises(InvalidFile):
            parse_quorum_state(cut)
    for flipped in bit_flips(data):
        try:
            parse_quorum_state(flipped)  # without a checksum a digit may turn into another one unseen
        except (InvalidFile, UnsupportedVersion):
            continue


@given(st.binary(max_size=80))
def test_noise_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidFile):
        parse_quorum_state(data)
