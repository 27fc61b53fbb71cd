"""`kreplica format` and `kreplica serve` as typed in a terminal: what they print, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kreplica.cli import format as cli_format
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until
from tests.support.ports import free_addresses, free_ports
from tests.support.serving import ROOT, Command, contents, run_all
from tests.support.tcp_cluster import WAIT_S, TcpClient

CLUSTER = "abcdefghijklmnopqrstuv"


class Served:
    """What a client has to know of one node."""

    def __init__(self, port: int) -> None:
        self.addresses = {1: ("127.0.0.1", port)}
        self.live = [1]


def formatted(directory: Path) -> Path:
    assert cli_format.run([str(directory)], 1, CLUSTER, ignore_formatted=False, as_json=True) == 0
    return directory


def watched_metrics() -> list[str]:
    """The names of the metrics that docs/OPERATING.md recommends to watch on every node.

    Others come with the first share group or certificate: test_share_fetch_apis.py and
    test_certificate_watch.py look at them.
    """
    section = (ROOT / "docs/OPERATING.md").read_text().split("## What to watch")[1]
    names = re.findall(r"`((?:kafka|process)_\w+)`", section)
    assert len(names) > 4
    return [name for name in names if "_Share" not in name and "_Certificates" not in name]


def flags(directory: Path, port: int) -> list[object]:
    return [
        "--directory",
        directory,
        "--node-id",
        1,
        "--listen",
        f":{port}",
        "--quorum",
        f"1@127.0.0.1:{port}",
    ]


def answer_of(port: int, path: str) -> tuple[int, object]:
    """The status of an HTTP answer, and what its JSON says."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        body = error.read()
        return error.code, json.loads(body) if body.startswith(b"{") else None


def test_a_broker_without_its_quorum_lives_and_is_not_ready(tmp_path: Path) -> None:
    port = free_ports(3)
    quorum = f"1@127.0.0.1:{port},2@127.0.0.1:{port + 2}"
    arguments = ["--directory", formatted(tmp_path / "d"), "--node-id", 1, "--listen", f":{port}"]
    with Command("serve", *arguments, "--quorum", quorum, "--metrics-listen", f":{port + 1}") as node:
        wait_until(lambda: listens(port + 1), "it answers")
        wait_until(lambda: answer_of(port + 1, "/livez")[0] == 200, "its loop turns")
        wanted = [
            "no controller is known",
            "the broker is not registered",
            "the broker is still loading its logs",
        ]
        wait_until(
            lambda: answer_of(port + 1, "/ready") == (503, {"status": "failing", "reasons": wanted}),
            "it says why it is not ready",
        )
        assert answer_of(port + 1, "/health")[0] == 503
        node.end(signal.SIGKILL)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_node_by_its_file_from_format_to_its_end(tmp_path: Path) -> None:
    [(code, out, _)] = run_all(["format", "--directory", tmp_path / "d", "--node-id", 1, "--json"])
    fact = json.loads(out)
    assert (code, fact["node_id"], fact["path"]) == (0, 1, str(tmp_path / "d"))
    port = free_ports(4)
    file = tmp_path / "node.toml"
    file.write_text(
        f"""
        "node.id" = 1
        listeners = "PLAINTEXT://127.0.0.1:{port}"
        "controller.quorum.voters" = "1@127.0.0.1:{port}"
        [log]
        dirs = "{tmp_path / "d"}"
        """
    )
    arguments = ["serve", "--config", file, "--log-format", "json", "--metrics-listen", f":{port + 1}"]
    for life, console in ((1, []), (2, ["--no-console"])):
        with Command(*arguments, *console) as node:
            assert node.line() == f"node 1 is ready on 127.0.0.1:{port}"
            if life == 1:
                place = f"http://127.0.0.1:{port + 1}/console"
                assert node.line() == f"node 1 has a console for browsers at {place}"
            client = TcpClient(Served(port))
            if life == 1:
                client.admin.create_topic("orders", partitions=1, replication_factor=1).result(WAIT_S)
            assert client.append("orders", 0, [b"v"]) == life - 1
            client.close()
            with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/metrics", timeout=WAIT_S) as answer:
                text = answer.read().decode()
            assert "kafka_server_ReplicaManager_PartitionCount 1.0" in text
            for path in ("/health", "/ready", "/livez"):
                assert answer_of(port + 1, path) == (200, {"status": "ok", "reasons": []})
            assert answer_of(port + 1, "/healthy")[0] == 404
            assert answer_of(port + 1, "/api/overview")[0] == (200 if life == 1 else 404)
            assert [name for name in watched_metrics() if not re.search(rf"\n{name}[ {{]", text)] == []
            code, out, err = node.end(signal.SIGTERM)
        assert (code, out) == (0, "")
        assert all(json.loads(line)["node"] == "node-1" for line in err.splitlines())


