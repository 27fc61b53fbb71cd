"""Cluster: the public interface of a cluster in one process; ClusterNodes manages its nodes.

Ownership: the cluster owns its nodes, its network and its client, and its directory if that is temporary.
Thread rule: any thread. No lock is needed here, because all changing state belongs to the nodes, the client
or the network.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from kreplica._core.record import Record
from kreplica.broker.node import CONTROLLED_SHUTDOWN_MS, Node
from kreplica.client.admin import Admin
from kreplica.client.arguments import choice, milliseconds
from kreplica.client.client import Client
from kreplica.client.client_config import ClientConfig, Isolation, Protocol
from kreplica.client.producer import Acks, AppendResult, TopicProducer
from kreplica.cluster.administration import TIMEOUT, ClusterAdministration
from kreplica.cluster.cluster_nodes import ClusterNodes
from kreplica.cluster.faults import DISKS, Delay, require_link, require_number, rot_replica
from kreplica.cluster.pending_futures import PendingFutures
from kreplica.cluster.records import ClusterRecords, Consumer, read
from kreplica.cluster.settings import (
    Layout,
    check_cluster_id,
    extended,
    new_layout,
    node_config,
    read_layout,
)
from kreplica.cluster.share import Message, Messages, Sharing
from kreplica.cluster.transactions import (
    TRANSACTION_TIMEOUT,
    ClusterTransactions,
    Transacting,
    Transaction,
)
from kreplica.cluster.views import ClusterWatch, describe_topics
from kreplica.common.errors import (
    ClusterClosed,
    InvalidConfig,
    InvalidRequest,
    KreplicaError,
    RequestTimedOut,
)
from kreplica.common.future import Future
from kreplica.common.html import table
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import ROOT
from kreplica.metadata.watches import MAX_PENDING, Watch, Watches
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.local_network import LocalNetwork

if TYPE_CHECKING:
    from datetime import datetime

    from kreplica._core.batch_builder import _RecordList as RecordList
    from kreplica.cluster.listeners import ClusterListeners
    from kreplica.cluster.security import ClusterSecurity, Security
    from kreplica.runtime.listener import Listener

T = TypeVar("T")

# An id that no node in the network has.
CLIENT_ID = -2
CLIENT = ClientConfig(request_timeout_ms=2_000, retry_backoff_ms=5, leader_check_ms=50)
# A thread that has made this many appends in a row, each after the result of the one before, waits for each.
ALONE = 2
# Polling interval for conditions that no event signals.
LOOK_MS = 5


class _LastAppend(threading.local):
    """The last append of each thread, and how many in a row were made after the result of the one before."""

    append: Future[AppendResult] | None = None
    alone = 0


class Cluster(ClusterAdministration):
    """A cluster of `brokers` brokers in `directory`, by default a temporary one that `close` removes.

    Nothing in a temporary directory is flushed to the disk, whatever `durability` says: its files survive the
    kill of a node and no power cut. If the directory already holds a cluster, it is opened, and brokers may
    be added. `controllers`: the number of dedicated controllers (ids from 1001); with 0 the first three
    brokers are controllers too (one if there are fewer than three), or those that the directory names.
    `config`: Kafka's properties for every node and, as defaults, for topics, such as
    {"min.insync.replicas": 2}. `serve`: the brokers also listen on ports of 127.0.0.1 for any Kafka client
    (`bootstrap_servers`). `security`: what a cluster that serves asks of its clients; True is Security(), by
    which they log in over TLS (`client_config`). The constructor returns when every broker is able to lead.
    Use the cluster as a context manager, or close it.

    Raises InvalidConfig, InconsistentClusterId, LogDirLocked, InvalidFile, RequestTimedOut.
    """

    def __init__(
        self,
        brokers: int = 3,
        directory: str | os.PathLike[str] | None = None,
        *,
        controllers: int = 0,
        config: Mapping[str, object] | None = None,
        cluster_id: str | None = None,
        serve: bool = False,
        security: Security | bool = False,
        startup_timeout: float = TIMEOUT,
    ) -> None:
        if not isinstance(brokers, int):
            raise TypeError(f"brokers must be a number, not {brokers!r}; directory= names a directory")
        if directory is not None and not os.fspath(directory):
            raise ValueError("directory is empty: name one, or leave it out for a temporary one")
        while _closing:
            _closing.pop().join()
        self.directory = os.path.abspath(os.fsdecode(directory or tempfile.mkdtemp(prefix="kreplica-")))
        # Errors raised by tasks of nodes, by the name of their loop. Normally empty.
        self.failures: list[tuple[str, BaseException]] = []
        # How much longer each message takes: see set_network.
        self.delay_ms: float = 0
        self._clock = SystemClock()
        # Nothing below refers to the cluster itself, so that an unreferenced cluster is closed: see _Parts.
        on_error = partial(_note_failure, self.failures)
        network = LocalNetwork(self._clock, on_error)
        self._last = _LastAppend()
        self._pending = PendingFutures(f"the cluster in {self.directory}")
        self._parts = parts = _Parts(network, self._pending, self.directory if directory is None else None)
        self._listeners: ClusterListeners | None = None
        self._security: ClusterSecurity | None = None
        try:
            if security:
                config = {**(config or {}), **self._secure(security, serve=serve).node_settings}
            layout = _layout(self.directory, brokers, controllers, cluster_id)
            if serve:
                from kreplica.cluster.listeners import ClusterListeners

                first = node_config(layout, next(iter(layout.roles)), self.directory, config or {})
                self._listeners = parts.listeners = ClusterListeners(
                    layout, first.server, on_error, *self._listener_settings()
                )
            parts.nodes = ClusterNodes(
                layout,
                self.directory,
                config or {},
                network,
                self._clock,
                lambda node_id, error: on_error(f"node {node_id}", error),
                None if self._listeners is None else self._listeners.by_node,
                is_temporary=directory is None,
                watches=parts.watches,
            )
            weakref.finalize(self, _close_unreferenced, parts).atexit = False
            _unclosed.add(parts)
            self._make_client(parts.nodes)
            network.start()
            parts.nodes.start_all()
            self.wait_until_ready(startup_timeout)
            if self._security is not None:
                for credentials in self._security.credentials():
                    added = self._client.admin.set_credentials(credentials)
                    self._result(added, startup_timeout, "the users could not be added")
        except BaseException:
            self.close()
            raise

    def _secure(self, security: Security | bool, *, serve: bool) -> ClusterSecurity:
        from kreplica.cluster.security import ClusterSecurity, Security

        if not serve:
            raise InvalidConfig("security is about clients on ports: give serve=True, too")
        settings = Security() if security is True else security
        if not isinstance(settings, Security):
            raise TypeError(f"security must be a kreplica.Security or True, not {type(security).__name__}")
        self._security = ClusterSecurity(settings, self.directory)
        return self._security

    def _listener_settings(self) -> tuple[Listener, ...]:
        return () if self._security is None else (self._security.listener,)

    def _make_client(self, nodes: ClusterNodes) -> None:
        endpoint = self._network.join(CLIENT_ID)
        self._loop = loop = endpoint.loop("client")
        self._client = Client(
            nodes.live_brokers,
            nodes.likely_controllers,
            transport=endpoint,
            loop=loop,
            clock=self._clock,
            random=random.SystemRandom(),
            config=CLIENT,
            work=self._network.run_due,
        )
        # All three also used by kreplica.aio, which waits in its own way.
        self.transactions = transactions = ClusterTransactions(
            self._client, nodes.newest_metadata, self._pending
        )
        producer = self._client.producer
        # Nothing below may refer to the cluster: see _Parts.
        self._pending.appends = lambda: (*producer.pending(), *transactions.appends())
        self.producer = TopicProducer(self._client.producer, nodes.newest_metadata, self._pending)
        self.records = ClusterRecords(self._client, nodes.newest_metadata, self._pending)

    # ---- records ------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: RecordList,
        *,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> Future[AppendResult]:
        """Append records to the topic, after this cluster's earlier appends.

        With a `partition` all records go there, all or none of them. Without one each record goes to the
        partition of its key (murmur2, as in Kafka's clients), and records without a key all to one partition,
        the next one at each call; each partition gets all or none of its records. With acks="all" they are
        sent again, and appended once, until they are acknowledged or `timeout` seconds (120 by default) have
        passed.

        A thread that has not asked for the result of its last append goes on before the records are sent.
        They are sent together with all others that wait by then: when a thread waits for a result, or by the
        cluster's own thread. While appends that are not done hold more than 32 MiB, as without a leader, each
        further append waits until it is done, for at most 60 s.

        Raises UnknownTopicOrPartition, InvalidRequiredAcks, and TypeError if `records` is not a list. The
        future fails with RequestTimedOut, MessageTooLarge, InvalidRecord, or TypeError for something that is
        not a record. Waiting for it in a callback of another future raises WouldDeadlock.
        """
        last = self._last
        if last.append is not None and not last.append.is_read:
            last.alone = 0
        elif last.alone < ALONE:
            last.alone += 1
        else:
            # A thread that waits for each append does its work now, and no other thread has to wake up.
            with self._parts.network.draining():
                last.append = future = self.producer.append(topic, records, partition, acks, timeout)
            return future
        last.append = future = self.producer.append(topic, records, partition, acks, timeout)
        return self._paused(self._client.producer.pause_s, future)

    def append_one(
        self,
        topic: str,
        value: bytes | bytearray | memoryview | None,
        key: bytes | bytearray | memoryview | None = None,
        headers: Sequence[tuple[str, bytes | bytearray | memoryview | None]] = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> Future[AppendResult]:
        """Append one record, as `append` does with a list; the result's `base_offset` is its offset."""
        record = Record(value, key, headers, timestamp)
        return self.append(topic, [record], partition=partition, acks=acks, timeout=timeout)

    def _append_in(
        self,
        steps: Transacting,
        topic: str,
        records: RecordList,
        partition: int | None,
        timeout: float | None,
    ) -> Future[AppendResult]:
        future = steps.append(topic, records, partition, timeout)
        return self._paused(steps.pause_s, future)

    def _paused(self, pause_s: float, future: Future[AppendResult]) -> Future[AppendResult]:
        if pause_s and not self._parts.network.is_in_task:
            future.wait(pause_s)
        return future

    def transaction(
        self, transactional_id: str, *, source: Consumer | None = None, timeout: float = TRANSACTION_TIMEOUT
    ) -> Transaction:
        """Return a transaction, to be used in a `with` statement.

            for records in orders.batches():
                with cluster.transaction("invoicing", source=orders) as txn:
                    txn.append("invoices", [invoice(record) for record in records])

        What it appends and commits counts as a whole or not at all, also if the program or a node dies.
        Leaving the block commits; leaving it by an exception aborts. Readers with isolation="txn_committed"
        see only what is committed. `source`: the consumer whose records the block processes, from
        `consume(..., auto_commit=False)`. Their offsets are committed with the transaction; if it fails, the
        consumer gives them out again.

        The transactional id stands for a task of the program. One transaction of it can be open at a time. If
        another process begins one of the same id, it fences this one: its open transaction is aborted, and it
        gets ProducerFenced. A transaction that is open for more than `timeout` seconds is aborted. Raises
        TypeError, ValueError, ClusterClosed, InvalidRequest if the source commits offsets on its own; at the
        beginning of the block ConcurrentTransactions if one is open in this program,
        InvalidTransactionTimeout, ProducerFenced, RequestTimedOut.
        """
        steps = self.transactions.transaction(transactional_id, source, timeout)
        return Transaction(steps, self._answer, self._append_in)

    def read(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        stop: int | None = None,
        *,
        follow: bool = False,
        isolation: Isolation = "high_watermark",
    ) -> Iterator[Record]:
        """Iterate over the committed records with offsets in [start, stop), in order, read from the leader.

        Starts at the log start by default. Stops at the current high watermark; with `follow` at `stop`,
        waiting for records still to come (forever without a `stop`). `isolation`: "txn_committed", which
        Kafka's clients call "read_committed", skips records of aborted transactions and stops at the first
        open one. Raises UnknownTopicOrPartition; while iterating
        OffsetOutOfRange if `start` is below the log start or above the log end, RequestTimedOut,
        CorruptMessage.
        """
        reading = self.records.reading(topic, partition, start, stop, isolation, follow=follow)
        return read(reading, self._answer)

    def consume(
        self,
        topics: str | Sequence[str] = (),
        group: str = "",
        *,
        pattern: str | None = None,
        instance_id: str | None = None,
        protocol: Protocol | None = None,
        isolation: Isolation | None = None,
        auto_commit: bool = True,
        timeout: float | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Consumer:
        """Iterate over the topics' committed records as a member of the consumer group.

        The group's members share the partitions; reading starts at the group's committed offsets. The
        iterator waits for more records, or ends after `timeout` seconds without any. `isolation`: as of
        `read`. Its method `batches()` iterates over lists of records, whatever has come.

        `pattern`: read all topics whose whole name matches this regular expression (RE2), too. `instance_id`:
        makes the member static: it keeps its partitions while it is away for less than a session. `protocol`:
        "consumer" (KIP-848), in which a rebalance interrupts only the partitions that move, or "classic"; by
        default what the cluster has.

        A record counts as processed when the next one is requested. Each is delivered at least once: again if
        its offset could not be committed before the partition moved to another member. Without `auto_commit`
        it counts when a transaction commits the offsets (Transaction.commit_offsets). Leaving the loop leaves
        the group. `config`: Kafka's consumer properties, such as {"auto.offset.reset": "latest"}. Raises
        InvalidConfig, InvalidRequest, ValueError; while iterating FencedInstanceId, UnreleasedInstanceId,
        InvalidGroupId, InvalidSessionTimeout, InvalidRegularExpression, InconsistentGroupProtocol,
        CorruptMessage, and RequestTimedOut if it cannot become a member.
        """
        consuming = self.records.consuming(
            topics,
            group,
            timeout,
            config,
            isolation,
            auto_commit=auto_commit,
            pattern=pattern,
            protocol=protocol,
            instance_id=instance_id,
        )
        return Consumer(consuming, self._answer)

    def share(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] | None = "earliest",
        max_records: int | None = None,
        auto_accept: bool = True,
        timeout: float | None = None,
    ) -> Messages:
        """Take the topics' messages as a member of the share group: a durable queue for many workers.

            for message in cluster.share("orders", group="workers"):
                work(message.value)

        Each message is delivered to one member at a time, which has it until its lock runs out
        (share.record.lock.duration.ms of the group, 30 s by default). A message is accepted when the next one
        is requested; then no member gets it again. Its methods `accept`, `release`, `reject` and `renew`
        decide otherwise. If the loop ends by an exception, or the program dies, the message is delivered
        again, up to share.delivery.count.limit times. Without `auto_accept` only what the methods settle
        counts; messages may then be settled in any order and by any thread. `batches()` iterates over lists
        of messages.

        A new group starts at the beginning of its topics, or with start="latest" at their end, unless its
        setting share.auto.offset.reset is set. The number of messages fetched at once follows the program's
        speed; with `max_records` it is this number from each broker. Locks of messages that wait for the loop
        are renewed, so each has at least half of its time left when the loop gets it; the messages of a list
        begin together. The iterator waits for more messages, or ends after `timeout` seconds without any.
        Leaving the loop or `with` block releases all messages that are not settled. Raises ValueError; while
        iterating GroupIdNotFound if the group is of another type, CorruptMessage, and RequestTimedOut if it
        gets no partition.
        """
        prepare = self.records.share_start(group, start)
        consumer = self.records.share_consumer(topics, group, max_records)
        wait_ms = None if timeout is None else milliseconds(timeout)
        sharing = Sharing(
            consumer, self.records.tracked, Message, wait_ms, auto_accept=auto_accept, prepare=prepare
        )
        return Messages(sharing, self._answer)

    # ---- watches ------------------------------------------------------------------------------------------

    def watch(
        self,
        path: str = ROOT,
        *,
        timeout: float | None = None,
        initial: bool = False,
        max_pending: int = MAX_PENDING,
    ) -> ClusterWatch:
        """Observe the cluster: iterate over the changes at `path` and below it, from now on.

        The paths are those of the metadata image, such as /brokers/ids/1, /brokers/topics/orders/partitions/0
        and /config/2/orders (see docs/OPERATING.md). A change has a path, a version that is the same on every
        node (the change's offset in the metadata log; of /controller the epoch), and the old and new value as
        plain data. Every change arrives
        once, also if nodes are killed. The iteration ends after `timeout` seconds without a change; without a
        timeout it waits forever. `initial`: start with what exists, as changes from None. The watch keeps up
        to `max_pending` changes that were not read; one more ends it with WatchOverflowed.

        Raises InvalidRequest for an invalid path, ClusterClosed.
        """
        watch = self.open_watch(path, initial=initial, max_pending=max_pending)
        limit = None if timeout is None else milliseconds(timeout) / 1000

        def wait(ready: Future[None]) -> bool:
            self._pending.require_own()
            try:
                ready.result(limit)
            except TimeoutError:
                return False
            return True

        return ClusterWatch(watch, wait)

    def open_watch(self, path: str, *, initial: bool, max_pending: int) -> Watch:
        """Open a watch whose reader waits in its own way, as kreplica.aio does."""
        self._pending.require_open()
        return self._parts.watches.watch(path, initial=initial, max_pending=max_pending)

    # ---- nodes --------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self._nodes.layout.cluster_id

    @property
    def nodes(self) -> list[int]:
        """The ids of all nodes, including dead ones."""
        return self._nodes.ids

    @property
    def controller(self) -> int | None:
        """The node that is the active controller, or None if no node is now."""
        return self._nodes.controller

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, in the form that Kafka's clients take.

        Raises InvalidRequest without `serve`.
        """
        self._pending.require_own()
        if self._listeners is None:
            raise InvalidRequest("the cluster has no listeners: create it with serve=True")
        return self._listeners.bootstrap_servers

    def client_config(self, user: str | None = None, *, mechanism: str = "PLAIN") -> dict[str, Any]:
        """Return the properties with which librdkafka (confluent-kafka) connects to this cluster.

        `user`: by default the first of `security.users`. `mechanism`: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or
        OAUTHBEARER, for which the client asks the cluster for tokens by `oauth_cb`. Raises InvalidRequest
        without `serve`, InvalidConfig for an unknown user or mechanism.
        """
        found: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers}
        return found if self._security is None else found | self._security.librdkafka(user, mechanism)

    def client_properties(self, user: str | None = None, *, mechanism: str = "PLAIN") -> dict[str, str]:
        """Return the properties with which Kafka's own clients and tools connect, as `client_config` does.

        `kreplica --command-config` takes a file of them, and Spark takes them as options, after "kafka.".
        With OAUTHBEARER they name the file of a token, good for a day. Java reads it only if its property
        `org.apache.kafka.sasl.oauthbearer.allowed.urls` has the same URL.
        """
        found = {"bootstrap.servers": self.bootstrap_servers}
        return found if self._security is None else found | self._security.java(user, mechanism)

    def token(self, user: str | None = None, *, lifetime_s: float = 3600.0) -> str:
        """Return a token of OAUTHBEARER, by which a client of this cluster logs in as that user, of any name.

        `lifetime_s` below 0: one that has expired. Raises InvalidConfig without `security`, without logins,
        or if joserfc is not installed.
        """
        if self._security is None:
            raise InvalidConfig("clients of this cluster do not log in: create it with security=True")
        return self._security.token(user, lifetime_s)

    def is_running(self, node_id: int) -> bool:
        """Return whether the node runs, also if it is paused. Raises InvalidRequest for an unknown id."""
        return self._nodes.local(node_id).is_alive

    def node(self, node_id: int) -> Node:
        """Return the node object, to inspect its internals. Raises InvalidRequest if it does not run."""
        self._pending.require_open()
        node = self._nodes.local(node_id).node
        if node is None:
            raise InvalidRequest(f"node {node_id} is not running: start it first")
        return node

    def start(self, node_id: int, *, timeout: float = TIMEOUT) -> None:
        """Start a node again on its directory; returns when its broker is able to lead.

        Raises InvalidRequest if it runs already or there is no such node, RequestTimedOut, BrokerNotAvailable
        if the node fails, and what Cluster raises.
        """
        self._pending.require_open()
        ready = self._nodes.start(node_id)
        if self._nodes.has_quorum():
            self._result(ready, timeout, f"node {node_id} is not ready")

    def stop(self, node_id: int, *, timeout: float = CONTROLLED_SHUTDOWN_MS / 1000) -> None:
        """Shut a node down cleanly; it first hands over its leaderships. Raises InvalidRequest."""
        self._pending.require_open()
        self._nodes.stop(node_id, milliseconds(timeout))

    def kill(self, node_id: int) -> None:
        """Kill a node, as kill -9 would. Raises InvalidRequest if it does not run."""
        self._pending.require_open()
        self._nodes.kill(node_id)

    def pause(self, node_id: int) -> None:
        """Stall a node, as SIGSTOP would. Raises InvalidRequest if it does not run."""
        self._pending.require_open()
        self._nodes.pause(node_id)

    def resume(self, node_id: int) -> None:
        """Resume a paused node. Raises InvalidRequest if it does not run."""
        self._pending.require_open()
        self._nodes.resume(node_id)

    def cut(self, one: int, other: int, *, both_ways: bool = True) -> None:
        """Cut the network from `one` to `other`, and with `both_ways` also from `other` to `one`.

        Raises InvalidRequest if there is no such node.
        """
        self._require_link(one, other)
        self._network.cut(one, other, both_ways=both_ways)

    def heal(self, one: int | None = None, other: int | None = None, *, both_ways: bool = True) -> None:
        """Reconnect `one` to `other`, and with `both_ways` also `other` to `one`; without nodes, all of them.

        Raises InvalidRequest if there is no such node.
        """
        self._pending.require_open()
        if one is None or other is None:
            self._network.heal_all()
        else:
            self._require_link(one, other)
            self._network.heal(one, other, both_ways=both_ways)

    def is_cut(self, one: int, other: int) -> bool:
        """Return whether messages from `one` to `other` are lost. Raises InvalidRequest for unknown nodes."""
        self._require_link(one, other)
        return (one, other) in self._network.cut_links

    def _require_link(self, one: int, other: int) -> None:
        self._pending.require_open()
        require_link(one, other, self._nodes.ids)

    def set_network(self, *, delay_ms: float = 0) -> None:
        """Let each message between nodes, and between them and this program, take `delay_ms` longer.

        A request and its answer are two messages. While the delay stays, so does the order of messages from
        one node to another. Raises TypeError if the delay is no number, ValueError if it is negative.
        """
        self._pending.require_open()
        delay = Delay(self._loop, delay_ms)
        self._network.gate = delay if delay_ms else None
        self.delay_ms = delay_ms

    def add_delay(self, delay_ms: float) -> None:
        """Let each message take `delay_ms` longer than now, or less long if it is negative.

        Raises TypeError, and ValueError if the delay would be too long.
        """
        require_number(delay_ms, "delay_ms")
        self.set_network(delay_ms=max(0, self.delay_ms + delay_ms))

    def set_disk(self, node_id: int, state: Literal["well", "full"]) -> None:
        """Let the node's disk be full, or well again; a node that was killed starts with a disk that is well.

        The node may die of it, as its process would. Raises InvalidRequest if it does not run, ValueError.
        """
        self.node(node_id)
        self._nodes.set_disk_full(node_id, DISKS[choice(state, DISKS, "state")])

    def rot(self, topic: str, partition: int, offset: int, *, broker: int) -> None:
        """Flip a bit of the record at `offset`, in the files of the replica on `broker`.

        When the broker reads the record, it notices, and takes it from another replica again. If none has it,
        reads of it time out. Raises InvalidRequest if the broker does not run or has no replica,
        OffsetOutOfRange, UnknownTopicOrPartition.
        """
        rot_replica(self.node(broker), self._require(topic, partition), offset)

    def wait_until_ready(self, timeout: float = TIMEOUT) -> None:
        """Return when every running broker is able to lead. Raises RequestTimedOut."""
        for node in self._nodes.live():
            self._result(node.ready, timeout, f"node {node.config.node_id} is not ready")

    def describe(self) -> dict[str, Any]:
        """Return the cluster's nodes, quorum and topics as JSON-compatible values."""
        metadata = self._newest()
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller,
            "nodes": {node_id: self._describe_node(node_id, metadata) for node_id in self._nodes.ids},
            "topics": describe_topics(metadata),
        }

    def _describe_node(self, node_id: int, metadata: ClusterMetadata) -> dict[str, Any]:
        local, registration = self._nodes.local(node_id), metadata.brokers.get(node_id)
        node = local.node
        return {
            "roles": sorted(local.config.roles),
            "is_alive": node is not None,
            "is_paused": local.is_paused,
            "is_fenced": None if registration is None else registration.fenced,
            "broker_epoch": None if registration is None else registration.epoch,
            "metadata_offset": None if node is None else node.loader.applied.offset,
            "quorum_epoch": None if node is None else node.raft.leader_and_epoch.epoch,
        }

    # ---- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop every node at once, close all files cleanly, and remove a temporary directory.

        What was appended is sent first, if brokers can take it. Pending calls, also in other threads, then
        fail with ClusterClosed. In a forked child this does nothing, because the cluster belongs to the
        parent.
        """
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not hasattr(self, "_pending") or self._parts.nodes is None:
            return f"{type(self).__name__}(that did not start)"
        if self._pending.is_forked:
            return f"Cluster({self.directory!r}, of the parent process)"
        alive = [node.config.node_id for node in self._nodes.live()]
        return f"Cluster({self.directory!r}, nodes {alive} of {self._nodes.ids} run)"

    def _repr_html_(self) -> str:
        """Return the nodes and the partitions as tables, for notebooks: leaders and ISRs at a glance."""
        if not self._parts.is_open:
            return table(f"Cluster in {self.directory}", (), [["closed"]])
        metadata, controller = self._newest(), self.controller
        nodes = [
            (
                node_id,
                " and ".join(sorted(local.config.roles)) + (", active" if node_id == controller else ""),
                "paused" if local.is_paused else "running" if local.is_alive else "dead",
                sum(each.leader == node_id for _, _, each in metadata.partitions()),
            )
            for node_id, local in ((each, self._nodes.local(each)) for each in self._nodes.ids)
        ]
        topics = [
            (at, each.leader if each.leader >= 0 else "none", _ids(each.isr), _ids(each.replicas))
            for at, _, each in metadata.partitions()
        ]
        return table(f"Cluster in {self.directory}", ("node", "roles", "state", "leads"), nodes) + table(
            "Partitions", ("partition", "leader", "in sync", "replicas"), topics
        )

    # ---- internals ----------------------------------------------------------------------------------------

    # All access to the nodes and the network goes through these two properties. A forked child must use
    # neither: a network lock that one of the parent's threads held at the fork is never released there.

    @property
    def _nodes(self) -> ClusterNodes:
        self._pending.require_own()
        assert self._parts.nodes is not None
        return self._parts.nodes

    @property
    def _network(self) -> LocalNetwork:
        self._pending.require_own()
        return self._parts.network

    def _require(self, topic: str, partition: int) -> TopicPartition:
        return self.records.require(topic, partition)

    @property
    def _admin(self) -> Admin:
        return self._client.admin

    def _ask(self, ask: Callable[[], Future[T]], timeout: float) -> T:  # noqa: ARG002
        # The client enforces the timeout itself.
        return self._answer(ask)

    def _newest_node(self) -> Node:
        return self._nodes.newest()

    def _known(self) -> list[ClusterMetadata]:
        return self._nodes.known_metadata()

    def _node(self, node_id: int) -> Node | None:
        return self._nodes.node(node_id)

    def _answer(self, ask: Callable[[], Future[T]]) -> T:
        network = self._network
        network.require_free()
        with network.draining():
            answer = self.records.ask(ask)
        return answer.result()

    def _result(self, future: Future[T], timeout: float, what: str) -> T:
        try:
            return self._pending.track(future).result(milliseconds(timeout) / 1000)
        except TimeoutError:
            raise RequestTimedOut(f"{what} after {timeout} s") from None

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Return when the condition holds. Raises RequestTimedOut."""
        deadline_ns = self._clock.monotonic_ns() + milliseconds(timeout) * NANOSECONDS_PER_MS
        done: Future[None] = self._pending.track(Future())

        def look() -> None:
            if done.done():
                return
            try:
                holds = condition()
            except KreplicaError as error:
                # The object waited for was deleted meanwhile, or no node is left.
                done.set_exception(error)
                return
            if holds:
                done.set_result(None)
            elif self._clock.monotonic_ns() > deadline_ns:
                done.set_exception(RequestTimedOut(f"{what}: not reached within {timeout} s"))
            else:
                self._loop.post_later(look, LOOK_MS)

        self._network.require_free()
        with self._network.draining():
            self._loop.post(look)
        done.result()


