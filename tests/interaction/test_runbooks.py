"""docs/RUNBOOKS.md, followed with real nodes from its first line to its last, at other addresses and paths.

A comment `# On node 2.` says where the lines that follow run.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica.cli import client_config
from kreplica.cli.app import app
from tests.support.node_processes import NodeProcesses
from tests.support.sockets import until
from tests.support.tcp_cluster import CLUSTER_ID

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "RUNBOOKS.md").read_text()
DIRECTORY = "/var/lib/kreplica"
# Steps of the system that stand for what the machine of a test has done already.
DONE = ("pip install --upgrade kreplica",)
EXPECTED = [f"{n:02}" for n in range(20)]


class Nodes(NodeProcesses):
    """Three nodes, and a fourth, which is a broker only and not yet formatted."""

    @property
    def quorum(self) -> str:
        return ",".join(f"{n}@{host}:{port}" for n, (host, port) in self.controllers.items() if n < 4)


class Walk:
    """The page's commands, with the addresses and paths of the test."""

    def __init__(self, nodes: Nodes, directory: Path) -> None:
        self.nodes = nodes
        self.directory = directory
        self.node = 1
        self.results: list[tuple[str, Any]] = []

    def here(self, line: str) -> str:
        other = {"5L6g3nShT-eMCtK--X86sw": CLUSTER_ID}
        for node_id, (host, port) in self.nodes.addresses.items():
            of_node = str(self.nodes.node_directory(node_id))
            other[f"scp -rp 10.0.0.{node_id}:{DIRECTORY}"] = f"cp -a {of_node}"
            other[f"10.0.0.{node_id}:9092"] = f"{host}:{port}"
        other |= {"/backup": f"{self.directory}/backup", "before.json": f"{self.directory}/before.json"}
        for shown, own in other.items():
            line = line.replace(shown, own)
        return line.replace(DIRECTORY, str(self.nodes.node_directory(self.node)))

    def run(self, line: str, *, exit_code: int | None = 0) -> Any:
        """Run a line of the page, which has to end with this exit code; with None any code will do."""
        if line.startswith("#"):
            named = re.search(r"On node (\d)", line)
            self.node = int(named[1]) if named else self.node
            return None
        if line in DONE:
            return None
        if line.startswith("systemctl"):
            self.systemctl(line.split()[1])
            return None
        if not line.startswith("kreplica"):
            subprocess.run(["sh", "-ec", self.here(line)], check=True)
            return None
        result, text = None, None
        for part in self.here(line).split(" | "):
            result = CliRunner().invoke(app, shlex.split(part, comments=True)[1:], input=text)
            shown = (line, result.output, result.exception)
            assert exit_code is None or result.exit_code == exit_code, shown
            text = result.stdout
        self.results.append((line, result))
        return result

    def systemctl(self, verb: str) -> None:
        if verb == "stop":
            # A node without its disk may have ended already.
            if self.node in self.nodes.live:
                assert self.nodes.stop(self.node) == 0
        else:
            # Voters that have lost the others are ready only with them.
            is_alone = len(self.nodes.live) == 0
            self.nodes.start(self.node, wait=not is_alone)

    def chapter(self, title: str) -> list[str]:
        """The lines of a chapter's commands."""
        [text] = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
        blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        return [line for block in blocks for line in block.replace("\\\n", "").splitlines()]

    def facts(self, *arguments: str) -> list[dict[str, Any]]:
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def values(self) -> list[str]:
        return sorted(each["value"] for each in self.facts("consume", "orders"))


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        patch.delenv("KREPLICA_BOOTSTRAP", raising=False)
        nodes = Nodes(
            tmp_path / "nodes",
            4,
            of_nodes={4: {"process.roles": "broker"}},
            default_replication_factor=3,
            min_insync_replicas=2,
        )
        shutil.rmtree(nodes.node_directory(4))
        try:
            for node_id in (1, 2, 3):
                nodes.start(node_id, wait=False)
            for node_id in (1, 2, 3):
                nodes.wait_until_ready(node_id)
            yield Walk(nodes, tmp_path)
        except BaseException:
            nodes.show_logs()
            raise
        finally:
            client_config.use(None)
            nodes.close()


