"""What docs/OPERATING.md shows is so: its configuration, its commands, its bounds, its systemd unit."""

from __future__ import annotations

import configparser
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import trustme
import typer

from kreplica.broker.node_config import SocketServerConfig
from kreplica.cli import client_config
from kreplica.cli.app import app
from kreplica.cli.options import Chosen
from kreplica.cluster import settings as cluster_settings
from kreplica.log.meta_properties import parse_properties
from kreplica.runtime import kafka_config
from kreplica.runtime.kafka_config import KafkaConfig, read_config_file
from kreplica.runtime.listener import MAX_RECEIVE_BYTES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "OPERATING.md").read_text()
NOTHING_CHOSEN = Chosen(None, None, False, False)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def unit() -> configparser.ConfigParser:
    [text] = blocks("ini")
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser


@pytest.fixture
def config(tmp_path: Path) -> Path:
    [text] = blocks("toml")
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def test_the_configuration_is_one_of_three_nodes(config: Path) -> None:
    made = KafkaConfig.parse(read_config_file(str(config)), "5L6g3nShT-eMCtK--X86sw")
    assert made.node.roles == {"broker", "controller"}
    assert [each.address for each in made.listeners] == [("10.0.0.1", 9092), ("10.0.0.1", 9093)]
    assert list(made.voters) == [1, 2, 3]
    assert made.node.log.min_insync_replicas == 2


def test_the_login_is_that_of_the_shown_client(config: Path, tmp_path: Path) -> None:
    of_node, of_client, _, _, with_certificates, *_ = (
        parse_properties(text.encode(), "the page") for text in blocks("properties")
    )
    made = KafkaConfig.parse({**read_config_file(str(config)), **of_node}, "5L6g3nShT-eMCtK--X86sw")
    clients, nodes, controllers = made.listeners
    assert (clients.name, nodes.login, controllers.login) == ("CLIENTS", None, None)
    trusted = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(trusted))
    client = client_config.parse({**of_client, "ssl.truststore.location": trusted}).login
    assert clients.login is not None
    assert client is not None
    assert clients.login.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert client.password.value == clients.login.passwords[client.user].value
    others = {name: value for name, value in of_node.items() if not name.startswith("listener.name.")}
    trusting = {**others, **with_certificates}
    trusting["listeners"] = "CLIENTS://10.0.0.1:9092,CONTROLLER://10.0.0.1:9093"
    del trusting["inter.broker.listener.name"]
    key = trustme.CA().issue_cert("10.0.0.1").private_key_and_cert_chain_pem
    key.write_to_path(str(tmp_path / "node.pem"))
    trusting |= {"ssl.keystore.location": str(tmp_path / "node.pem"), "ssl.truststore.location": str(trusted)}
    clients = KafkaConfig.parse({**read_config_file(str(config)), **trusting}, "c").listeners[0]
    assert clients.principals is not None
    assert clients.principals.name("CN=alice,O=example") == "alice"


def test_commands_are_understood(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KREPLICA_PASSWORD", "not asked for")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    lines = [line for text in blocks("sh") for line in text.replace("\\\n", "").splitlines()]
    shown = [line for line in lines if line.startswith("kreplica ")]
    shown.append("kreplica " + unit()["Service"]["ExecStart"].split("/kreplica ", 1)[1])
    assert len(shown) >= 40
    command = typer.main.get_command(app)
    for line in shown:
        # Files that have to be there, and what a pipe does with the output.
        line = re.sub(r"/etc/kreplica/node\.toml|\S+/\*\.log", str(config), line.split(" | ")[0])
        line = line.replace("isr-history /var/lib/kreplica", f"isr-history {config.parent}")
        arguments = shlex.split(re.sub(r"--(command-config|profile) \S+ ", "", line), comments=True)[1:]
        found = command
        while hasattr(found, "commands"):
            found = found.commands[arguments.pop(0)]
        assert found.make_context("kreplica", arguments, obj=NOTHING_CHOSEN).params


def test_bounds_are_the_defaults() -> None:
    documented = {}
    for names, values in re.findall(r"^\| (`[a-z]+\.[^|]+) \| (\d[^|]*) \|", PAGE, re.MULTILINE):
        for name, value in zip(re.findall(r"`([\w.]+)`", names), values.split(", "), strict=True):
            number, _, unit_name = value.partition(" ")
            documented[name] = int(number) * UNITS.get(unit_name, 1)
    made = SocketServerConfig()
    defaults = {each.name.replace("_", "."): getattr(made, each.name) for each in fields(made)}
    # What is not limited has no number.
    assert documented == {"sasl.server.max.receive.size": MAX_RECEIVE_BYTES} | {
        name: value for name, value in defaults.items() if isinstance(value, int) and value < 0x7FFFFFFF
    }


def test_timeouts_are_the_defaults() -> None:
    section = PAGE.split("## Timeouts")[1]
    rows = re.findall(r"^\|[^|]+\| `([\w.]+)` \| (\d+) \| (\d+) \|", section, re.MULTILINE)
    assert len(rows) > 8
    for name, *shown in rows:
        attribute = name.removeprefix("controller.").replace(".", "_")
        defaults = [
            next(
                getattr(each, attribute)
                for each in (of.RAFT, of.BROKER, of.CONTROLLER)
                if hasattr(each, attribute)
            )
            for of in (cluster_settings, kafka_config)
        ]
        assert [int(each) for each in shown] == defaults, name
