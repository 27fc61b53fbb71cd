"""The example of Kafka Streams on a cluster in its own process, with Kafka's jars."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.conformance.kafka_peer import class_path

pytestmark = pytest.mark.conformance

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "streams_on_kreplica.py"


def test_the_words_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](class_path(), str(tmp_path))
    assert capsys.readouterr().out == "a 3\ndurable 1\nis 2\nlog 2\nsequence 1\n"
