"""Three simulated brokers, a producer and a fetcher that get metadata from a scripted controller."""

from __future__ import annotations

from datetime import timedelta

from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.fetcher import Fetcher
from kreplica.client.producer import Producer
from kreplica.common.encoded_request import message_of
from kreplica.common.future import resolved
from kreplica.common.messages.data import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kreplica.common.types import TopicPartition
from kreplica.common.wire import uuid_of
from kreplica.sim.scheduler import Incarnation, VirtualClock
from tests.support.replicas import TOPIC, Replicas

AT = TopicPartition(TOPIC, 0)
CLIENT_NODE = 3000
ZERO = timedelta(0)
CONFIG = ClientConfig(request_timeout_ms=200, delivery_timeout_ms=5_000)


class Stage(Replicas):
    """The brokers, and a producer that gets metadata from the scripted controller."""

    def __init__(self, client=CONFIG, **options):
        super().__init__(**options)
        network, scheduler = self.cluster.network, self.cluster.scheduler
        life = Incarnation(CLIENT_NODE)
        self.endpoint = network.join(life)
        self.loop = loop = scheduler.loop(life, "producer")
        self.clock = clock = VirtualClock(self.cluster.time)
        self.producer_ids = 0
        self.requests = []
        self.metadata = ClientMetadata(lambda: self.ids, transport=self, loop=loop, config=client)
        self.producer = Producer(
            self.metadata,
            lambda: self.ids,
            transport=self,
            loop=loop,
            clock=clock,
            config=client,
        )
        self.fetcher = Fetcher(self.metadata, transport=self, loop=loop, clock=clock, config=client)

    def send(self, node_id, request, *, timeout_ms):
        if isinstance(request, InitProducerIdRequest):
            self.producer_ids += 1
            return resolved(
                InitProducerIdResponse(
                    throttle_time=ZERO,
                    error_code=0,
                    producer_id=self.producer_ids,
                    producer_epoch=0,
                )
            )
        if isinstance(request, MetadataRequest):
            return resolved(self.metadata_response(request))
        self.requests.append((node_id, message_of(request)))
        return self.endpoint.send(node_id, request, timeout_ms=timeout_ms)

    def metadata_response(self, request):
        topics = []
        for asked in request.topics:
            known = self.controller.topics.get(asked.name)
            partitions = tuple(
                MetadataResponsePartition(
                    error_code=0,
                    partition_index=at.partition,
                    leader_id=state.leader,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=state.replicas,
                    isr_nodes=state.isr,
                )
                for at, state in self.controller.partitions.items()
                if at.topic == asked.name
            )
            topics.append(
                MetadataResponseTopic(
                    error_code=0 if known else 3,
                    name=asked.name,
                    topic_id=uuid_of(known.topic_id) if known else None,
                    partitions=partitions,
                )
            )
        return MetadataResponse(throttle_time=ZERO, brokers=(), topics=tuple(topics))

    def produce(self, *values, **options):
        return self.producer.send(AT, list(values), **options)

    def produce_apart(self, *values, **options):
        """Produce a batch which no later append joins, if it can be sent now."""
        future = self.produce(*values, **options)
        self.pass_time(0)
        return future

    def until_done(self, *futures, limit_ms=10_000):
        assert self.cluster.scheduler.run_until(lambda: all(future.done() for future in futures), limit_ms)
        return [future.exception() or future.result().base_offset for future in futures]