def test_a_console_without_a_port_is_refused(tmp_path: Path) -> None:
    arguments = ["serve", *flags(formatted(tmp_path / "d"), free_ports(1)), "--console"]
    [(code, _, err)] = run_all(arguments)
    assert (code, err) == (1, "kreplica: --console is served beside the metrics: give --metrics-listen\n")


def test_a_cluster_in_one_command(tmp_path: Path) -> None:
    port = free_ports(4)
    with Command("serve", "--brokers", 2, "--directory", tmp_path / "d", "--listen", f":{port}") as cluster:
        lines = cluster.lines_until("nodes are ready")
        assert lines[-1] == f"2 nodes are ready: bootstrap.servers=127.0.0.1:{port},127.0.0.1:{port + 1}"
        nodes = Served(port)
        nodes.addresses[2] = ("127.0.0.1", port + 1)
        nodes.live.append(2)
        client = TcpClient(nodes)
        client.admin.create_topic("orders", partitions=1, replication_factor=2).result(WAIT_S)
        client.admin.create_topic("many", partitions=30, replication_factor=2).result(WAIT_S)
        assert client.append("orders", 0, [b"v"]) == 0
        # One that dies is started again.
        children = cluster.children()
        assert len(children) == 2
        os.kill(children[1], signal.SIGKILL)
        assert cluster.lines_until("is ready")[-1] == f"node 2 is ready on 127.0.0.1:{port + 1}"
        assert client.append("orders", 0, [b"w"]) == 1
        client.close()
        # As Ctrl-C does: to the whole process group of the terminal. Nodes are outside that group.
        code, _, err = cluster.end(signal.SIGINT)
        assert code == 0, err
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    # That the last broker cannot hand its partitions over is a line, not one for each of them.
    assert err.count("could not change partition") <= 4, err


def test_a_cluster_that_starts_and_stops_in_order_logs_a_handful_of_lines(tmp_path: Path) -> None:
    port = free_ports(6)
    with Command("serve", "--brokers", 3, "--directory", tmp_path / "d", "--listen", f":{port}") as cluster:
        cluster.lines_until("nodes are ready")
        client = TcpClient(Served(port))
        client.admin.create_topic("many", partitions=30, replication_factor=3).result(WAIT_S)
        client.close()
        code, _, err = cluster.end(signal.SIGINT)
    assert code == 0, err
    # Before the stop each broker logs that it leads its partitions.
    others = [line for line in err.splitlines() if "leads in epoch 0" not in line]
    assert len(others) <= 12, err
    for false in ("fenced", "offset -1", "another node leads", "leaves the ISR", "broke:"):
        assert false not in err, err


