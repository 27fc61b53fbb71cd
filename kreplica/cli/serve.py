"""`kreplica serve`: run a node in this process.

It prints one line to standard output when its broker may lead, and logs to standard error. On SIGTERM or
Ctrl-C it hands over what it leads, closes its files and exits with 0. A second signal, or a first one before
the node has started, ends it at once with 128 plus the signal's number; what is acknowledged is safe, as
after a crash. Exit code 1: the node cannot go on, and the message says why.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from kreplica.broker.api_versions import Scope
from kreplica.broker.node import CONTROLLED_SHUTDOWN_MS
from kreplica.cli import logs
from kreplica.common.errors import InvalidConfig, KreplicaError
from kreplica.common.future import Future
from kreplica.runtime.kafka_config import parse_address
from kreplica.runtime.kafka_raft_server import KafkaRaftServer

if TYPE_CHECKING:
    from kreplica.runtime.prometheus import MetricsListener

LOGGER = logging.getLogger(__name__)
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of the process that are not properties of the node; `metrics_listen` is host:port."""

    log_format: str = "text"
    log_level: str = "info"
    metrics_listen: str | None = None


def run(
    properties: Mapping[str, object],
    options: ProcessOptions,
    on_ready: Callable[[KafkaRaftServer], object] | None = None,
) -> int:
    """Run the node until a signal or a failure ends it; returns the exit code.

    `on_ready(server)` is called when its broker may lead. Raises what keeps the node from starting:
    InvalidConfig, InvalidFile, LogDirLocked and others.
    """
    end = _End()
    _take_all_descriptors()
    server = KafkaRaftServer(properties, end.fail)
    logs.set_up(options.log_format, options.log_level, f"node-{server.config.node.node_id}")
    end.take_signals()
    try:
        metrics = _metrics_listener(options.metrics_listen)
        ready = server.startup()
    except OSError as error:
        print(f"kreplica: {error.strerror or error}", file=sys.stderr)
        return 1
    end.has_started()
    _warn_of_open_quorum(server)
    # A full collection would walk all modules and classes, and delay requests by tens of ms.
    gc.freeze()
    # The longest time that the threads of image, retention and cleaning hold the GIL; the default is 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if metrics is not None:
        metrics.show(
            server.node.metrics, livez=server.what_keeps_from_living, ready=server.what_keeps_from_serving
        )
    ready.add_done_callback(lambda done: _announce(server, done, on_ready))
    end.wait()
    if end.failure is None:
        LOGGER.info("stopping: handing over the partitions that this node leads")
        try:
            server.begin_shutdown(CONTROLLED_SHUTDOWN_MS).result()
        except KreplicaError:
            LOGGER.warning("could not hand over leadership", exc_info=True)
    server.close()
    if metrics is not None:
        metrics.close()
    return 0 if end.failure is None else 1


def _warn_of_open_quorum(server: KafkaRaftServer) -> None:
    for (host, port), scope in server.config.listeners.items():
        if Scope.CLIENTS in scope and Scope.CONTROLLERS in scope:
            LOGGER.warning(
                "%s:%d is for clients and for the quorum: any program that connects there can disturb "
                "elections; give the node a listener for controllers",
                host,
                port,
            )


def _take_all_descriptors() -> None:
    # Raise the limit of descriptors to the system's maximum; the usual limit is meant for select().
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a value that the system treats as unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _metrics_listener(listen: str | None) -> MetricsListener | None:
    if listen is None:
        return None
    try:
        from kreplica.runtime.prometheus import MetricsListener
    except ImportError:
        raise InvalidConfig(
            "--metrics-listen needs prometheus-client: pip install kreplica[server]"
        ) from None
    return MetricsListener(*parse_address("--metrics-listen", listen))


def _announce(
    server: KafkaRaftServer, ready: Future[None], on_ready: Callable[[KafkaRaftServer], object] | None
) -> None:
    if ready.exception() is not None:
        return
    host, port = server.config.listen
    print(f"node {server.config.node.node_id} is ready on {host}:{port}", flush=True)
    notify_supervisor(b"READY=1")
    if on_ready is not None:
        on_ready(server)


def notify_supervisor(state: bytes) -> None:
    """Notify systemd, if it started this process with Type=notify (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.connect("\0" + path[1:] if path.startswith("@") else path)
            channel.send(state)


class _End:
    """Waits for the end of the node: a signal or a failure.

    A signal handler runs in the main thread between any two steps, also inside `wait`. So it may take no lock
    that `wait` holds, as an Event would; a SimpleQueue has none.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_at_once = True

    def take_signals(self) -> None:
        """Let SIGTERM and SIGINT end the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def has_started(self) -> None:
        """From now on, let the first signal end the node in order."""
        self._is_at_once = False

    def fail(self, error: BaseException) -> None:
        """Record that the node cannot go on."""
        self.failure = error
        self._wanted.put(None)

    def wait(self) -> None:
        """Return when the node has to end."""
        self._wanted.get()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self._is_at_once:
            os._exit(128 + number)
        self._is_at_once = True
        self._wanted.put(None)
