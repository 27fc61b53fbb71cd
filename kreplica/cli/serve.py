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
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kreplica.broker.api_versions import Scope
from kreplica.broker.node import CONTROLLED_SHUTDOWN_MS, Node
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, KreplicaError
from kreplica.common.future import Future
from kreplica.common.rare_collections import rare_collections
from kreplica.runtime.kafka_config import parse_address, read_config_file
from kreplica.runtime.listener import ListenerProperties
from kreplica.runtime.log_output import JsonFormatter, text_formatter
from kreplica.runtime.node_listeners import LOOPBACK
from kreplica.runtime.tcp_node import KafkaRaftServer

if TYPE_CHECKING:
    from kreplica.runtime.console import Console
    from kreplica.runtime.prometheus import MetricsListener


LOGGER = logging.getLogger(__name__)
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of the process that are not properties of the node; `metrics_listen` is host:port.

    `console`: whether to serve the console beside the metrics; None decides by who could see it.
    """

    log_format: str = "text"
    log_level: str = "info"
    metrics_listen: str | None = None
    console: bool | None = None
    console_hosts: tuple[str, ...] = ()
    console_password_file: Path | None = None


@rare_collections()
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
    set_up_logging(options.log_format, options.log_level, f"node-{server.config.node_id}")
    end.take_signals()
    try:
        console = _console(options, server)
        metrics = _metrics_listener(options.metrics_listen)
        node = server.start()
    except OSError as error:
        print(f"kreplica: {error.strerror or error}", file=sys.stderr)
        return 1
    end.has_started()
    _warn_of_open_quorum(server)
    _warn_of_missing_rights(server)
    _warn_of_ignored_client_auth(properties, server)
    # A full collection would walk all modules and classes, and delay requests by tens of ms. While a node
    # gets 10,000 partitions it would walk those as well, a dozen times: hence rare_collections.
    gc.freeze()
    # The longest time that the threads of image, retention and cleaning hold the GIL; the default is 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if metrics is not None:
        metrics.show(
            node.metrics,
            livez=server.what_keeps_from_living,
            ready=node.what_keeps_from_serving,
            console=None if console is None else console(node),
        )
    console_url = _url(options.metrics_listen, "/console") if console and options.metrics_listen else None
    node.ready.add_done_callback(lambda done: _announce(server, done, on_ready, console_url))
    end.wait()
    if end.failure is None:
        LOGGER.info("stopping")
        try:
            server.stop(CONTROLLED_SHUTDOWN_MS).result()
        except KreplicaError:
            LOGGER.warning("could not hand over leadership", exc_info=True)
    server.close()
    if metrics is not None:
        metrics.close()
    return 0 if end.failure is None else 1


def _warn_of_missing_rights(server: KafkaRaftServer) -> None:
    """Log as whom this node connects to others without being a super user: they may refuse it."""
    authorizer = server.config.authorizer
    if not authorizer.authorizer_class_name:
        return
    for name, principal in server.own_principals.items():
        if str(principal) not in authorizer.principals_above_rules:
            LOGGER.warning(
                "super.users does not have %s, as whom this node connects to listener %s: without rights it"
                " cannot join the cluster",
                principal,
                name,
            )


def _warn_of_ignored_client_auth(properties: Mapping[str, object], server: KafkaRaftServer) -> None:
    for each in server.listeners:
        has_both = each.tls is not None and each.login is not None
        if has_both and ListenerProperties(each.name, properties).ignores_client_auth:
            LOGGER.warning(
                "ssl.client.auth does not count for listener %s, whose clients log in by SASL:"
                " listener.name.%s.ssl.client.auth asks for their certificates as well",
                each.name,
                each.name.lower(),
            )


def _warn_of_open_quorum(server: KafkaRaftServer) -> None:
    for listener in server.listeners:
        if Scope.CLIENTS in listener.scope and Scope.CONTROLLERS in listener.scope:
            LOGGER.warning(
                "listener %s is for clients and for the quorum: any program that connects there can disturb "
                "elections; give the node a listener for controllers",
                listener.name,
            )


def _take_all_descriptors() -> None:
    # Raise the limit of descriptors to the system's maximum; the usual limit is meant for select().
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a value that the system treats as unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _console(options: ProcessOptions, server: KafkaRaftServer) -> Callable[[Node], Console] | None:
    """Return what makes the console of the node; None if it is off. Raises InvalidConfig."""
    if options.metrics_listen is None:
        if options.console or options.console_password_file is not None:
            raise InvalidConfig("--console is served beside the metrics: give --metrics-listen")
        return None
    from kreplica.runtime.console import Console, console_access

    access = console_access(
        wanted=options.console,
        host=parse_address("--metrics-listen", options.metrics_listen)[0],
        names=options.console_hosts,
        password_file=options.console_password_file,
        listeners=server.listeners,
        has_authorizer=bool(server.config.authorizer.authorizer_class_name),
    )
    return None if access is None else lambda node: Console(node, access)


def _metrics_listener(listen: str | None) -> MetricsListener | None:
    if listen is None:
        return None
    try:
        from kreplica.runtime.prometheus import MetricsListener
    except ImportError:
        raise InvalidConfig(
            "--metrics-listen needs prometheus-client: pip install 'kreplica[server]'"
        ) from None
    return MetricsListener(*parse_address("--metrics-listen", listen))


def _url(listen: str, path: str) -> str:
    """Return where a browser finds the path of a listener; on all addresses, by the machine's name."""
    host, port = parse_address("--metrics-listen", listen)
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


