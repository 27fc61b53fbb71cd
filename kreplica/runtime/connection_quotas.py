"""ConnectionQuotas: the connections of all listeners of a node, and the limits of their number and rate.

    socket ──accept──▶ hold_s: too fast from one address? ──▶ held for a moment, then closed
                  └──▶ pace_s: too fast for the listener or the node? ──▶ the listener pauses
                  └──▶ admit: too many? ──▶ the connection that was idle longest is closed

Belongs to the event loop of the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from kreplica._core.sampled_rate import SampledRate
from kreplica.broker.node_config import QuotaConfig, SocketServerConfig
from kreplica.common.connection_limits import CREATION_RATE, KINDS, MAX_CONNECTIONS, ConnectionLimits
from kreplica.common.types import INT32_MAX

# Addresses whose rates are known; that of the longest known is forgotten first.
MOST_ADDRESSES = 10_000


class Connection(Protocol):
    """A client's connection; TcpConnection is one."""

    host: str

    @property
    def is_busy(self) -> bool: ...

    @property
    def has_asked(self) -> bool: ...

    @property
    def active(self) -> int: ...

    @property
    def processor(self) -> Any: ...

    def cut(self) -> None: ...


class Server(Protocol):
    """A listener; TcpServer is one. `is_of_nodes`: other nodes connect to it."""

    listener: str
    is_of_nodes: bool

    @property
    def connections(self) -> Collection[Any]: ...


class ConnectionQuotas:
    """The connections of one node. `limits()`: those in force. `ip_rate(host)`: connections a second that an
    address may make, None for no limit. `now_ms()`: a monotonic clock.
    """

    def __init__(
        self,
        limits: Callable[[], ConnectionLimits],
        ip_rate: Callable[[str], float | None],
        now_ms: Callable[[], int],
        config: QuotaConfig,
    ) -> None:
        self._limits = limits
        self._ip_rate = ip_rate
        self._now_ms = now_ms
        self._samples = config.quota_window_num
        self._window_ms = config.quota_window_size_seconds * 1000
        self._servers: list[Server] = []
        self._rates: dict[str, SampledRate] = {}
        self._rates_of_ips: dict[str, SampledRate] = {}
        self.by_host: Counter[str] = Counter()

    @classmethod
    def fixed(cls, config: SocketServerConfig, now_ms: Callable[[], int]) -> ConnectionQuotas:
        """Return those of a listener whose limits do not change."""
        given = config.properties()
        limits = ConnectionLimits.of({name: given[name] for name in KINDS})
        return cls(lambda: limits, lambda _: None, now_ms, QuotaConfig())

    def join(self, server: Server) -> None:
        """Add a listener."""
        self._servers.append(server)

    # ---- rates --------------------------------------------------------------------------------------------

    def hold_s(self, host: str) -> float:
        """Count a connection from this address; return how long to hold it before it is closed; 0: serve it.

        A connection that is not served does not count.
        """
        quota = self._ip_rate(host)
        if quota is None:
            self._rates_of_ips.pop(host, None)
            return 0.0
        rate = self._rates_of_ips.get(host)
        if rate is None:
            if len(self._rates_of_ips) >= MOST_ADDRESSES:
                del self._rates_of_ips[next(iter(self._rates_of_ips))]
            rate = self._rates_of_ips[host] = SampledRate(self._samples, self._window_ms)
        wait_ms = self._counted(rate, quota)
        if wait_ms:
            rate.record(-1, self._now_ms())
        return wait_ms / 1000

    def pace_s(self, server: Server) -> float:
        """Count a connection to the listener; return how long the listener has to pause.

        The limit of the whole node does not hold for a listener of nodes beside others.
        """
        limits, wait_ms = self._limits(), 0
        for name in (server.listener, "") if server.listener else ("",):
            quota = limits.of_listener(name, CREATION_RATE)
            if quota == INT32_MAX or (not name and self._is_protected(server)):
                continue
            rate = self._rates.setdefault(name, SampledRate(self._samples, self._window_ms))
            wait_ms = max(wait_ms, self._counted(rate, quota))
        return wait_ms / 1000

    def _counted(self, rate: SampledRate, quota: float) -> int:
        now_ms = self._now_ms()
        rate.record(1, now_ms)
        return min(rate.throttle_ms(quota, now_ms), self._window_ms)

    # ---- numbers ------------------------------------------------------------------------------------------

    def most_of(self, server: Server) -> int:
        """Return how many connections the listener may have."""
        limits = self._limits()
        return min(
            limits.of_listener(server.listener, MAX_CONNECTIONS), limits.of_listener("", MAX_CONNECTIONS)
        )

    def admit(self, server: Server, new: Connection) -> None:
        """Make room for a connection at a limit, or close the new one.

        A listener of nodes takes room from the others, and gives none to them.
        """
        limits = self._limits()
        every = [each for each in self._servers if len(self._servers) == 1 or not self._is_protected(each)]
        of_host = limits.of_host(new.host)
        if self.by_host[new.host] >= of_host:
            same = (each for one in self._servers for each in one.connections if each.host == new.host)
            _let_go(same if of_host else (), new)
        elif len(server.connections) >= limits.of_listener(server.listener, MAX_CONNECTIONS):
            _let_go(server.connections, new)
        elif sum(self.by_host.values()) >= limits.of_listener("", MAX_CONNECTIONS):
            _let_go((each for one in every for each in one.connections), new)

    def _is_protected(self, server: Server) -> bool:
        return server.is_of_nodes and len(self._servers) > 1

    def count(self, host: str) -> None:
        """Count a connection from this address."""
        self.by_host[host] += 1

    def discount(self, host: str) -> None:
        """Take a closed connection off the count."""
        self.by_host[host] -= 1
        if not self.by_host[host]:
            del self.by_host[host]


def _let_go(among: Iterable[Connection], new: Connection) -> None:
    idle = [each for each in among if not each.is_busy]
    # If all are waiting for answers, close the new one.
    min(idle, key=_activity, default=new).cut()


def _activity(connection: Connection) -> tuple[bool, int]:
    # Each listener counts for itself, so of two listeners' connections the one counts as idle that more has
    # happened after.
    return connection.has_asked, connection.active - connection.processor.activity
