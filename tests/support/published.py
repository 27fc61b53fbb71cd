"""Simulated brokers that take their roles from metadata records."""

from __future__ import annotations

from typing import Any

from kreplica.broker.broker import Broker
from kreplica.broker.broker_metadata_publisher import BrokerMetadataPublisher
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.common.future import Future
from kreplica.common.types import Uuid
from kreplica.controller.manual_controller import CONTROLLER_ID
from kreplica.metadata.cluster_metadata import ClusterMetadata, difference
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord
from kreplica.sim.cluster import CLUSTER_ID, LOG_CONFIG, SimCluster
from kreplica.sim.controller import ScriptedController
from kreplica.sim.machines import DIRECTORY, BrokerPorts


class PublishedBroker:
    """A broker with its metadata cache and its publisher."""

    def __init__(self, ports: BrokerPorts, directories: list[str]) -> None:
        self.cache = KRaftMetadataCache()
        self.broker = Broker(
            ports.broker_id,
            directories,
            cluster_id=CLUSTER_ID,
            storage=ports.storage,
            clock=ports.clock,
            scheduler=ports.scheduler,
            workers=ports.workers,
            random=ports.random,
            transport=ports.transport,
            new_loop=ports.loop,
            metadata_cache=self.cache,
            broker_epoch=lambda: ports.broker_epoch,
            controller=lambda: CONTROLLER_ID,
            config=LOG_CONFIG,
        )
        self.publisher = BrokerMetadataPublisher(
            ports.broker_id,
            cache=self.cache,
            replica_manager=self.broker.replica_manager,
            loop=ports.loop("metadata-publisher"),
            disk_loop=ports.loop("new-logs"),
            on_assignment=lambda *assignment: self.assignments.append(assignment),
            metrics=self.broker.metrics,
        )
        self.assignments: list[tuple[Uuid, int, Uuid]] = []  # reported (topic, partition, directory)

    def startup(self) -> None:
        self.broker.startup()

    def shutdown(self) -> None:
        self.publisher.close()
        self.broker.shutdown()

    def handle(self, request: Any) -> Future[Any]:
        return self.broker.handle(request)


class Published:
    """Brokers 1 to `brokers` of one cluster; `apply` commits records and publishes them on all brokers."""

    def __init__(self, *, brokers: int = 2, directories: int = 1) -> None:
        self.metadata = ClusterMetadata()
        self.offset = 0
        self.directories = [DIRECTORY, *[f"{DIRECTORY}-{number}" for number in range(1, directories)]]
        self.cluster = SimCluster(self._make, shuffle=False)
        for broker_id in range(1, brokers + 1):
            self.cluster.add_broker(broker_id)
            self.start(broker_id)

    def _make(self, ports: BrokerPorts, controller: ScriptedController) -> PublishedBroker:
        del controller
        return PublishedBroker(ports, self.directories)

    @property
    def applied(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.offset, 1)

    def apply(self, *records: MetadataRecord) -> None:
        """Commit the records, and let the running brokers act on them."""
        self.commit(*records)
        self.cluster.settle()

    def commit(self, *records: MetadataRecord) -> None:
        """Commit the records, without waiting for brokers to act on them."""
        for record in records:
            self.metadata.replay(record)
        self.offset += len(records)
        delta, metadata = self.metadata.take_delta(), self.metadata.copy()
        for broker in self.cluster.brokers.values():
            if broker.is_alive:
                broker.program.publisher.on_metadata_update(delta, metadata, self.applied)

    def start(self, broker_id: int) -> None:
        """Start a broker, which first gets the metadata of the whole cluster."""
        self.cluster.start(broker_id)
        everything = difference(ClusterMetadata(), self.metadata)
        publisher = self.on(broker_id).publisher
        publisher.on_metadata_update(everything, self.metadata.copy(), self.applied)
        self.cluster.settle()

    def on(self, broker_id: int) -> PublishedBroker:
        program: Any = self.cluster.program(broker_id)
        assert isinstance(program, PublishedBroker)
        return program

    def names(self, broker_id: int, directory: str = DIRECTORY) -> list[str]:
        """Return the partition directories on a broker's disk, including those moved aside."""
        storage = self.cluster.brokers[broker_id].storage
        found = storage.list_directory(directory)
        return [name for name in found if storage.is_directory(f"{directory}/{name}")]
