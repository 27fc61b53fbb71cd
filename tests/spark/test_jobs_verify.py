"""Verification and comparison by Spark find what the one-machine tools find, in the same words."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from kreplica.spark import jobs
from kreplica.spark.jobs.spread import shared_out
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from kreplica.cli.app import app
from kreplica.common.errors import InvalidFile
from kreplica.log.verify import Problem, verify
from kreplica.raft.metadata_log_directory import verify_snapshots
from kreplica.runtime.storage import FileStorage
from tests.conformance.expectation import FIXTURES
from tests.unit.log.diff.replicas import batch, replica

KAFKA = FIXTURES / "clean" / "logs"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's directory of Kafka's in which much went wrong, beside the partitions, too."""
    copy = shutil.copytree(KAFKA, tmp_path_factory.mktemp("logs") / "node")
    shutil.rmtree(copy / "idempotent-0")
    shutil.copytree(KAFKA / "segments-0", copy / "other-7")
    flip(copy / "segments-0" / "00000000000000000012.log", 100)
    flip(copy / "codec-zstd-0" / "00000000000000000000.log", 90)
    (copy / "codec-none-0" / "00000000000000000000.index").unlink()
    (copy / "epochs-0" / "leader-epoch-checkpoint").write_text("no such file\n")
    (copy / "meta.properties").write_text("version=7\n")
    starts = copy / "log-start-offset-checkpoint"
    starts.write_text("0\n1\ncompacted 0 7000\n")
    (copy / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint").write_bytes(b"torn")
    return copy


def one_machine(*paths: Path) -> list[Problem]:
    storage = FileStorage()
    found: list[Problem] = []
    for path in map(str, paths):
        found += verify(storage, path)
        found += verify_snapshots(storage, path) if storage.is_directory(path) else ()
    return found


def problems(frame: DataFrame) -> list[Problem]:
    rows = frame.collect()
    for row in rows:
        if row.topic is not None:
            at = f"{row.topic}-{row.partition}"
            assert Path(row.path).parent.name == at or at in row.text, row
    return [Problem(row.path, row.kind, row.text, row.offset, row.position) for row in rows]


def test_verify_finds_what_the_tool_finds(spark: SparkSession, node: Path) -> None:
    paths = [node, KAFKA, node / "segments-0", node / "codec-zstd-0" / "00000000000000000000.log"]
    expected = one_machine(*paths)
    kinds = {problem.kind for problem in expected}
    assert {"InvalidCrc", "MissingIndex", "InvalidFile", "OffsetBeyondLog", "MissingOffsets"} & kinds
    assert any("__cluster_metadata-0" in problem.path for problem in expected)
    assert any(Path(problem.path).parent == node for problem in expected)
    assert Counter(problems(jobs.verify(spark, paths))) == Counter(expected)


def test_verify_finds_nothing_in_what_is_sound(spark: SparkSession) -> None:
    assert jobs.verify(spark, KAFKA).count() == 0
    assert jobs.verify(spark, KAFKA).schema.names[:3] == ["topic", "partition", "path"]


def test_what_cannot_be_verified_is_said_before_a_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidFile, match="neither a segment nor a directory with a log"):
            jobs.verify(spark, path)
        with pytest.raises(InvalidFile):
            jobs.diff(spark, KAFKA, path)
    with pytest.raises(InvalidFile, match="name two partition directories"):
        jobs.diff(spark, KAFKA, KAFKA / "segments-0")


# ---- diff -------------------------------------------------------------------------------------------------


def lines(*arguments: object) -> tuple[int, list[dict[str, object]]]:
    result = CliRunner().invoke(app, [str(each) for each in (*arguments, "--json")])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_the_commands_say_the_same_on_both_engines(spark: SparkSession, node: Path) -> None:
    """The session of the tests is the one that the commands find."""
    assert SparkSession.getActiveSession() is spark
    committed = ("--isolation", "read_committed", "--records")
    for command in (("verify", node), ("diff", KAFKA, node), ("diff", KAFKA, node, *committed)):
        code, expected = lines(*command)
        assert code == 1
        found = lines(*command, "--engine", "spark")
        assert found[0] == 1
        assert sorted(map(json.dumps, found[1])) == sorted(map(json.dumps, expected))
    for command in (("verify", KAFKA), ("diff", KAFKA, KAFKA)):
        arguments = [*map(str, command), "--engine", "spark"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    shown = [CliRunner().invoke(app, ["diff", str(KAFKA), str(node), *more]).stdout for more in ENGINES]
    assert sorted(shown[0].splitlines()) == sorted(shown[1].splitlines())


ENGINES = ([], ["--engine", "spark"])


def test_a_row_for_each_problem_of_two_replicas(spark: SparkSession, tmp_path: Path) -> None:
    common = [batch(0, [b"a", b"b"])]
    left = replica(tmp_path / "l" / "t-0", [*common, batch(2, [b"left"], 4)], epochs=[(0, 0), (4, 2)])
    right = replica(tmp_path / "r" / "t-0", [*common, batch(2, [b"right"], 5)], epochs=[(0, 0), (5, 2)])
    position = len(common[0])
    rows = jobs.diff(spark, left, right).orderBy("kind", "side").collect()
    found = [(row.topic, row.partition, row.side, row.position, row.offset, row.kind) for row in rows]
    assert found == [
        ("t", 0, "left", position, 2, "batch"),
        ("t", 0, "right", position, 2, "batch"),
        ("t", 0, "left", None, 2, "epochs"),
        ("t", 0, "right", None, 2, "epochs"),
    ]
    assert [row.path for row in rows[:2]] == [f"{side}/{'0' * 20}.log" for side in (left, right)]
    assert rows[0].text == "the replicas part at offset 2, here in leader epoch 4"


def test_what_was_lost_or_cannot_be_read_is_a_row(spark: SparkSession, node: Path) -> None:
    found = {row.topic: row for row in jobs.diff(spark, KAFKA, node).collect()}
    assert sorted(found) == ["codec-zstd", "epochs", "segments"]
    lost = found["segments"]
    assert (lost.kind, lost.side, lost.offset, lost.position) == ("lost", "right", 12, 0)
    assert lost.text.startswith("offsets 12 to 14 are lost: ")
    assert found["epochs"].kind == "unread"
    outcomes = {row.topic: row.outcome for row in jobs.compare(spark, KAFKA, node).collect()}
    assert (outcomes["idempotent"], outcomes["other"]) == ("only left", "only right")


def test_records_of_compacted_replicas(spark: SparkSession, tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", [batch(0, [b"a"]), batch(1, [b"b", b"c"])])
    right = replica(tmp_path / "r" / "t-0", [batch(0, [b"a"]), batch(2, [b"c"])])
    assert jobs.diff(spark, left, right).count() > 0
    assert jobs.diff(spark, left, right, by_record=True).count() == 0


# ---- the engine -------------------------------------------------------------------------------------------


def test_shares_are_even_and_lose_nothing() -> None:
    pieces = [(n, n * n) for n in range(50)]
    shares = shared_out(pieces, 7)
    assert sorted(n for share in shares for n in share) == list(range(50))
    sizes = [sum(n * n for n in share) for share in shares]
    assert max(sizes) - min(sizes) < 49 * 49
    assert shared_out([], 7) == [[]]


def test_without_pyspark_the_command_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from kreplica.cli import main; main()"
    command = [sys.executable, "-c", program, "verify", str(KAFKA), "--engine", "spark"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    wanted = "--engine spark needs pyspark, which is not installed: pip install 'kreplica[spark]'"
    assert run.stderr == f"kreplica: {wanted}\n"
