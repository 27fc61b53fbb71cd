"""Clients in Java and Go at brokers with several listeners: each gets, and uses, the addresses of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.conformance.foreign_clients import FRANZ_GO
from tests.conformance.kafka_peer import run_java
from tests.interaction.test_several_listeners import Brokers, bootstrap

pytestmark = pytest.mark.conformance

TOOLS = "org.apache.kafka.tools"
LISTENERS = ["CLIENTS", "SIX"]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("nodes"), default_replication_factor=2)
    try:
        made.start(1, 2)
        made.wait()
        yield made
    finally:
        made.close()


def addresses(brokers: Brokers, listener: str) -> list[str]:
    return sorted(bootstrap(brokers.at(node_id, listener)) for node_id in (1, 2))


@pytest.mark.parametrize("listener", LISTENERS)
def test_java_uses_the_addresses_of_its_listener(brokers: Brokers, listener: str) -> None:
    servers = bootstrap(brokers.at(2, listener))
    # It asks each broker at the address that it was given.
    shown = run_java(f"{TOOLS}.BrokerApiVersionsCommand", "--bootstrap-server", servers)
    hosts = dict(re.findall(r"^(\S+) \(id: (\d+) rack: null", shown, re.MULTILINE))
    # Java writes IPv6 in full, and without brackets.
    found = sorted(each.replace("0:0:0:0:0:0:0:1:", "[::1]:").replace("::1:", "[::1]:") for each in hosts)
    assert found == addresses(brokers, listener)
    topic = f"java-{listener.lower()}"
    to_topic = ("--topic", topic, "--bootstrap-server", servers)
    lines = "".join(f"{number}\n" for number in range(10))
    run_java(f"{TOOLS}.TopicCommand", "--create", *to_topic, "--partitions", "4", "--replication-factor", "2")
    run_java(f"{TOOLS}.ConsoleProducer", *to_topic, standard_input=lines)
    read = run_java(
        f"{TOOLS}.consumer.ConsoleConsumer", *to_topic, "--from-beginning", "--max-messages", "10"
    )
    assert sorted(map(int, read.split())) == list(range(10))


@pytest.mark.parametrize("listener", LISTENERS)
def test_franz_go_uses_the_addresses_of_its_listener(
    brokers: Brokers, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := FRANZ_GO.missing():
        pytest.skip(reason)
    monkeypatch.setenv("EXPECTED_BROKERS", ",".join(addresses(brokers, listener)))
    FRANZ_GO.run(bootstrap(brokers.at(1, listener)), "addresses")