class _Parts:
    """The parts that closing a cluster ends: threads, nodes, ports, and a temporary directory.

    The cluster and its finalizer share this object.
    """

    def __init__(self, network: LocalNetwork, pending: PendingFutures, temporary: str | None) -> None:
        self.network = network
        self.pending = pending
        self.temporary = temporary
        self.watches = Watches()
        self.nodes: ClusterNodes | None = None
        self.listeners: ClusterListeners | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is something left to close in this process."""
        return not (self._is_closed or self.pending.is_forked)

    def close(self) -> None:
        """Close everything, once. Raises the first error that closing a node's files met."""
        if not self.is_open:
            return
        self._is_closed = True
        _unclosed.discard(self)
        with self.network.draining():
            pass  # run what is due
        self.pending.close()
        errors = [] if self.nodes is None else self.nodes.close()
        if self.listeners is not None:
            self.listeners.close()
        self.network.shutdown()
        self.watches.close(ClusterClosed(f"{self.pending.name} was closed"))
        self.pending.fail_all()
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
        if errors:
            raise errors[0]


# The parts of all open clusters of this process.
_unclosed: set[_Parts] = set()
# Threads that close unreferenced clusters. A new cluster joins them first, as it may use the same directory.
_closing: list[threading.Thread] = []


def _close_unreferenced(parts: _Parts) -> None:
    def begin() -> None:
        # The collector may run in any thread, also in one that holds a lock of this cluster.
        thread = threading.Thread(target=parts.close, name="kreplica-close")
        _closing.append(thread)
        thread.start()

    _close_unclosed(parts, begin)


@atexit.register
def _close_at_exit() -> None:
    for parts in list(_unclosed):
        _close_unclosed(parts, parts.close)


def _close_unclosed(parts: _Parts, close: Callable[[], None]) -> None:
    """Warn of a cluster that its program did not close, and close it, also where the warning is an error."""
    if parts.is_open:
        try:
            warnings.warn(f"{parts.pending.name} was not closed", ResourceWarning, stacklevel=2)
        finally:
            close()


def _ids(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, node_ids))


def _note_failure(failures: list[tuple[str, BaseException]], name: str, error: BaseException) -> None:
    failures.append((name, error))


def _layout(directory: str, brokers: int, controllers: int, cluster_id: str | None) -> Layout:
    found = read_layout(directory)
    if found is None:
        made = str(Uuid.generate(random.SystemRandom()))
        return new_layout(cluster_id or made, brokers, controllers)
    check_cluster_id(found, cluster_id, directory)
    apart = sum("broker" not in roles for roles in found.roles.values())
    if controllers and controllers != apart:
        raise InvalidConfig(f"{directory}: the cluster has {apart} dedicated controllers, not {controllers}")
    return extended(found, brokers)
