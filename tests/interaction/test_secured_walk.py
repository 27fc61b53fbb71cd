"""docs/SECURED_CLUSTER.md, taken step by step; only its addresses, paths and certificates are other ones."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner

from kreplica.cli import client_config
from kreplica.cli.app import app
from kreplica.common.errors import NetworkException, TopicAuthorizationFailed
from kreplica.runtime.kafka_config import read_config_file
from kreplica.runtime.tcp_node import KafkaRaftServer
from tests.support.ports import free_addresses

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "SECURED_CLUSTER.md").read_text()
NODES = (1, 2, 3)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class Walk:
    """The page's files in a directory, and its commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        found = free_addresses(2 * len(NODES))
        self.ports = {
            f"10.0.0.{node_id}:{port}": f"127.0.0.1:{found.pop()[1]}"
            for node_id in NODES
            for port in (9092, 9093)
        }
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        made = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
        made.write_to_path(str(directory / "node.pem"))
        self.of_node, of_admin, of_alice = blocks("properties")
        for name, text in (("admin", of_admin), ("alice", of_alice)):
            assert f"# {name}.properties" in text
            (directory / f"{name}.properties").write_text(self.here(text))
        self.failures: list[BaseException] = []
        self.servers = [self.server(node_id) for node_id in NODES]

    def here(self, text: str) -> str:
        for address, own in self.ports.items():
            text = text.replace(address, own)
        return re.sub(r"(/etc/kreplica/|(?<==)(?=ca\.pem))", f"{self.directory}/", text)

    def server(self, node_id: int) -> KafkaRaftServer:
        own = self.of_node.replace("node.id=1", f"node.id={node_id}")
        for port in (9092, 9093):
            own = own.replace(f"://10.0.0.1:{port}", f"://10.0.0.{node_id}:{port}")
        logs = self.directory / f"logs-{node_id}"
        file = self.directory / f"node-{node_id}.properties"
        file.write_text(self.here(own).replace("/var/lib/kreplica", str(logs)))
        [line] = [line for line in self.commands() if line.startswith("kreplica format")]
        line = line.replace("/var/lib/kreplica", str(logs)).replace("--node-id 1", f"--node-id {node_id}")
        self.run(line)
        return KafkaRaftServer(read_config_file(str(file)), self.failures.append)

    def commands(self) -> list[str]:
        return [line for text in blocks("sh") for line in text.replace("\\\n", "").splitlines()]

    def run(self, line: str) -> Any:
        words, text = shlex.split(line), None
        if "|" in words:
            at = words.index("|")
            text, words = f"{words[1]}\n", words[at + 1 :]
        words = [str(self.directory / each) if each.endswith(".properties") else each for each in words]
        brokers = ",".join(own for shown, own in self.ports.items() if shown.endswith(":9092"))
        environment = {"KREPLICA_BOOTSTRAP": brokers, "KREPLICA_PASSWORD": "sesame"}
        return CliRunner().invoke(app, words[1:], env=environment, input=text)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    made = Walk(tmp_path)
    try:
        for server in made.servers:
            server.start()
        for server in made.servers:
            server.node.ready.result(60)
        yield made
        assert made.failures == []
    finally:
        client_config.use(None)
        for server in made.servers:
            if server.is_alive:
                server.close()


def test_the_page_is_followed_to_its_end(walk: Walk) -> None:
    lines = [line for line in walk.commands() if "--command-config" in line]
    assert len(lines) == 9
    *good, denied = lines
    for line in good:
        result = walk.run(line)
        assert result.exit_code == 0, (line, result.output, result.exception)
        if "acl list" in line:
            assert result.output.count("User:alice") == 4
        if " consume " in line:
            assert "the first record" in result.output
    assert isinstance(walk.run(denied).exception, TopicAuthorizationFailed)
    # Without a login, and without trust, a client gets nothing.
    (walk.directory / "stranger.properties").write_text("security.protocol=SSL\n")
    stranger = walk.run("kreplica --command-config stranger.properties topic list").exception
    assert isinstance(stranger, NetworkException)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
def test_the_certificates_of_the_page_fit_each_other(tmp_path: Path) -> None:
    script = blocks("sh")[0]
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    verify = ["openssl", "verify", "-CAfile", "ca.pem", "-verify_ip", "10.0.0.1", "node.crt"]
    assert "OK" in subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    text = (tmp_path / "node.pem").read_text()
    assert "PRIVATE KEY" in text
    assert "CERTIFICATE" in text
