"""`kreplica top` at a node of Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kreplica.cli.app import app
from tests.conformance.kafka_peer import Node

pytestmark = pytest.mark.conformance


def test_top_shows_what_kafka_answers(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        made = CliRunner().invoke(
            app, ["topic", "create", "orders", "-b", node.bootstrap, "--partitions", "2"]
        )
        assert made.exit_code == 0, made.output
        arguments = ["top", "-b", node.bootstrap, "--once", "--interval", "0.1", "--json"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert (shown["problems"], shown["without_leader"]) == ([], 0)
    [broker] = shown["brokers"]
    assert (shown["quorum_leader"], broker["usable_bytes"] > 0) == (broker["broker"], True)
    assert {"topic": "orders", "partitions": 2, "under_replicated": 0, "records_per_s": 0.0} in shown[
        "topics"
    ]