@pytest.mark.parametrize(
    ("names", "belong"),
    [
        ("voters", "the voters [1] belong"),
        ("bootstrap.servers", "the servers of controller.quorum.bootstrap.servers belong"),
    ],
)
def test_a_node_of_another_cluster_says_so_in_one_line(tmp_path: Path, names: str, belong: str) -> None:
    port = free_ports(2)
    other = "zzzzzzzzzzzzzzzzzzzzzg"
    assert cli_format.run([str(tmp_path / "b")], 2, other, ignore_formatted=False, as_json=True) == 0
    with Command("serve", *flags(formatted(tmp_path / "a"), port)) as node:
        node.lines_until("is ready")
        quorum = f"controller.quorum.{names}={'1@' if names == 'voters' else ''}127.0.0.1:{port}"
        arguments = ["--directory", tmp_path / "b", "--node-id", 2, "--listen", f":{port + 1}"]
        arguments += ["--set", "process.roles=broker", "--set", quorum]
        with Command("serve", *arguments) as stranger:
            code, _, err = stranger.end()
    assert code == 1, err
    assert "Traceback" not in err
    assert err.count("is not in cluster") == 1, err
    [line] = [line for line in err.splitlines() if "cannot go on" in line]
    assert f"node 2 is formatted for cluster {other!r}, but {belong} to a different cluster" in line


def test_a_cluster_that_is_ended_while_it_starts(tmp_path: Path) -> None:
    port = free_ports(6)
    with Command("serve", "--brokers", 3, "--directory", tmp_path / "d", "--listen", f":{port}") as cluster:
        children = cluster.wait_for_children(3)
        code, _, err = cluster.end(signal.SIGTERM)
    # In order where all of them were far enough. What comes before that has windows of its own:
    # test_signal_windows holds each open.
    assert code in {0, 128 + signal.SIGTERM}, err
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_nodes_end_with_their_supervisor(tmp_path: Path) -> None:
    port = free_ports(2)
    with Command("serve", "--brokers", 1, "--directory", tmp_path / "d", "--listen", f":{port}") as cluster:
        cluster.lines_until("nodes are ready")
        [child] = cluster.children()
        cluster.send(signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{child}").exists(), "the node has ended")
    assert list((tmp_path / "d" / "node-1").glob(".kafka_cleanshutdown"))


def test_a_port_that_is_taken_is_named_and_nothing_changes(tmp_path: Path) -> None:
    directory = formatted(tmp_path / "d")
    before = contents(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [(code, out, err)] = run_all(["serve", *flags(directory, port)])
    assert (code, out) == (1, "")
    assert err == f"kreplica: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert contents(tmp_path) == before


def test_two_nodes_on_one_directory(tmp_path: Path) -> None:
    directory, [first, second] = formatted(tmp_path / "d"), [each[1] for each in free_addresses(2)]
    with Command("serve", *flags(directory, first)) as node:
        node.line()
        [(code, out, err)] = run_all(["serve", *flags(directory, second)])
        assert (code, out) == (1, "")
        assert f"{directory} is locked by another writer" in err
        assert node.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_is_ended_while_it_starts_starts_again(tmp_path: Path, number: signal.Signals) -> None:
    directory, port = formatted(tmp_path / "d"), free_ports(1)
    steps = [
        # Before it has read anything, with its directory locked, and with its log begun.
        lambda: True,
        (directory / ".lock").exists,
        lambda: any(directory.glob("__cluster_metadata-0/*.log")),
    ]
    for is_there in steps:
        with Command("serve", *flags(directory, port)) as node:
            wait_until(is_there, "it is so far")
            code = node.end(number)[0]
            # In order where it was far enough; 128 and the number, or the number's own end, where not.
            assert code in {0, 128 + number, -number}
    with Command("serve", *flags(directory, port)) as node:
        assert node.line() == f"node 1 is ready on 127.0.0.1:{port}"
        assert node.end(signal.SIGTERM)[0] == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with NodeProcesses(tmp_path, 3) as nodes:
        # It asks the others to take over, but they do not answer.
        nodes.pause(1)
        nodes.pause(2)
        os.kill(nodes.pid(3), signal.SIGTERM)
        wait_until(lambda: b"stopping" in nodes.log_file(3).read_bytes(), "it hands over")
        assert nodes.stop(3) == 128 + signal.SIGTERM
