"""Nodes that cannot be: each is refused with its reason, and finds its directory as it was."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kreplica.cli import main, serve
from tests.support.serving import contents

CLUSTER = "abcdefghijklmnopqrstuv"
Run = Callable[..., tuple[int, str]]
GOOD = ["--directory", "good", "--node-id", "1", "--listen", ":0", "--quorum", "1@127.0.0.1:1"]
FORMAT = ["--cluster-id", CLUSTER, "--node-id"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a command line in `tmp_path`: its exit code, and what it said on standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["kreplica", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return int(code or 0), " ".join(capsys.readouterr().err.replace("\u2502", " ").split())

    return run


@pytest.mark.usefixtures("commands_are_built_once")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["serve", *GOOD[2:], "--directory", "missing"],
            1,
            "missing is not formatted: run `kreplica format --directory",
        ),
        (["serve", *GOOD, "--directory", "other"], 1, "other belongs to node 2, not to 1"),
        (
            ["serve", *GOOD, "--directory", "foreign"],
            1,
            "foreign belongs to cluster another, not to " + CLUSTER,
        ),
        (["serve", *GOOD, "--set", "num.partitons=3"], 1, "'num.partitons'; is it 'num.partitions'?"),
        (["serve", *GOOD, "--set", "num.partitions"], 2, "expected NAME=VALUE"),
        (["serve", *GOOD, "--quorum", "1@nowhere"], 1, "'1@nowhere' is not id@host:port"),
        (["serve", *GOOD[:-2]], 1, "controller.quorum.voters"),
        (["serve", *GOOD, "--listen", "nowhere"], 1, "'nowhere' is not host:port"),
        (["serve", "--brokers", "3", *GOOD[:2], *GOOD[-2:]], 2, "--quorum belongs to one node"),
        (["serve", "--brokers", "3"], 2, "one --directory"),
        (["serve", "--brokers", "3", *GOOD[:2], "--listen", ":65535"], 1, "6 ports from 65535 on"),
        (["serve", "--brokers", "3", *GOOD[:2], "--set", "log.dri=x"], 1, "is it 'log.dir'?"),
        (["serve", "--config", "none.toml"], 2, "does not exist"),
        (
            ["format", *GOOD[:4], "--cluster-id", "another"],
            1,
            f"belongs to cluster {CLUSTER}, not to another",
        ),
        (["format", *GOOD[:4], "--cluster-id", CLUSTER], 1, "formatted already: --ignore-formatted leaves"),
        (["format", *GOOD[:2], *FORMAT, "2"], 1, "good belongs to node 1, not to 2"),
        (["format", *GOOD[:2], *FORMAT, "-1"], 2, "--node-id"),
        (["format", *GOOD[:2], "--node-id", "1", "--cluster-id", "a b"], 1, "is not a cluster id"),
    ],
)
def test_what_is_refused_says_why_and_changes_nothing(
    run: Run, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    for directory, node_id, cluster_id in (
        ("good", "1", CLUSTER),
        ("other", "2", CLUSTER),
        ("foreign", "1", "another"),
    ):
        formatted = run("format", "--directory", directory, "--cluster-id", cluster_id, "--node-id", node_id)
        assert formatted == (0, "")
    before = contents(tmp_path)
    ended, said = run(*arguments)
    assert words in said
    assert ended == code
    assert "Traceback" not in said
    assert contents(tmp_path) == before


def test_formatting_again_may_be_passed_over(run: Run, tmp_path: Path) -> None:
    arguments = ["format", "--directory", "a", "--directory", "b", "--node-id", "1"]
    assert run(*arguments) == (0, "")
    before = contents(tmp_path)
    cluster_id = (tmp_path / "a" / "meta.properties").read_text().split("cluster.id=")[1].strip()
    assert run(*arguments, "--cluster-id", cluster_id, "--ignore-formatted") == (0, "")
    assert contents(tmp_path) == before
    assert {Path(each).parent.name for each in before} == {"a", "b"}


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_is_one_object_a_line_with_the_error_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    serve.set_up_logging("json", "info", "node-1")
    logger = logging.getLogger("kreplica.test")
    logger.debug("not logged")
    logger.info("two\nlines %d", 2)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["node"], first["level"], first["message"]) == ("node-1", "INFO", "two\nlines 2")
    assert first["time"].endswith("+00:00")
    assert "error" not in first
    assert second["error"].endswith("ValueError: why")


def test_text_names_the_node_and_takes_the_place_of_what_was_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    serve.set_up_logging("json", "info", "node-1")
    serve.set_up_logging("text", "warning", "node-2")
    logging.getLogger("kreplica.test").info("not logged")
    logging.getLogger("kreplica.test").warning("logged")
    assert capsys.readouterr().err.endswith(" node-2 WARNING kreplica.test: logged\n")