def _announce(
    server: KafkaRaftServer,
    ready: Future[None],
    on_ready: Callable[[KafkaRaftServer], object] | None,
    console_url: str | None,
) -> None:
    if ready.exception() is not None:
        return
    host, port = server.addresses[server.listeners[0].name]  # the one for clients comes first
    print(f"node {server.config.node_id} is ready on {host}:{port}", flush=True)
    if console_url is not None:
        print(f"node {server.config.node_id} has a console for browsers at {console_url}", flush=True)
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
    that `wait` holds. The system may deliver a signal to another thread, which does not interrupt a wait for
    a lock. So `wait` reads a pipe, to which Python writes in whichever thread the signal arrives.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._is_wanted = False
        self._is_at_once = True
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)

    def take_signals(self) -> None:
        """Let SIGTERM and SIGINT end the process at once."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def has_started(self) -> None:
        """Let the first signal end the node in order from now on."""
        self._is_at_once = False

    def fail(self, error: BaseException) -> None:
        """Record that the node cannot go on."""
        self.failure = error
        self._is_wanted = True
        with contextlib.suppress(BlockingIOError):  # if the pipe is full, it wakes `wait` as well
            os.write(self._waker, b"\0")

    def wait(self) -> None:
        """Return when the node has to end."""
        while not self._is_wanted:
            os.read(self._woken, 4096)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self._is_at_once:
            os._exit(128 + number)
        self._is_at_once = self._is_wanted = True


def from_config(path: str | None, settings: Sequence[str]) -> dict[str, object]:
    """Return the properties of the file, overridden by those of --set.

    Raises ValueError for a setting that is not NAME=VALUE, and as `read_config_file`.
    """
    properties: dict[str, object] = {} if path is None else read_config_file(path)
    for each in settings:
        name, separator, value = each.partition("=")
        if not name.strip() or not separator:
            raise ValueError(f"--set {each}: expected NAME=VALUE")
        properties[name.strip()] = value.strip()
    return properties


def from_flags(
    properties: Mapping[str, object],
    node_id: int | None,
    directories: Sequence[str],
    listen: str | None,
    controller_listen: str | None,
    quorum: str | None,
    advertise: str | None,
) -> dict[str, object]:
    """Return the properties, overridden by the flags; a listener without a host is on 127.0.0.1.

    Raises ValueError if only one of two listeners is given.
    """
    if controller_listen is not None and listen is None and "listeners" not in properties:
        listen = "127.0.0.1:9092"
    if (listen is None) != (controller_listen is None) and "listeners" in properties:
        raise ValueError(
            "the configuration file has listeners: give --listen and --controller-listen together, or neither"
        )
    listeners = [
        f"{name}://{LOOPBACK if address.startswith(':') else ''}{address}"
        for name, address in (("PLAINTEXT", listen), ("CONTROLLER", controller_listen))
        if address is not None
    ]
    given = {
        "node.id": node_id,
        "log.dirs": list(directories) or None,
        "listeners": ",".join(listeners) or None,
        "controller.quorum.voters": quorum,
        "advertised.listeners": None if advertise is None else f"PLAINTEXT://{advertise}",
    }
    return {**properties, **{name: value for name, value in given.items() if value is not None}}


def set_up_logging(log_format: str, level: str, node: str) -> None:
    """Log from now on as "text" or "json", with `node` in each line. Replaces earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(node) if log_format == "json" else text_formatter(node))
    root = logging.getLogger()
    for each in list(root.handlers):
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(level.upper())
