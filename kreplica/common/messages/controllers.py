"""Messages between brokers and the active controller."""

from __future__ import annotations

from typing import Annotated

from kreplica.common.message import Duration32, Error, Id, Int8, Int16, Int32, Int64, Message, Tag, Uint16


class BrokerState(Message):
    broker_id: Int32
    broker_epoch: Int64 = -1


class AlterPartitionRequestPartitionData(Message):
    partition_index: Int32
    leader_epoch: Int32
    new_isr_with_epochs: tuple[BrokerState, ...]
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32


class AlterPartitionRequestTopicData(Message):
    topic_id: Id
    partitions: tuple[AlterPartitionRequestPartitionData, ...]


class AlterPartitionRequest(Message, api_key=56, versions=(3, 3), flexible=3):
    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: tuple[AlterPartitionRequestTopicData, ...]


class AlterPartitionResponsePartitionData(Message):
    partition_index: Int32
    error_code: Error
    leader_id: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32


class AlterPartitionResponseTopicData(Message):
    topic_id: Id
    partitions: tuple[AlterPartitionResponsePartitionData, ...]


class AlterPartitionResponse(Message, api_key=56, versions=(3, 3), flexible=3):
    throttle_time: Duration32
    error_code: Error
    topics: tuple[AlterPartitionResponseTopicData, ...]


class EnvelopeRequest(Message, api_key=58, versions=(0, 0), flexible=0):
    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes


class EnvelopeResponse(Message, api_key=58, versions=(0, 0), flexible=0):
    response_data: bytes | None = None
    error_code: Error


class Listener(Message):
    name: str
    host: str
    port: Uint16
    security_protocol: Int16


class Feature(Message):
    name: str
    min_supported_version: Int16
    max_supported_version: Int16


class BrokerRegistrationRequest(Message, api_key=62, versions=(4, 4), flexible=4):
    broker_id: Int32
    cluster_id: str
    incarnation_id: Id
    listeners: tuple[Listener, ...]
    features: tuple[Feature, ...]
    rack: str | None
    is_migrating_zk_broker: bool = False
    log_dirs: tuple[Id, ...] = ()
    previous_broker_epoch: Int64 = -1


class BrokerRegistrationResponse(Message, api_key=62, versions=(4, 4), flexible=4):
    throttle_time: Duration32
    error_code: Error
    broker_epoch: Int64 = -1


class BrokerHeartbeatRequest(Message, api_key=63, versions=(1, 1), flexible=1):
    broker_id: Int32
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Annotated[tuple[Id, ...], Tag(0)] = ()


class BrokerHeartbeatResponse(Message, api_key=63, versions=(1, 1), flexible=1):
    throttle_time: Duration32
    error_code: Error
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool


class AllocateProducerIdsRequest(Message, api_key=67, versions=(0, 0), flexible=0):
    broker_id: Int32
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(Message, api_key=67, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    producer_id_start: Int64
    producer_id_len: Int32


class ControllerRegistrationRequest(Message, api_key=70, versions=(0, 0), flexible=0):
    controller_id: Int32
    incarnation_id: Id
    zk_migration_ready: bool
    listeners: tuple[Listener, ...]
    features: tuple[Feature, ...]


class ControllerRegistrationResponse(Message, api_key=70, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None


class AssignReplicasToDirsRequestPartitionData(Message):
    partition_index: Int32


class AssignReplicasToDirsRequestTopicData(Message):
    topic_id: Id
    partitions: tuple[AssignReplicasToDirsRequestPartitionData, ...]


class AssignReplicasToDirsRequestDirectoryData(Message):
    id_: Id
    topics: tuple[AssignReplicasToDirsRequestTopicData, ...]


class AssignReplicasToDirsRequest(Message, api_key=73, versions=(0, 0), flexible=0):
    broker_id: Int32
    broker_epoch: Int64 = -1
    directories: tuple[AssignReplicasToDirsRequestDirectoryData, ...]


class AssignReplicasToDirsResponsePartitionData(Message):
    partition_index: Int32
    error_code: Error


class AssignReplicasToDirsResponseTopicData(Message):
    topic_id: Id
    partitions: tuple[AssignReplicasToDirsResponsePartitionData, ...]


class AssignReplicasToDirsResponseDirectoryData(Message):
    id_: Id
    topics: tuple[AssignReplicasToDirsResponseTopicData, ...]


class AssignReplicasToDirsResponse(Message, api_key=73, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    directories: tuple[AssignReplicasToDirsResponseDirectoryData, ...]
