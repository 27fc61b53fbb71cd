"""`kreplica serve --brokers N`: a cluster for development, with one process for each node.

The directory has the layout of a Cluster, so either can open what the other left. The process that was
started is the supervisor. It forks the nodes, which share the modules it imported, restarts a node that dies,
and stops all nodes on SIGTERM or Ctrl-C; a second signal kills them. A node that loses its supervisor stops
in order. The supervisor has a single thread.
"""

from __future__ import annotations

import logging
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_directories import format_nodes
from kreplica.cli import serve
from kreplica.cluster.settings import Layout, extended, new_layout, read_layout, write_layout
from kreplica.common.dataclass import replace
from kreplica.common.errors import InvalidConfig, KreplicaError
from kreplica.common.types import Uuid
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.kafka_config import KafkaConfig, parse_address
from kreplica.runtime.node_listeners import PLAINTEXT
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage

LOGGER = logging.getLogger(__name__)
CONTROLLER, BETWEEN_BROKERS = "CONTROLLER", "BROKERS"
PROTOCOLS = tuple(f"{each}:PLAINTEXT" for each in (PLAINTEXT, CONTROLLER, BETWEEN_BROKERS))
DEFAULT_LISTEN = "127.0.0.1:9092"
MOST_REPLICAS = 3
RESTART_AFTER_S = 1.0
ENDING = (signal.SIGTERM, signal.SIGINT)


def run(
    brokers: int,
    directory: str,
    listen: str | None,
    settings: Mapping[str, object],
    options: serve.ProcessOptions,
) -> int:
    """Supervise the nodes until all have ended; returns the exit code.

    Raises InvalidConfig, InvalidFile, InconsistentClusterId and KafkaStorageError before it starts any node.
    """
    serve.set_up_logging(options.log_format, options.log_level, "supervisor")
    host, port = parse_address("--listen", listen or DEFAULT_LISTEN)
    layout = read_layout(directory) or new_layout(str(Uuid.generate(random.SystemRandom())), brokers, 0)
    layout = extended(layout, brokers)
    ports = 2 * len(layout.roles)
    if not 0 < port <= 0xFFFF - ports:
        raise InvalidConfig(f"--listen: {ports} ports from {port} on are needed, and ports end at 65535")
    nodes = {
        node_id: _properties(layout, node_id, directory, host, port, settings) for node_id in layout.roles
    }
    configs: dict[int, NodeConfig] = {
        node_id: KafkaConfig.parse(properties, layout.cluster_id).node
        for node_id, properties in nodes.items()
    }
    format_nodes(
        configs,
        storage=FileStorage(),
        clock=SystemClock(),
        random=random.SystemRandom(),
        workers=ThreadWorkers(len(configs)),
    )
    write_layout(directory, layout, FileStorage())
    return _Supervisor(nodes, _metrics(layout, options), layout, (host, port)).run()


def _properties(
    layout: Layout, node_id: int, directory: str, host: str, port: int, settings: Mapping[str, object]
) -> dict[str, object]:
    # One port for each node's clients; after them one for each node, for connections of other nodes.
    ports = {each: port + number for number, each in enumerate(layout.roles)}
    inner = {each: first + len(ports) for each, first in ports.items()}
    roles = layout.roles[node_id]
    name = CONTROLLER if "controller" in roles else BETWEEN_BROKERS
    listeners = [f"{name}://{host}:{inner[node_id]}"]
    if "broker" in roles:
        listeners.insert(0, f"{PLAINTEXT}://{host}:{ports[node_id]}")
    replicas = min(len(layout.brokers), MOST_REPLICAS)
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        **settings,
        "node.id": node_id,
        "process.roles": sorted(roles),
        "log.dirs": [os.path.join(directory, f"node-{node_id}")],
        "listeners": listeners,
        "listener.security.protocol.map": list(PROTOCOLS),
        **({} if "controller" in roles else {"inter.broker.listener.name": BETWEEN_BROKERS}),
        "controller.quorum.voters": ",".join(f"{n}@{host}:{inner[n]}" for n in layout.controllers),
    }


def _metrics(layout: Layout, options: serve.ProcessOptions) -> dict[int, serve.ProcessOptions]:
    """Return the options of each node; metrics are served on ports from the given one upwards."""
    if options.metrics_listen is None:
        return dict.fromkeys(layout.roles, options)
    host, port = parse_address("--metrics-listen", options.metrics_listen)
    return {
        node_id: replace(options, metrics_listen=f"{host}:{port + number}")
        for number, node_id in enumerate(layout.roles)
    }