def the_first_lines_name_the_cluster(walk: Walk) -> None:
    first = PAGE.split("\n## ")[0]
    [block] = re.findall(r"^```sh\n(.*?)^```$", first, re.DOTALL | re.MULTILINE)
    for line in block.splitlines():
        walk.run(line)
    walk.run("kreplica topic create orders --partitions 2")
    made = CliRunner().invoke(app, ["produce", "orders"], input="".join(f"{each}\n" for each in EXPECTED))
    assert made.exit_code == 0


def it_grows(walk: Walk) -> None:
    for line in walk.chapter("Grow"):
        walk.run(line)
    counts = {each["id"]: each["replicas"] for each in walk.facts("broker", "list")}
    assert sorted(counts) == [1, 2, 3, 4]
    assert max(counts.values()) - min(counts.values()) <= 1
    assert (walk.directory / "before.json").exists()
    assert walk.values() == EXPECTED


def it_shrinks(walk: Walk) -> None:
    lines = walk.chapter("Shrink")
    for line in lines:
        is_first = line == "kreplica broker decommission 4 --execute --throttle 50MiB"
        result = walk.run(line, exit_code=1 if is_first else 0)
        if is_first:
            assert "has no replicas and still runs: stop it" in result.stderr
    assert [each["id"] for each in walk.facts("broker", "list")] == [1, 2, 3]
    assert walk.values() == EXPECTED


def it_is_upgraded_node_by_node(walk: Walk) -> None:
    before, *each_node, last = walk.chapter("Upgrade, or restart, node by node")
    walk.run(before)
    [quorum] = walk.facts("cluster", "info")
    others = [node_id for node_id in (1, 2, 3) if node_id != quorum["controller"]]
    for node_id in (*others, quorum["controller"]):
        for line in each_node:
            walk.node = node_id
            walk.run(line)
    walk.run(last)
    until(lambda: walk.facts("partition", "list", "--state", "not-preferred") == [])
    assert walk.values() == EXPECTED


def a_disk_is_replaced(walk: Walk) -> None:
    walk.nodes.kill(2)
    for line in walk.chapter("Replace a disk"):
        walk.run(line)
    assert walk.values() == EXPECTED
    leaders = {each["leader"] for each in walk.facts("partition", "list", "orders")}
    assert leaders <= {1, 2, 3}


def a_lost_quorum_is_made_anew(walk: Walk) -> None:
    walk.nodes.kill(2, 3)

    def remedy_is_shown() -> bool:
        # A leader of the quorum resigns when it has not heard of a majority for a while.
        shown = CliRunner().invoke(app, ["cluster", "health"])
        return (shown.exit_code, "start the voters" in shown.stdout) == (1, True)

    until(remedy_is_shown)
    lines = walk.chapter("The quorum is lost")
    for line in lines:
        if "--unclean" in line:
            break
        walk.run(line)
    assert walk.values() == EXPECTED
    walk.run(lines[-1])


def a_deleted_topic_comes_back(walk: Walk) -> None:
    lines = walk.chapter("Restore a topic from a copy")
    for line in lines:
        if line.startswith("kreplica offsets"):
            walk.run("kreplica topic delete orders")
        walk.run(line)
    assert walk.values() == EXPECTED


def every_command_of_the_page_was_run(walk: Walk) -> None:
    """What the steps above have run is the whole page."""
    ran = {line for line, _ in walk.results}
    all_lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        for line in block.replace("\\\n", "").splitlines()
    ]
    assert [line for line in all_lines if line.startswith("kreplica") and line not in ran] == []


def test_the_page_is_followed_from_its_first_line_to_its_last(walk: Walk) -> None:
    the_first_lines_name_the_cluster(walk)
    it_grows(walk)
    it_shrinks(walk)
    it_is_upgraded_node_by_node(walk)
    a_disk_is_replaced(walk)
    a_lost_quorum_is_made_anew(walk)
    a_deleted_topic_comes_back(walk)
    every_command_of_the_page_was_run(walk)
