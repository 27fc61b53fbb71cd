"""Client: a program's access to a cluster: metadata, producer, fetcher and admin over one transport and loop.

Ownership: it owns none of its constructor's arguments. Thread rule: see each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kreplica.client.admin import Admin
from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.coordinator_session import GROUP, TRANSACTION, CoordinatorSession
from kreplica.client.fetcher import Fetcher
from kreplica.client.group_consumer import GroupConsumer
from kreplica.client.group_member import Subscription
from kreplica.client.producer import Producer, run_nothing
from kreplica.client.share_consumer import ShareConsumer
from kreplica.client.transaction_manager import TransactionManager
from kreplica.client.transactional_producer import TransactionalProducer
from kreplica.common.ports import Clock, Loop, Random, Transport
from kreplica.common.types import Uuid


class Client:
    """Metadata, producer, fetcher and admin of one cluster.

    `brokers()`: the nodes to ask for metadata. `controllers()`: the nodes that may be the active controller,
    the likeliest first. `work()`: see Producer.
    """

    def __init__(
        self,
        brokers: Callable[[], Sequence[int]],
        controllers: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        random: Random,
        config: ClientConfig,
        work: Callable[[], object] = run_nothing,
    ) -> None:
        self.config = config
        self._brokers = brokers
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._random = random
        self._work = work
        self.metadata = ClientMetadata(brokers, transport=transport, loop=loop, config=config)
        self.fetcher = Fetcher(self.metadata, transport=transport, loop=loop, clock=clock, config=config)
        self.producer = Producer(
            self.metadata, brokers, transport=transport, loop=loop, clock=clock, config=config, work=work
        )
        self.admin = Admin(controllers, transport=transport, loop=loop, clock=clock, config=config)

    def transactional_producer(
        self, transactional_id: str, version: Callable[[], int]
    ) -> TransactionalProducer:
        """Return a producer for transactions of this id; `version()`: the level of transaction.version."""
        session = self.session(transactional_id, TRANSACTION)
        api_timeout_ms = self.config.default_api_timeout_ms
        return TransactionalProducer(
            TransactionManager(transactional_id, session, version=version, api_timeout_ms=api_timeout_ms),
            self.metadata,
            self._brokers,
            transport=self._transport,
            loop=self._loop,
            clock=self._clock,
            config=self.config,
            work=self._work,
        )

    def session(self, name: str, key_type: int = GROUP) -> CoordinatorSession:
        """Return a session to the coordinator of a group, or with TRANSACTION of a transactional id."""
        return CoordinatorSession(
            name,
            self._brokers,
            key_type=key_type,
            transport=self._transport,
            loop=self._loop,
            clock=self._clock,
            config=self.config,
        )

    def consumer(
        self, group_id: str, topics: Sequence[str], config: ConsumerConfig, *, pattern: str | None = None
    ) -> GroupConsumer:
        """Return a new member of the group; it joins with its first poll."""
        return GroupConsumer(
            group_id,
            Subscription(tuple(sorted(set(topics))), pattern),
            self.metadata,
            self.fetcher,
            self._brokers,
            transport=self._transport,
            loop=self._loop,
            clock=self._clock,
            new_member_id=self._new_member_id,
            config=config,
            client_config=self.config,
        )

    def share_consumer(
        self, group_id: str, topics: Sequence[str], max_records: int | None, config: ConsumerConfig
    ) -> ShareConsumer:
        """Return a new member of the share group; it joins with its first poll."""
        return ShareConsumer(
            group_id,
            self._new_member_id(),
            topics,
            self.metadata,
            self._brokers,
            transport=self._transport,
            loop=self._loop,
            clock=self._clock,
            max_records=max_records,
            config=config,
            client_config=self.config,
        )

    def _new_member_id(self) -> str:
        return str(Uuid.generate(self._random))
