"""ClientQuotas: what each client may use of a node, by the quotas in the metadata (KIP-13, KIP-124, KIP-599).

    native lanes ──────────────────────────▶ ClientAccount ─────────┐ no wait is due
                                                                    ▼
    RequestChannel ──begin──▶ RequestQuota ──▶ ClientLimits ──▶ RateBuckets
         │                                                          │
         └── throttle time in the answer, connection muted ◀────────┘

The limits are a snapshot that never changes; a change of the quotas makes another one. A client has the first
quota that is set, in the order of PRECEDENCE, for each kind apart. Clients with the same quota may share
a bucket: all clients of a user do if the quota names no client id. The buckets outlive a change of quotas, so
a new value counts what was used before. Each node enforces its own share: N brokers allow N times a quota.

Client ids are any text, so the number of buckets is bounded, and idle ones are dropped. Ownership: the
node's. Thread rule: any thread; the publisher's methods belong to the quorum's loop.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from kreplica._core.client_account import PERCENT_OF_NS, ClientAccount, RateBucket
from kreplica.broker.node_config import QuotaConfig
from kreplica.broker.request_context import RequestContext
from kreplica.common.connection_limits import canonical
from kreplica.common.locks import Lock
from kreplica.common.metrics import MetricRegistry, SampledStat
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.controller.controller_mutation_quota import ControllerMutationQuota, MutationBucket
from kreplica.metadata.client_quotas import (
    CLIENT_ID_ENTITY,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP_ENTITY,
    LONGEST_NAME,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER_ENTITY,
)
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta, QuotaKey
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.security.peer import THIS_PROCESS, Peer

# The most buckets, and clients whose buckets are known. The buckets that were used least recently go first.
MOST_BUCKETS = 10_000
IDLE_MS = 3_600_000
SWEEP_EVERY_MS = 60_000
DEFAULT = None
PLAIN_IN_URLS = frozenset(string.ascii_letters + string.digits + "-_.~")
# Where a quota is looked up: each component is named, the default of its type, or absent.
NAMED, OF_DEFAULT, ABSENT = range(3)
PRECEDENCE = (
    (NAMED, NAMED),
    (NAMED, OF_DEFAULT),
    (NAMED, ABSENT),
    (OF_DEFAULT, NAMED),
    (OF_DEFAULT, OF_DEFAULT),
    (OF_DEFAULT, ABSENT),
    (ABSENT, NAMED),
    (ABSENT, OF_DEFAULT),
)


class QuotaType(NamedTuple):
    """A kind of quota: its name in the metadata, and Kafka's names of its metrics."""

    quota: str
    metrics: str
    rate: str


PRODUCE = QuotaType(PRODUCER_BYTE_RATE, "Produce", "byte-rate")
FETCH = QuotaType(CONSUMER_BYTE_RATE, "Fetch", "byte-rate")
REQUEST = QuotaType(REQUEST_PERCENTAGE, "Request", "request-time")
MUTATION = QuotaType(CONTROLLER_MUTATION_RATE, "ControllerMutation", "tokens")


class BucketKey(NamedTuple):
    """The clients that share a bucket; None: of all users, or all client ids."""

    type: QuotaType
    user: str | None
    client_id: str | None


class QuotaLimits:
    """The quotas of one state of the metadata, by entity."""

    def __init__(self, quotas: Mapping[QuotaKey, Mapping[str, float]]) -> None:
        self._quotas = quotas
        self._of_ips = {
            name if name is None else canonical(name): found
            for key, found in quotas.items()
            for kind, name in key
            if kind == IP_ENTITY
        }

    @property
    def has_clients(self) -> bool:
        """Whether any entity other than an ip has a quota."""
        return len(self._quotas) > len(self._of_ips)

    def find(self, kind: QuotaType, user: str, client_id: str) -> tuple[float, BucketKey] | None:
        """Return the quota of a client, and whose bucket it has; None if it is not limited."""
        for of_user, of_client in PRECEDENCE:
            parts: list[tuple[str, str | None]] = []
            if of_client != ABSENT:
                parts.append((CLIENT_ID_ENTITY, client_id if of_client == NAMED else DEFAULT))
            if of_user != ABSENT:
                parts.append((USER_ENTITY, user if of_user == NAMED else DEFAULT))
            value = self._quotas.get(tuple(parts), {}).get(kind.quota)
            if value is not None:
                return value, BucketKey(
                    kind,
                    None if of_user == ABSENT else user,
                    None if of_client == ABSENT else client_id[:LONGEST_NAME],
                )
        return None

    def connection_rate(self, ip: str) -> float | None:
        """Return how many connections a second the address may make; None if that is not limited."""
        for name in (canonical(ip), DEFAULT):
            value = self._of_ips.get(name, {}).get(CONNECTION_CREATION_RATE)
            if value is not None:
                return value
        return None


