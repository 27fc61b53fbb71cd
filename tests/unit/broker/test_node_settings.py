"""A node's settings: one table for files, --set, config= and AlterConfigs."""

from __future__ import annotations

import pytest

import kreplica
from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_settings import with_settings
from kreplica.cli.serve import from_config
from kreplica.common.errors import InvalidConfig
from kreplica.runtime.kafka_config import KafkaConfig

NODE = NodeConfig(node_id=1, cluster_id="c", directories=("/d",))
LEAST = {"node.id": 1, "log.dirs": "/d", "controller.quorum.voters": "1@a:9093"}
REFUSED = [
    ({"num.replica.fetchers": 0}, "num.replica.fetchers=0 is below the minimum of 1"),
    ({"replica.lag.time.max.ms": -5}, "replica.lag.time.max.ms=-5 is below the minimum of 1"),
    ({"replica.lag.time.max.ms": 400}, "replica.fetch.wait.max.ms=500 is above replica.lag.time.max.ms=400"),
    ({"broker.heartbeat.interval.ms": 60_000}, "broker.heartbeat.interval.ms=60000 is not below"),
    ({"log.segment.bytes": 12}, "segment.bytes=12 is below the minimum of 14"),
    ({"log.retention.ms": 0}, "log.retention.ms=0 would delete every record"),
    ({"log.retention.hours": -2}, "log.retention.hours=-2 is below the minimum of -1"),
    ({"socket.request.max.bytes": 0}, "socket.request.max.bytes=0 is below the minimum of 1"),
    ({"num.io.threads": 0}, "num.io.threads=0 is below the minimum of 1"),
    ({"ssl.provider": "k"}, "ssl.provider is not supported: OpenSSL encrypts"),
    ({"remote.log.storage.system.enable": True}, "there is no tiered storage"),
    ({"num.partitons": 3}, "is it 'num.partitions'"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_a_value_is_refused_alike_in_every_place(settings, words, tmp_path):
    """Nothing is started, and nothing is left in the directory."""
    directory = tmp_path / "cluster"
    with pytest.raises(InvalidConfig) as in_cluster:
        kreplica.Cluster(directory=directory, config=settings)
    assert not directory.exists()
    file = tmp_path / "node.properties"
    texts = {name: str(value).lower() for name, value in settings.items()}
    file.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    with pytest.raises(InvalidConfig) as in_file:
        KafkaConfig.parse({**LEAST, **from_config(str(file), ())}, "c")
    with pytest.raises(InvalidConfig) as by_flag:
        KafkaConfig.parse({**LEAST, **from_config(None, [f"{n}={t}" for n, t in texts.items()])}, "c")
    assert all(words in str(each.value) for each in (in_cluster, in_file, by_flag))


def test_properties_that_change_nothing_are_taken_and_logged(caplog):
    settings = {"num.io.threads": "8", "socket.send.buffer.bytes": 102_400}
    assert with_settings(NODE, settings) == NODE
    assert "num.io.threads, socket.send.buffer.bytes" in caplog.text
    assert KafkaConfig.parse({**LEAST, **settings}, "c").node.node_id == 1


def test_the_bounds_of_listeners_are_settings_of_every_node():
    assert with_settings(NODE, {"max.connections": 7}).server.max_connections == 7


def test_what_a_cluster_gives_to_its_nodes_itself_is_refused():
    with pytest.raises(InvalidConfig, match=r"node\.id is set by the cluster"):
        with_settings(NODE, {"node.id": 7})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"segment.bytes": 12}, "segment.bytes=12 is below the minimum of 14"),
        ({"retention.ms": -2}, "retention.ms=-2 is below the minimum of -1"),
        (
            {"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5},
            "min.compaction.lag.ms=6 is above max.compaction.lag.ms=5",
        ),
    ],
)
def test_a_topics_settings_are_held_to_the_same_ranges(settings, words, tmp_path):
    with pytest.raises(InvalidConfig) as of_log:
        kreplica.Log.open(tmp_path / "log-0", config=settings)
    with kreplica.Cluster(brokers=1) as cluster, pytest.raises(InvalidConfig) as of_topic:
        cluster.create_topic("t", config=settings)
    assert words in str(of_log.value)
    assert words in str(of_topic.value)
