"""LogConfig: names, defaults, ranges, text."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidConfig


def test_defaults_are_kafkas() -> None:
    config = LogConfig()
    assert config.segment_bytes == 1073741824
    assert config.segment_index_bytes == 10485760
    assert config.max_message_bytes == 1048588
    assert config.retention_ms == config.segment_ms == 604800000
    assert config.message_timestamp_after_max_ms == 3600000
    assert config.flush_messages == config.max_compaction_lag_ms == 9223372036854775807
    assert (config.delete, config.compact, config.log_append_time) == (True, False, False)
    assert config.overrides() == {}


def test_both_spellings_and_text_or_values() -> None:
    dotted = {"segment.bytes": " 4096 ", "preallocate": "True", "cleanup.policy": "compact, delete"}
    by_text = LogConfig.parse(dotted)
    by_value = LogConfig(segment_bytes=4096, preallocate=True, cleanup_policy=("compact", "delete"))
    assert by_text == by_value
    assert by_text == LogConfig.parse(
        {"segment_bytes": 4096, "preallocate": True, "cleanup.policy": ["compact", "delete"]}
    )
    assert by_text.overrides() == {
        "segment.bytes": "4096",
        "preallocate": "true",
        "cleanup.policy": "compact,delete",
    }
    assert by_text.compact
    assert by_text.delete


def test_replace_keeps_the_rest() -> None:
    config = LogConfig(segment_ms=5).replace({"retention.ms": "-1"})
    assert (config.segment_ms, config.retention_ms) == (5, -1)


def test_cleanup_policy_may_be_empty_and_drops_repetitions() -> None:
    assert LogConfig.parse({"cleanup.policy": ""}).cleanup_policy == ()
    assert LogConfig.parse({"cleanup.policy": "delete,delete"}).cleanup_policy == ("delete",)


@pytest.mark.parametrize("text", ["*", "1:2,3:4", ""])
def test_throttled_replicas(text: str) -> None:
    config = LogConfig.parse({"leader.replication.throttled.replicas": text})
    assert config.properties()["leader.replication.throttled.replicas"] == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "13"),
        ("segment.bytes", 1 << 31),
        ("segment.bytes", True),
        ("segment.bytes", "1_000"),
        ("segment.bytes", "١٢٣"),
        pytest.param("segment.bytes", "9" * 5000, id="long"),
        pytest.param("segment.bytes", 10**5000, id="huge"),
        ("segment.bytes", b"4096"),
        ("segment.bytes", None),
        ("segment.ms", "1e3"),
        ("retention.bytes", -2),
        ("compression.gzip.level", 0),
        ("compression.zstd.level", 23),
        ("compression.type", "none"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "nan"),
        pytest.param("min.cleanable.dirty.ratio", 10**400, id="overflow"),
        ("min.cleanable.dirty.ratio", "much"),
        ("min.insync.replicas", 0),
        ("preallocate", "yes"),
        ("preallocate", 1),
        ("cleanup.policy", "Delete"),
        ("cleanup.policy", 5),
        ("durability", "hope"),
        ("leader.replication.throttled.replicas", "*,1:2"),
        ("leader.replication.throttled.replicas", "none"),
    ],
)
def test_value_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=name) as caught:
        LogConfig.parse({name: value})
    assert len(str(caught.value)) < 250


def test_constructor_checks_as_parse_does() -> None:
    with pytest.raises(InvalidConfig, match=r"segment\.ms"):
        LogConfig(segment_ms=0)


def test_compaction_lags_in_order() -> None:
    with pytest.raises(
        InvalidConfig, match=r"min\.compaction\.lag\.ms=6 is above max\.compaction\.lag\.ms=5"
    ):
        LogConfig(min_compaction_lag_ms=6, max_compaction_lag_ms=5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention.mss", "; the nearest is 'retention.ms'"),
        ("segement_bytes", "; the nearest is 'segment_bytes'"),
        ("segment_index.bytes", "; the nearest is 'segment.index.bytes'"),
        ("SEGMENT.BYTES", ""),
        ("q" * 10_000, ""),
    ],
)
def test_unknown_name_with_the_nearest_known(name: str, hint: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        LogConfig.parse({name: "1"})
    assert str(caught.value) == f"there is no setting {name[:80]!r}{hint}"


def test_a_setting_under_both_names_refused() -> None:
    with pytest.raises(InvalidConfig, match="twice"):
        LogConfig.parse({"segment.bytes": 100, "segment_bytes": 100})


def test_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogConfig().segment_bytes = 5  # type: ignore[misc]


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "segment.bytes": st.integers(14, 2**31 - 1),
        "retention.ms": st.integers(-1, 2**63 - 1),
        "min.cleanable.dirty.ratio": st.floats(0, 1),
        "preallocate": st.booleans(),
        "compression.type": st.sampled_from(["producer", "lz4"]),
        "cleanup.policy": st.lists(st.sampled_from(["compact", "delete"]), unique=True).map(tuple),
    },
)


@given(SETTINGS)
def test_properties_read_back(settings: dict[str, object]) -> None:
    config = LogConfig.parse(settings)
    assert LogConfig.parse(config.properties()) == config
    assert LogConfig.parse(config.overrides()) == config
    assert len(config.properties()) == len(LogConfig.property_names())


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=30), max_size=3))
def test_any_text_is_taken_or_refused_with_a_typed_error(settings: dict[str, object]) -> None:
    try:
        LogConfig.parse(settings)
    except InvalidConfig:
        return
    assert not settings
