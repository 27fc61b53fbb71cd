"""Settings: kinds of values, their ranges, and what is said of a value that is out of its range."""

from __future__ import annotations

import dataclasses

import pytest

from kreplica.broker.node_config import BrokerConfig, SocketServerConfig
from kreplica.common.config import CleanerConfig, LogConfig, LogManagerConfig, MetadataLogConfig
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import (
    BOOLEAN,
    TEXT,
    Settings,
    checked,
    int16,
    int32,
    int64,
    number,
    one_of,
    optional,
)
from kreplica.controller.controller_config import ControllerConfig
from kreplica.coordinator.group_config import GroupConfig
from kreplica.raft.raft_config import RaftConfig
from kreplica.replica.replica_config import ReplicaConfig

ALL = (
    BrokerConfig,
    CleanerConfig,
    ControllerConfig,
    GroupConfig,
    LogConfig,
    LogManagerConfig,
    MetadataLogConfig,
    RaftConfig,
    ReplicaConfig,
    SocketServerConfig,
)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int32(1 << 20), 12, "n=12 is below the minimum of 1,048,576"),
        (int32(1), "-5", "n=-5 is below the minimum of 1"),
        (int32(0), 1 << 31, "n=2147483648 is above the maximum of 2,147,483,647"),
        (int16(1), 1 << 15, "n=32768 is above the maximum of 32,767"),
        (int64(0), 1 << 63, "n=9223372036854775808 is above the maximum of 9,223,372,036,854,775,807"),
        (int32(1, 9, also=-1), 0, "n=0 is below the minimum of 1, and not -1"),
        (int32(1), True, "n=True is not an integer"),
        (int32(1), "one", "n=one is not an integer"),
        (int32(1), 1.0, "n=1.0 is not an integer"),
        (int32(1), None, "n=None is not an integer"),
        (optional(int32(1)), 0, "n=0 is below the minimum of 1"),
        (number(0, 1), "1.5", "n=1.5 is above the maximum of 1"),
        (number(0, 1), -1, "n=-1 is below the minimum of 0"),
        (number(0, above=True), 0, "n=0 is not above 0"),
        (number(0), "nan", "n=nan is not a number"),
        (number(0), True, "n=True is not a number"),
        (BOOLEAN, "yes", "n=yes is not true or false"),
        (TEXT, b"a", "n=b'a' is not text"),
        (one_of(("a", "b")), "c d", "n='c d' is not one of a, b"),
    ],
)
def test_a_value_out_of_its_range_is_named_with_the_range(kind, value, words):
    with pytest.raises(InvalidConfig) as caught:
        checked("n", value, kind)
    assert str(caught.value) == words


def test_values_come_as_text_or_as_themselves():
    assert checked("n", " 7 ", int32(1)) == checked("n", 7, int32(1)) == 7
    assert checked("n", -1, int32(1, 9, also=-1)) == -1
    assert checked("n", None, optional(int32(1))) is None
    assert checked("n", "0.5", number(0, 1)) == 0.5
    assert checked("n", 5, TEXT) == "5"


@pytest.mark.parametrize("settings", ALL)
def test_defaults_are_in_their_ranges_and_read_back(settings: type[Settings]):
    made = settings()
    assert settings.parse(made.properties()) == made
    assert made.overrides() == {}


@pytest.mark.parametrize("settings", ALL)
def test_no_integer_setting_takes_what_its_range_excludes(settings: type[Settings]):
    """Each bound that the table states is one that the constructor holds."""
    kinds = {field.name: field.metadata["kind"] for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    integers = {name: kind for name, kind in kinds.items() if kind.type in ("int", "long", "short")}
    for name, kind in integers.items():
        for value in (-(1 << 40), 1 << 63):
            with pytest.raises(InvalidConfig, match=settings.property_name(name)):
                settings(**{name: value})
        assert kind.valid


@pytest.mark.parametrize(
    ("settings", "values", "words"),
    [
        (ReplicaConfig, {"num_replica_fetchers": 0}, "num.replica.fetchers=0 is below the minimum of 1"),
        (ReplicaConfig, {"replica_lag_time_max_ms": -5}, "replica.lag.time.max.ms=-5 is below the minimum"),
        (
            ReplicaConfig,
            {"replica_fetch_wait_max_ms": 600, "replica_lag_time_max_ms": 500},
            "replica.fetch.wait.max.ms=600 is above replica.lag.time.max.ms=500",
        ),
        (
            ReplicaConfig,
            {"replica_fetch_wait_max_ms": 600, "replica_socket_timeout_ms": 500},
            "replica.fetch.wait.max.ms=600 is above replica.socket.timeout.ms=500",
        ),
        (
            GroupConfig,
            {"group_min_session_timeout_ms": 6, "group_max_session_timeout_ms": 5},
            "group.min.session.timeout.ms=6 is above group.max.session.timeout.ms=5",
        ),
        (
            RaftConfig,
            {"quorum_fetch_wait_max_ms": 600, "quorum_fetch_timeout_ms": 1_000},
            "controller.quorum.fetch.wait.max.ms=600 is above half of controller.quorum.fetch.timeout.ms",
        ),
        (
            RaftConfig,
            {"quorum_fetch_wait_max_ms": 500, "quorum_request_timeout_ms": 500},
            "controller.quorum.fetch.wait.max.ms=500 is not below controller.quorum.request.timeout.ms=500",
        ),
        (RaftConfig, {"quorum_election_timeout_ms": 0}, "controller.quorum.election.timeout.ms=0 is below"),
    ],
)
def test_what_would_hang_or_contradict_itself_is_refused(settings, values, words):
    with pytest.raises(InvalidConfig) as caught:
        settings(**values)
    assert words in str(caught.value)