class _Supervisor:
    """Starts, restarts and stops the nodes. `nodes`: their properties, by id."""

    def __init__(
        self,
        nodes: Mapping[int, Mapping[str, object]],
        options: Mapping[int, serve.ProcessOptions],
        layout: Layout,
        first: tuple[str, int],
    ) -> None:
        self._nodes = nodes
        self._options = options
        self._layout = layout
        self._first = first
        self._processes: dict[int, int] = {}  # node by process id
        self._ready: set[int] = set()
        self._restarts: dict[int, float] = {}  # when to restart a node
        self._is_announced = False
        self._is_stopping = False
        self._exit_code = 0
        # Nodes write to the first pipe when they are ready. The second one closes when the supervisor ends.
        self._status, self._status_of_nodes = os.pipe()
        self._lifeline_of_nodes, self._lifeline = os.pipe()
        self._woken, self._waker = socket.socketpair()

    def run(self) -> int:
        """Start all nodes and return when all have ended."""
        for end in (self._woken, self._waker):
            end.setblocking(False)
        os.set_blocking(self._status, False)
        for each in (*ENDING, signal.SIGCHLD):
            signal.signal(each, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for node_id in self._nodes:
            self._start(node_id)
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._status, selectors.EVENT_READ)
            while self._processes or self._restarts:
                ready = {key.fileobj for key, _ in selector.select(self._patience_s())}
                if self._status in ready:
                    self._read_status()
                if self._woken in ready:
                    for number in self._woken.recv(4096):
                        self._signalled(number)
                self._restart_due()
        return self._exit_code

    # ---- nodes --------------------------------------------------------------------------------------------

    def _start(self, node_id: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # A forked node inherits the supervisor's handlers, which do nothing. A signal that it got
        # before it installs its own would be lost, and the supervisor would wait for it forever.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        process = os.fork()
        if process == 0:
            self._be_node(node_id)
        self._processes[process] = node_id
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _be_node(self, node_id: int) -> None:
        """Run a node in the forked process. Never returns."""
        code = 1
        try:
            # Ctrl-C is for the supervisor, which passes it on once. One that came before is forgotten here:
            # a node that dies of it before the supervisor has seen its own is taken for one that failed.
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for number in (*ENDING, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            for each in (self._woken, self._waker):
                each.close()
            os.close(self._status)
            os.close(self._lifeline)
            threading.Thread(target=self._end_with_supervisor, daemon=True).start()
            code = serve.run(
                self._nodes[node_id], self._options[node_id], lambda _: self._tell_ready(node_id)
            )
        except KreplicaError as error:
            print(f"kreplica: node {node_id}: {error}", file=sys.stderr)
        except BaseException:
            LOGGER.exception("node %d failed", node_id)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _tell_ready(self, node_id: int) -> None:
        os.write(self._status_of_nodes, f"{node_id}\n".encode())

    def _end_with_supervisor(self) -> None:
        # Nothing is written to this pipe: the read returns when the other end closes.
        os.read(self._lifeline_of_nodes, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _read_status(self) -> None:
        self._ready.update(int(text) for text in os.read(self._status, 4096).split())
        if self._ready >= set(self._nodes) and not self._is_announced:
            self._is_announced = True
            host, port = self._first
            ports = [port + n for n, roles in enumerate(self._layout.roles.values()) if "broker" in roles]
            servers = ",".join(f"{host}:{each}" for each in ports)
            print(f"{len(self._nodes)} nodes are ready: bootstrap.servers={servers}", flush=True)
            serve.notify_supervisor(b"READY=1")

    # ---- signals ------------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif self._is_stopping:
            self._exit_code = 128 + number
            self._send(signal.SIGKILL)
        else:
            self._is_stopping = True
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        self._restarts.clear()
        for process in self._processes:
            os.kill(process, number)

    def _reap(self) -> None:
        for process in list(self._processes):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                node_id = self._processes.pop(process)
                self._ended(node_id, os.waitstatus_to_exitcode(status))

    def _ended(self, node_id: int, code: int) -> None:
        if self._is_stopping:
            self._exit_code = self._exit_code or (code if code >= 0 else 128 - code)
            return
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if node_id not in self._ready:
            print(f"kreplica: node {node_id} ended before it was ready, with {how}", file=sys.stderr)
            self._exit_code = 1
            self._is_stopping = True
            self._send(signal.SIGTERM)
            return
        LOGGER.warning("node %d ended, with %s; restarting it", node_id, how)
        self._restarts[node_id] = time.monotonic() + RESTART_AFTER_S

    def _patience_s(self) -> float | None:
        if not self._restarts:
            return None
        return max(min(self._restarts.values()) - time.monotonic(), 0.0)

    def _restart_due(self) -> None:
        now = time.monotonic()
        for node_id in [each for each, due in self._restarts.items() if due <= now]:
            del self._restarts[node_id]
            self._start(node_id)