class QuotaBucket:
    """A bucket with what is kept about it."""

    __slots__ = ("_noted_ms", "bucket", "key", "waits")

    def __init__(self, key: BucketKey, bucket: Any, now_ms: int) -> None:
        self.key = key
        self.bucket = bucket
        self.waits = SampledStat(now_ms)
        self._noted_ms = now_ms

    @property
    def used_ms(self) -> int:
        """When it was used last; the native lanes charge the bucket directly."""
        is_rate = isinstance(self.bucket, RateBucket)
        return max(self._noted_ms, self.bucket.used_ms) if is_rate else self._noted_ms

    def note_use(self, wait_ms: int, now_ms: int) -> None:
        """Note that a client has used the quota, and how long it has to wait."""
        self._noted_ms = now_ms
        if wait_ms:
            self.waits.record(wait_ms, now_ms)

    def drop(self) -> None:
        """Let the lanes charge it no more."""
        if isinstance(self.bucket, RateBucket):
            self.bucket.is_gone = True


class ClientLimits(NamedTuple):
    """The buckets of one client; None where it is not limited. `client_id`: as in its requests.

    `account`: what the native lanes charge; None if no quota applies to produces, fetches, and their time.
    """

    limits: QuotaLimits
    client_id: str
    produce: QuotaBucket | None
    fetch: QuotaBucket | None
    request: QuotaBucket | None
    mutation: QuotaBucket | None
    account: ClientAccount | None


