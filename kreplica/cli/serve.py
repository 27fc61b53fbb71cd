"""`kreplica serve`: a node as the process.

It prints one line to standard output when its broker may lead, and everything else to standard error.
SIGTERM or Ctrl-C: it hands over what it leads, closes its files and ends with exit code 0; a second one ends
it at once, as one before it was started does, with 128 and the signal's number. Nothing acknowledged is lost
by that: it is what a crash would leave. Exit code 1: it cannot go on, and says why.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType

from kreplica.broker.node import CONTROLLED_SHUTDOWN_MS
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.runtime.kafka_raft_server import KafkaRaftServer

LOGGER = logging.getLogger(__name__)
LOG_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(properties: Mapping[str, object]) -> int:
    """Be the node until a signal or a failure ends it; returns the exit code.

    Raises what keeps the node from starting: InvalidConfig, InvalidFile, LogDirLocked and more.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_LINE)
    end = _End()
    server = KafkaRaftServer(properties, end.fail)
    try:
        ready = server.startup()
    except OSError as error:
        print(f"kreplica: {error}", file=sys.stderr)
        return 1
    end.has_started()
    ready.add_done_callback(lambda done: _announce(server, done))
    end.wait()
    if end.failure is None:
        LOGGER.info("stopping: what this node leads is handed over")
        try:
            server.begin_shutdown(CONTROLLED_SHUTDOWN_MS).result()
        except KreplicaError:
            LOGGER.warning("nothing was handed over", exc_info=True)
    server.close()
    return 0 if end.failure is None else 1


def _announce(server: KafkaRaftServer, ready: Future[None]) -> None:
    if ready.exception() is None:
        host, port = server.config.listen
        print(f"node {server.config.node.node_id} is ready on {host}:{port}", flush=True)


class _End:
    """What ends the node: a signal or a failure."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._is_wanted = threading.Event()
        self._is_at_once = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def has_started(self) -> None:
        """From now on the first signal is to end the node in order."""
        self._is_at_once = False

    def fail(self, error: BaseException) -> None:
        """The node cannot go on."""
        self.failure = error
        self._is_wanted.set()

    def wait(self) -> None:
        """Return when the node is to end."""
        self._is_wanted.wait()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self._is_at_once:
            os._exit(128 + number)
        self._is_at_once = True
        self._is_wanted.set()
