"""Nodes as separate processes (`python -m kreplica serve`), which a test can send signals to."""

from __future__ import annotations

import contextlib
import io
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_directories import is_formatted, read_properties
from kreplica.cli import format as format_command
from kreplica.common.types import Uuid
from kreplica.runtime.storage import FileStorage
from tests.support import secured
from tests.support.ports import free_addresses
from tests.support.serving import environment
from tests.support.tcp_cluster import CLUSTER_ID

WAIT_S = 180.0
READY = "is ready"
SHOWN_LOG_BYTES = 4_000


class NodeProcesses:
    """Nodes 1 to `nodes`, each a broker and a controller, in directories in `directory`.

    `start_all` starts them, and so does entering the context. Leaving it ends all of them and, if the test
    failed, shows the end of their logs. `settings` are Kafka's properties with underscores for dots;
    `of_nodes` are properties of single nodes, under their names. `voters`: the number of first voters of a
    dynamic quorum (KIP-853); None: all nodes, statically. `cluster_ids`: for nodes that are formatted for
    another cluster. `joining`: nodes that know only bootstrap servers, and join the quorum on their own.
    `is_secured`: whether they encrypt, log in and ask for rights.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        of_nodes: Mapping[int, Mapping[str, object]] | None = None,
        voters: int | None = None,
        cluster_ids: Mapping[int, str] | None = None,
        joining: Collection[int] = (),
        is_secured: bool = secured.IS_ON,
        **settings: object,
    ) -> None:
        self.directory = directory
        self._of_nodes = dict(of_nodes or {})
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.ids = list(range(1, nodes + 1))
        found = free_addresses(2 * nodes)
        self.addresses = dict(zip(self.ids, found[:nodes], strict=True))
        self.controllers = dict(zip(self.ids, found[nodes:], strict=True))
        self._joining = frozenset(joining)
        self._is_secured = is_secured
        if is_secured:
            secured.add(self.addresses.values())
        # Access rules allow clients nothing until all nodes have started.
        self._is_to_allow = is_secured
        self._processes: dict[int, _NodeProcess] = {}
        directory.mkdir(parents=True, exist_ok=True)
        chance = random.SystemRandom()
        self.directory_ids = {node_id: Uuid.generate(chance) for node_id in self.ids}
        self._initial = None if voters is None else self._controllers_text(self.ids[:voters])
        for node_id in self.ids:
            cluster_id = (cluster_ids or {}).get(node_id, CLUSTER_ID)
            initial = None if node_id in joining else self._initial
            found = _format(node_id, str(self.node_directory(node_id)), cluster_id, initial)
            self.directory_ids[node_id] = found

    def __enter__(self) -> NodeProcesses:
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is not None:
            self.show_logs()

    @property
    def bootstrap(self) -> str:
        """The value of a client's bootstrap.servers."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses.values())

    @property
    def quorum(self) -> str:
        """The value of controller.quorum.voters."""
        return ",".join(f"{n}@{host}:{port}" for n, (host, port) in self.controllers.items())

    def _controllers_text(self, node_ids: list[int]) -> str:
        """Return the value of --initial-controllers."""
        return ",".join(
            f"{n}@{host}:{port}:{self.directory_ids[n]}"
            for n, (host, port) in self.controllers.items()
            if n in node_ids
        )

    @property
    def live(self) -> list[int]:
        """The nodes whose processes run, paused or not."""
        return [node_id for node_id, process in self._processes.items() if process.is_alive]

    def node_directory(self, node_id: int) -> Path:
        """Return the node's log directory."""
        return self.directory / f"node-{node_id}"

    def log_file(self, node_id: int) -> Path:
        """Return the file with the node's standard error, of all its lives."""
        return self.directory / f"node-{node_id}.log"

    # ---- life cycle ---------------------------------------------------------------------------------------

    def start_all(self) -> None:
        """Start the nodes that do not run, and wait until they may lead."""
        missing = [node_id for node_id in self.ids if node_id not in self.live]
        for node_id in missing:
            self.start(node_id, wait=False)
        for node_id in missing:
            self.wait_until_ready(node_id)
        if self._is_to_allow:
            secured.allow_everything(self.bootstrap)
            self._is_to_allow = False

    def start(self, node_id: int, *, wait: bool = True) -> None:
        """Start the node on its current directory; with `wait`, return when it may lead."""
        assert node_id not in self.live, f"node {node_id} runs"
        self._processes[node_id] = _NodeProcess(self._arguments(node_id), self.log_file(node_id))
        if wait:
            self.wait_until_ready(node_id)

    def change(self, node_id: int, **settings: object) -> None:
        """Give the node other properties from its next start on."""
        self._of_nodes[node_id] = {**self._of_nodes.get(node_id, {}), **settings}

    def wait_until_ready(self, node_id: int, timeout_s: float = WAIT_S) -> None:
        """Wait for the node's report that it may lead. AssertionError if it ended or took too long."""
        if not self._processes[node_id].wait_until_ready(timeout_s):
            self.show_logs()
            raise AssertionError(f"node {node_id} was not ready within {timeout_s:.0f} s")

    def stop(self, node_id: int, timeout_s: float = WAIT_S) -> int:
        """Send SIGTERM; return the exit code."""
        process = self._processes[node_id]
        process.send(signal.SIGTERM)
        return process.wait(timeout_s)

    def wait_for_end(self, node_id: int, timeout_s: float = WAIT_S) -> int:
        """Wait until the node ends on its own; return its exit code."""
        return self._processes[node_id].wait(timeout_s)

    def kill(self, *node_ids: int) -> None:
        """Send SIGKILL to all of them before waiting for any."""
        for node_id in node_ids:
            self._processes[node_id].send(signal.SIGKILL)
        for node_id in node_ids:
            self._processes[node_id].wait(WAIT_S)

    def pause(self, node_id: int) -> None:
        """Send SIGSTOP."""
        self._processes[node_id].send(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """Send SIGCONT."""
        self._processes[node_id].send(signal.SIGCONT)

    def pid(self, node_id: int) -> int:
        """Return the node's process id."""
        return self._processes[node_id].pid

    def close(self) -> None:
        """Kill all nodes."""
        self.kill(*self.live)
        secured.forget(self.addresses.values())
        for process in self._processes.values():
            process.close()

    def show_logs(self) -> None:
        """Print the end of each node's log, to show why a test failed."""
        for node_id in self.ids:
            path = self.log_file(node_id)
            text = path.read_bytes()[-SHOWN_LOG_BYTES:].decode(errors="replace") if path.exists() else ""
            print(f"---- {path}\n{text}", file=sys.stderr)

    def logged(self, level: str) -> list[str]:
        """Return the lines of this level in the logs of all nodes."""
        lines = [line for node_id in self.ids for line in self.log_file(node_id).read_text().splitlines()]
        return [line for line in lines if f" {level} " in line]

    def _arguments(self, node_id: int) -> list[str]:
        listen, controller_listen = self.addresses[node_id], self.controllers[node_id]
        flags: dict[str, Any] = {
            "--node-id": node_id,
            "--quorum": self.quorum if self._initial is None else None,
        }
        if not self._is_secured:
            flags["--listen"] = f"{listen[0]}:{listen[1]}"
            if self._of_nodes.get(node_id, {}).get("process.roles") != "broker":
                flags["--controller-listen"] = f"{controller_listen[0]}:{controller_listen[1]}"
        given = [text for name, value in flags.items() if value is not None for text in (name, str(value))]
        directory = {"log.dirs": self.node_directory(node_id)}
        security = secured.node_properties(listen, controller_listen) if self._is_secured else {}
        settings = {**directory, **security, **self.settings, **self._of_nodes.get(node_id, {})}
        if node_id in self._joining:
            others = [address for other, address in self.controllers.items() if other != node_id]
            settings["controller.quorum.bootstrap.servers"] = ",".join(f"{h}:{p}" for h, p in others)
            settings["controller.quorum.auto.join.enable"] = "true"
        changed = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
        return [*given, *changed]


class _NodeProcess:
    """One life of a node."""

    def __init__(self, arguments: list[str], log_file: Path) -> None:
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kreplica", "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        self._is_ready = threading.Event()
        self._has_spoken = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, timeout_s: float) -> bool:
        # Also set at the end of the output: an ended process will not become ready.
        self._has_spoken.wait(timeout_s)
        return self._is_ready.is_set()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """Wait until all output of the ended process is read."""
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if READY in line:
                    self._is_ready.set()
                    self._has_spoken.set()
        self._has_spoken.set()


def _format(node_id: int, path: str, cluster_id: str, initial_controllers: str | None) -> Uuid:
    """Format the node's directory; return the directory's id."""
    config = NodeConfig(node_id=node_id, cluster_id=cluster_id, directories=(path,))
    if not is_formatted(config, FileStorage()):
        with contextlib.redirect_stdout(io.StringIO()):
            format_command.run([path], node_id, cluster_id, False, False, initial_controllers)
    found = read_properties(config, FileStorage(), path)
    assert found is not None
    assert found.directory_id is not None
    return found.directory_id