class ClientQuotas:
    """The quotas of one node. Implements `kreplica.metadata.metadata_loader.MetadataPublisher`."""

    def __init__(self, config: QuotaConfig, clock: Clock, metrics: MetricRegistry) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._watchers: list[Callable[[QuotaLimits | None], object]] = []
        # What no quota limits; of this bucket only the rate counts.
        self._exempt = RateBucket(config.quota_window_num, config.quota_window_size_seconds * 1000, math.inf)
        self._known: Any = None
        # None if no client has a quota.
        self.limits: QuotaLimits | None = None
        # ... including those of addresses.
        self.of_ips = QuotaLimits({})
        self._lock = Lock()
        # Guarded by _lock:
        self._clients: dict[tuple[str, str], ClientLimits] = {}
        self._buckets: dict[BucketKey, QuotaBucket] = {}
        self._swept_ms = 0
        metrics.gauge("Request", "exempt-request-time", lambda: self._exempt.rate(self.now_ms()))

    def now_ms(self) -> int:
        return monotonic_ms(self._clock)

    def now_ns(self) -> int:
        return self._clock.monotonic_ns()

    def watch(self, changed: Callable[[QuotaLimits | None], object]) -> None:
        """Call `changed` now and after each change of quotas, with `limits`, in the thread of the change."""
        self._watchers.append(changed)
        changed(self.limits)

    # ---- the metadata -------------------------------------------------------------------------------------

    def on_metadata_update(
        self,
        delta: MetadataDelta,  # noqa: ARG002
        metadata: ClusterMetadata,
        applied: OffsetAndEpoch,  # noqa: ARG002
    ) -> None:
        """Take over changed quotas."""
        if metadata.quotas is self._known:
            return
        self._known = metadata.quotas
        made = QuotaLimits(metadata.quotas)
        with self._lock:
            self.of_ips = made
            self.limits = made if made.has_clients else None
            self._clients = {}
            if self.limits is None:
                self._drop(list(self._buckets.values()))
        for changed in self._watchers:
            changed(self.limits)

    def on_leader_change(self, leader: Any) -> None:
        """Do nothing: quotas do not depend on the leader of the quorum."""

    # ---- clients ------------------------------------------------------------------------------------------

    def client(self, user: str, client_id: str) -> ClientLimits | None:
        """Return the buckets of a client; None if no client has a quota."""
        limits = self.limits
        if limits is None:
            return None
        now_ms = self.now_ms()
        if now_ms - self._swept_ms >= SWEEP_EVERY_MS:
            self._sweep(now_ms)
        found = self._clients.get((user, client_id))
        if found is None or found.limits is not limits:
            with self._lock:
                found = self._resolved(user, client_id, now_ms)
        return found

    def _resolved(self, user: str, client_id: str, now_ms: int) -> ClientLimits | None:
        limits = self.limits
        if limits is None:
            return None
        buckets = []
        for kind in (PRODUCE, FETCH, REQUEST, MUTATION):
            found = limits.find(kind, user, client_id)
            buckets.append(None if found is None else self._bucket(*found, now_ms))
        rates = [None if each is None else each.bucket for each in buckets[:3]]
        account = ClientAccount(self._clock.monotonic_ns, *rates) if any(rates) else None
        produce, fetch, request, mutation = buckets
        made = ClientLimits(limits, client_id, produce, fetch, request, mutation, account)
        if len(self._clients) >= MOST_BUCKETS:
            del self._clients[next(iter(self._clients))]
        self._clients[user, client_id] = made
        return made

    def _bucket(self, quota: float, key: BucketKey, now_ms: int) -> QuotaBucket:
        found = self._buckets.get(key)
        if found is not None:
            found.bucket.quota = quota
            found.note_use(0, now_ms)
            return found
        if len(self._buckets) >= MOST_BUCKETS:
            oldest = sorted(self._buckets.values(), key=lambda each: each.used_ms)
            self._drop(oldest[: MOST_BUCKETS // 10])
        made = QuotaBucket(key, self._new_bucket(key.type, quota), now_ms)
        self._buckets[key] = made
        self._show(made)
        return made

    def _new_bucket(self, kind: QuotaType, quota: float) -> RateBucket | MutationBucket:
        config = self._config
        if kind is MUTATION:
            burst_s = config.controller_quota_window_num * config.controller_quota_window_size_seconds
            return MutationBucket(self._clock, burst_s, quota)
        window_ms = config.quota_window_size_seconds * 1000
        return RateBucket(config.quota_window_num, window_ms, quota, window_ms if kind is REQUEST else None)

    def _sweep(self, now_ms: int) -> None:
        with self._lock:
            self._swept_ms = now_ms
            self._drop([each for each in self._buckets.values() if now_ms - each.used_ms >= IDLE_MS])

    def _drop(self, gone: list[QuotaBucket]) -> None:
        for each in gone:
            each.drop()
            del self._buckets[each.key]
            for name in (each.key.type.rate, "throttle-time"):
                self._metrics.remove(each.key.type.metrics, name, _tags(each.key))
        if gone:
            self._clients = {}

    def _show(self, made: QuotaBucket) -> None:
        kind, bucket = made.key.type, made.bucket
        if isinstance(bucket, MutationBucket):
            self._metrics.gauge(kind.metrics, kind.rate, lambda: bucket.tokens, _tags(made.key))
        else:
            rate = partial(_measured, bucket, self.now_ms)
            self._metrics.gauge(kind.metrics, kind.rate, rate, _tags(made.key))
        wait = partial(_average, made.waits, self.now_ms)
        self._metrics.gauge(kind.metrics, "throttle-time", wait, _tags(made.key))

    # ---- requests -----------------------------------------------------------------------------------------

    def begin(self, peer: Peer, client_id: str, size: int, began_ns: int) -> RequestQuota | None:
        """Return the account of a request of `size` bytes; None if no client has a quota.

        This process itself is above all quotas.
        """
        if peer is THIS_PROCESS:
            return None
        found = self.client(peer.principal.name, client_id)
        return None if found is None else RequestQuota(self, found, size, began_ns)

    def mutation(self, context: RequestContext, *, is_strict: bool) -> ControllerMutationQuota:
        """Return the account of a request that changes partitions."""
        found = None
        if context.peer is not THIS_PROCESS:
            found = self.client(context.peer.principal.name, context.client_id)
        if found is None or found.mutation is None:
            return ControllerMutationQuota()
        found.mutation.note_use(0, self.now_ms())
        return ControllerMutationQuota(found.mutation.bucket, is_strict=is_strict)

    def note_exempt(self, spent_ns: int) -> None:
        """Count the time of a request that no quota limits."""
        self._exempt.note(spent_ns * PERCENT_OF_NS, self.now_ms())


class RequestQuota:
    """What one request has cost its client. `throttle_ms`: how long the client has to wait."""

    __slots__ = ("_began_ns", "_quotas", "_size", "_spent_ns", "client", "throttle_ms")

    def __init__(self, quotas: ClientQuotas, client: ClientLimits, size: int, began_ns: int) -> None:
        self.client = client
        self.throttle_ms = 0
        self._quotas = quotas
        self._size = size
        self._began_ns = began_ns
        self._spent_ns = 0

    # ---- time ---------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """End a part of the work on the request: it waits for something."""
        if self._began_ns:
            self._spent_ns += self._quotas.now_ns() - self._began_ns
            self._began_ns = 0

    def resume(self) -> None:
        """Begin another part of the work, unless one is under way."""
        if not self._began_ns:
            self._began_ns = self._quotas.now_ns()

    def charge_time(self) -> None:
        """Charge the time spent so far. What is spent later is counted by `note_time`, without a wait."""
        if self.client.request is not None:
            self.pause()
            self._began_ns = self._quotas.now_ns()
            self._charge(self.client.request, self._spent_ns * PERCENT_OF_NS)
            self._spent_ns = 0

    def note_time(self) -> None:
        """Count the time since `charge_time`, which was spent on sending the answer."""
        entry = self.client.request
        if entry is not None:
            self.pause()
            entry.bucket.note(self._spent_ns * PERCENT_OF_NS, self._quotas.now_ms())

    # ---- bytes --------------------------------------------------------------------------------------------

    def charge_produced(self) -> None:
        """Charge a Produce request for its size."""
        if self.client.produce is not None:
            self._charge(self.client.produce, self._size)

    def charge_fetched(self, size: int) -> None:
        """Charge records that are sent in any case."""
        if self.client.fetch is not None:
            self._charge(self.client.fetch, size)

    @property
    def most_fetched(self) -> int | None:
        """The most bytes that an answer to a fetch should have; None for no limit."""
        entry = self.client.fetch
        return None if entry is None else max(int(entry.bucket.burst), 1)

    def take_fetched(self, size: int) -> bool:
        """Charge the records of an answer; return False if they must not be sent, and are not charged."""
        entry = self.client.fetch
        if entry is None:
            return True
        now_ms = self._quotas.now_ms()
        may_send, wait_ms = entry.bucket.take(size, now_ms)
        self._wait(entry, wait_ms, now_ms)
        return bool(may_send)

    def _charge(self, entry: QuotaBucket, value: float) -> None:
        now_ms = self._quotas.now_ms()
        self._wait(entry, entry.bucket.charge(value, now_ms), now_ms)

    def _wait(self, entry: QuotaBucket, wait_ms: int, now_ms: int) -> None:
        entry.note_use(wait_ms, now_ms)
        self.throttle_ms = max(self.throttle_ms, wait_ms)


def _tags(key: BucketKey) -> dict[str, str]:
    return {"user": _encoded(key.user or ""), "client-id": key.client_id or ""}


def _encoded(user: str) -> str:
    """Return the name of a user as Kafka's metrics have it: as in a URL."""
    return "".join(chr(byte) if chr(byte) in PLAIN_IN_URLS else f"%{byte:02X}" for byte in user.encode())


def _measured(bucket: RateBucket, now_ms: Callable[[], int]) -> float:
    return bucket.rate(now_ms())


def _average(waits: SampledStat, now_ms: Callable[[], int]) -> float:
    return waits.average(now_ms())
