"""The versions of Kafka's requests: which are advertised, which are read, and which the handlers take.

A handler takes one version of a message. Requests of other versions are converted to it, and answers back
(message_conversion). Some low versions are advertised but not read, for clients that look for them:
librdkafka before 2.11.1 does not compress if Produce 0 is missing (KAFKA-18659). No client sends them, since
those that know them know later ones. Such a request closes the connection, because its answer is not
declared. No state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag
from functools import lru_cache
from typing import Any, NamedTuple

from kreplica.common.errors import UnsupportedVersion
from kreplica.common.message import REQUESTS, RESPONSES, Message, at
from kreplica.common.messages import (
    administration,
    consumer_groups,
    controllers,
    data,
    groups,
    quorum,
    quotas,
    share_groups,
    streams_groups,
    transactions,
    users,
)

# Importing these modules declares the messages.
_DECLARED = (
    administration,
    consumer_groups,
    controllers,
    data,
    groups,
    quorum,
    quotas,
    share_groups,
    streams_groups,
    transactions,
    users,
)

API_VERSIONS = 18
PRODUCE, FETCH, LIST_OFFSETS, METADATA, DELETE_TOPICS = 0, 1, 2, 3, 20
OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, LEAVE_GROUP = 9, 10, 11, 13
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
WRITE_TXN_MARKERS = 27
DESCRIBE_QUORUM = 55
ENVELOPE = 58
SHARE_FETCH = 78
# What leaders of partitions send to share coordinators.
SHARE_STATE = range(83, 88)
LIST_CONFIG_RESOURCES = 74

# Requests that the active controller handles for clients. Other nodes forward them.
FORWARDED = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81})


class Scope(Flag):
    """The kind of a listener's clients, which decides the APIs that it answers (Kafka's ListenerType).

    CLIENTS: producers, consumers and admin tools. BROKERS: other brokers, which fetch as replicas.
    CONTROLLERS: the quorum's voters, and brokers that send requests to the active controller.
    """

    CLIENTS = 1
    BROKERS = 2
    CONTROLLERS = 4
    ALL = CLIENTS | BROKERS | CONTROLLERS


CLIENTS, CONTROLLERS = Scope.CLIENTS, Scope.CONTROLLERS
# Requests that clients send to brokers and may send to controllers directly.
ADMINS = CLIENTS | CONTROLLERS


class ApiVersionRange(NamedTuple):
    """One API: the advertised versions, the first version that is read, the one that its handler takes, and
    the listeners that answer it.
    """

    api_key: int
    min_version: int
    max_version: int
    first_read: int
    handled: int
    scope: Scope

    def reads(self, version: int) -> bool:
        return self.first_read <= version <= self.max_version


def _range(
    api_key: int,
    low: int,
    high: int,
    first_read: int | None = None,
    handled: int | None = None,
    scope: Scope = CLIENTS,
) -> ApiVersionRange:
    first = low if first_read is None else first_read
    return ApiVersionRange(api_key, low, high, first, high if handled is None else handled, scope)


# The APIs of a node: those for clients first, then those between nodes, which have one version each.
API_RANGES: Mapping[int, ApiVersionRange] = {
    each.api_key: each
    for each in (
        # Brokers send dead letters to the leaders of their topics.
        _range(PRODUCE, 0, 12, 3, 11, scope=CLIENTS | Scope.BROKERS),
        _range(FETCH, 0, 17, 4, scope=Scope.ALL),  # 13 and later name topics by id
        _range(LIST_OFFSETS, 0, 8, 1, scope=CLIENTS | Scope.BROKERS),
        _range(METADATA, 0, 12),
        _range(8, 0, 10, 2, 8),  # OffsetCommit
        _range(OFFSET_FETCH, 1, 10, handled=8),
        _range(FIND_COORDINATOR, 0, 6),
        _range(JOIN_GROUP, 0, 9),
        _range(12, 0, 4),  # Heartbeat
        _range(LEAVE_GROUP, 0, 5),
        _range(14, 0, 5),  # SyncGroup
        _range(15, 0, 6, handled=5),  # DescribeGroups
        _range(16, 0, 5),  # ListGroups
        _range(17, 0, 1, scope=Scope.ALL),  # SaslHandshake
        _range(API_VERSIONS, 0, 4, scope=Scope.ALL),
        _range(19, 0, 7, 2, scope=ADMINS),  # CreateTopics
        _range(DELETE_TOPICS, 0, 6, 1, scope=ADMINS),
        _range(21, 0, 2),  # DeleteRecords
        _range(22, 0, 5),  # InitProducerId
        _range(OFFSET_FOR_LEADER_EPOCH, 2, 4, scope=CLIENTS | Scope.BROKERS),
        _range(ADD_PARTITIONS_TO_TXN, 0, 5, scope=CLIENTS | Scope.BROKERS),
        _range(25, 0, 4),  # AddOffsetsToTxn
        _range(26, 0, 5),  # EndTxn
        _range(27, 1, 2, scope=CLIENTS | Scope.BROKERS),  # WriteTxnMarkers
        _range(28, 0, 5),  # TxnOffsetCommit
        _range(29, 0, 3, 1, scope=ADMINS),  # DescribeAcls
        _range(30, 0, 3, 1, scope=ADMINS),  # CreateAcls
        _range(31, 0, 3, 1, scope=ADMINS),  # DeleteAcls
        _range(32, 0, 4, 1, scope=ADMINS),  # DescribeConfigs
        _range(33, 0, 2, scope=ADMINS),  # AlterConfigs
        _range(34, 0, 2, 1),  # AlterReplicaLogDirs
        _range(35, 0, 4, 1),  # DescribeLogDirs
        _range(36, 0, 2, scope=Scope.ALL),  # SaslAuthenticate
        _range(37, 0, 3, scope=ADMINS),  # CreatePartitions
        _range(38, 1, 3, scope=ADMINS),  # CreateDelegationToken
        _range(39, 1, 2, scope=ADMINS),  # RenewDelegationToken
        _range(40, 1, 2, scope=ADMINS),  # ExpireDelegationToken
        _range(41, 1, 3),  # DescribeDelegationToken
        _range(42, 0, 2),  # DeleteGroups
        _range(43, 0, 2, scope=ADMINS),  # ElectLeaders
        _range(44, 0, 1, scope=ADMINS),  # IncrementalAlterConfigs
        _range(45, 0, 1, scope=ADMINS),  # AlterPartitionReassignments
        _range(46, 0, 0, scope=ADMINS),  # ListPartitionReassignments
        _range(47, 0, 0),  # OffsetDelete
        _range(48, 0, 1, scope=ADMINS),  # DescribeClientQuotas
        _range(49, 0, 1, scope=ADMINS),  # AlterClientQuotas
        _range(50, 0, 0, scope=ADMINS),  # DescribeUserScramCredentials
        _range(51, 0, 0, scope=ADMINS),  # AlterUserScramCredentials
        _range(55, 0, 2, scope=ADMINS),  # DescribeQuorum
        _range(57, 1, 1, scope=ADMINS),  # UpdateFeatures
        _range(60, 0, 2, scope=ADMINS),  # DescribeCluster
        _range(61, 0, 0),  # DescribeProducers
        _range(64, 0, 0, scope=ADMINS),  # UnregisterBroker
        _range(65, 0, 0),  # DescribeTransactions
        _range(66, 0, 2),  # ListTransactions
        _range(68, 0, 1),  # ConsumerGroupHeartbeat
        _range(69, 0, 1),  # ConsumerGroupDescribe
        _range(LIST_CONFIG_RESOURCES, 0, 1),
        _range(75, 0, 0),  # DescribeTopicPartitions
        _range(76, 1, 1),  # ShareGroupHeartbeat
        _range(77, 1, 1),  # ShareGroupDescribe
        _range(78, 1, 2),  # ShareFetch
        _range(79, 1, 2),  # ShareAcknowledge
        _range(83, 0, 0, scope=Scope.BROKERS),  # InitializeShareGroupState
        _range(84, 0, 0, scope=Scope.BROKERS),  # ReadShareGroupState
        _range(85, 0, 1, scope=Scope.BROKERS),  # WriteShareGroupState
        _range(86, 0, 0, scope=Scope.BROKERS),  # DeleteShareGroupState
        _range(87, 0, 1, scope=Scope.BROKERS),  # ReadShareGroupStateSummary
        _range(88, 0, 0),  # StreamsGroupHeartbeat
        _range(89, 0, 0),  # StreamsGroupDescribe
        _range(90, 0, 1),  # DescribeShareGroupOffsets
        _range(91, 0, 0),  # AlterShareGroupOffsets
        _range(92, 0, 0),  # DeleteShareGroupOffsets
        _range(80, 0, 1, scope=ADMINS),  # AddRaftVoter
        _range(81, 0, 0, scope=ADMINS),  # RemoveRaftVoter
        _range(52, 2, 2, scope=CONTROLLERS),  # Vote
        _range(53, 1, 1, scope=CONTROLLERS),  # BeginQuorumEpoch
        _range(54, 1, 1, scope=CONTROLLERS),  # EndQuorumEpoch
        _range(56, 3, 3, scope=CONTROLLERS),  # AlterPartition
        _range(ENVELOPE, 0, 0, scope=CONTROLLERS),
        _range(59, 1, 1, scope=CONTROLLERS),  # FetchSnapshot
        _range(62, 4, 4, scope=CONTROLLERS),  # BrokerRegistration
        _range(63, 1, 1, scope=CONTROLLERS),  # BrokerHeartbeat
        _range(67, 0, 0, scope=CONTROLLERS),  # AllocateProducerIds
        _range(70, 0, 0, scope=CONTROLLERS),  # ControllerRegistration
        _range(73, 0, 0, scope=CONTROLLERS),  # AssignReplicasToDirs
        _range(82, 0, 0, scope=CONTROLLERS),  # UpdateRaftVoter
    )
}


@lru_cache(None)
def request_type(api_key: int, version: int) -> type[Any]:
    """Return the class of the request. Raises UnsupportedVersion if it is not declared."""
    return _declared(REQUESTS, api_key, version)


@lru_cache(None)
def response_type(api_key: int, version: int) -> type[Any]:
    """Return the class of the response. Raises UnsupportedVersion if it is not declared."""
    return _declared(RESPONSES, api_key, version)


def _declared(kinds: Mapping[int, type[Message]], api_key: int, version: int) -> type[Message]:
    if api_key not in kinds:
        raise UnsupportedVersion(f"API key {api_key} is not declared")
    return at(kinds[api_key], version)
