"""The table of rights: what each request needs, by its type. A request without a row is denied.

The second half are the requests that the active controller handles, and those between nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplica.broker import data_rights, group_rights, token_rights
from kreplica.broker.api_versions import API_RANGES, request_type
from kreplica.broker.rights import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    Row,
    all_of,
    cluster,
    each,
    free,
    of_cluster,
    of_group,
    of_groups,
    shown,
    topics,
    transactional_id,
    with_operations,
)
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kreplica.security.acl import ResourceType

_SHARE_STATE = each("topics", cluster(CLUSTER_ACTION), ClusterAuthorizationFailed, "results")

_BY_KEY: Mapping[int, Row] = {
    0: data_rights.produce,
    1: data_rights.fetch,
    2: topics(DESCRIBE),  # ListOffsets
    3: data_rights.metadata,
    8: group_rights.offset_commit,
    9: group_rights.offsets_of_groups,  # OffsetFetch
    10: group_rights.find_coordinator,
    11: of_group(READ),  # JoinGroup
    12: of_group(READ),  # Heartbeat
    13: of_group(READ),  # LeaveGroup
    14: of_group(READ),  # SyncGroup
    15: all_of(  # DescribeGroups
        of_groups(DESCRIBE, "groups", "groups"),
        shown("groups", with_operations(ResourceType.GROUP, "group_id")),
    ),
    16: group_rights.list_groups,
    17: free,  # SaslHandshake
    18: free,  # ApiVersions
    21: topics(DELETE),  # DeleteRecords
    22: group_rights.init_producer_id,
    23: data_rights.offset_for_leader_epoch,
    24: group_rights.add_partitions_to_txn,
    25: group_rights.of_transaction(of_group(READ)),  # AddOffsetsToTxn
    26: group_rights.of_transaction(),  # EndTxn
    27: group_rights.write_txn_markers,
    28: group_rights.txn_offset_commit,
    29: of_cluster(DESCRIBE),  # DescribeAcls
    32: data_rights.configs(DESCRIBE_CONFIGS, "results"),  # DescribeConfigs
    34: data_rights.alter_replica_log_dirs,
    35: of_cluster(DESCRIBE),  # DescribeLogDirs
    36: free,  # SaslAuthenticate
    41: shown("tokens", token_rights.shown_token),  # DescribeDelegationToken
    42: of_groups(DELETE, "groups_names", "results"),  # DeleteGroups
    47: all_of(of_group(DELETE), topics(READ)),  # OffsetDelete
    48: of_cluster(DESCRIBE_CONFIGS),  # DescribeClientQuotas
    50: of_cluster(DESCRIBE),  # DescribeUserScramCredentials
    60: data_rights.describe_cluster,
    61: topics(READ),  # DescribeProducers
    65: all_of(  # DescribeTransactions
        each(
            "transactional_ids",
            transactional_id(DESCRIBE),
            TransactionalIdAuthorizationFailed,
            "transaction_states",
        ),
        shown("transaction_states", group_rights.described_transaction),
    ),
    66: shown("transaction_states", group_rights.listed_transaction),  # ListTransactions
    68: group_rights.group_heartbeat,  # ConsumerGroupHeartbeat
    69: group_rights.describe_groups,  # ConsumerGroupDescribe
    74: of_cluster(DESCRIBE_CONFIGS),  # ListConfigResources
    75: data_rights.describe_topic_partitions,
    76: group_rights.group_heartbeat,  # ShareGroupHeartbeat
    77: group_rights.describe_groups,  # ShareGroupDescribe
    78: group_rights.share_fetch,
    79: group_rights.share_fetch,  # ShareAcknowledge
    83: _SHARE_STATE,  # InitializeShareGroupState
    84: _SHARE_STATE,  # ReadShareGroupState
    85: _SHARE_STATE,  # WriteShareGroupState
    86: _SHARE_STATE,  # DeleteShareGroupState
    87: _SHARE_STATE,  # ReadShareGroupStateSummary
    88: group_rights.streams_heartbeat,
    89: group_rights.describe_groups,  # StreamsGroupDescribe
    90: group_rights.offsets_of_groups,  # DescribeShareGroupOffsets
    91: all_of(of_group(READ), topics(READ, "topics", "responses")),  # AlterShareGroupOffsets
    92: all_of(of_group(DELETE), topics(READ, "topics", "responses")),  # DeleteShareGroupOffsets
    # ---- handled by the active controller ----
    19: data_rights.create_topics,
    20: data_rights.delete_topics,
    30: of_cluster(ALTER),  # CreateAcls
    31: of_cluster(ALTER),  # DeleteAcls
    33: data_rights.configs(ALTER_CONFIGS, "responses"),  # AlterConfigs
    37: topics(ALTER, "topics", "results"),  # CreatePartitions
    38: token_rights.create_token,
    39: free,  # RenewDelegationToken
    40: free,  # ExpireDelegationToken
    43: of_cluster(ALTER),  # ElectLeaders
    44: data_rights.configs(ALTER_CONFIGS, "responses"),  # IncrementalAlterConfigs
    45: of_cluster(ALTER),  # AlterPartitionReassignments
    46: of_cluster(DESCRIBE),  # ListPartitionReassignments
    49: of_cluster(ALTER_CONFIGS),  # AlterClientQuotas
    51: of_cluster(ALTER),  # AlterUserScramCredentials
    55: of_cluster(DESCRIBE),  # DescribeQuorum
    57: of_cluster(ALTER),  # UpdateFeatures
    64: of_cluster(ALTER),  # UnregisterBroker
    80: of_cluster(ALTER),  # AddRaftVoter
    81: of_cluster(ALTER),  # RemoveRaftVoter
    # ---- between nodes ----
    52: of_cluster(CLUSTER_ACTION),  # Vote
    53: of_cluster(CLUSTER_ACTION),  # BeginQuorumEpoch
    54: of_cluster(CLUSTER_ACTION),  # EndQuorumEpoch
    56: of_cluster(CLUSTER_ACTION),  # AlterPartition
    58: of_cluster(CLUSTER_ACTION),  # Envelope
    59: of_cluster(CLUSTER_ACTION),  # FetchSnapshot
    62: of_cluster(CLUSTER_ACTION),  # BrokerRegistration
    63: of_cluster(CLUSTER_ACTION),  # BrokerHeartbeat
    67: of_cluster(CLUSTER_ACTION),  # AllocateProducerIds
    70: of_cluster(CLUSTER_ACTION),  # ControllerRegistration
    73: of_cluster(CLUSTER_ACTION),  # AssignReplicasToDirs
    82: of_cluster(CLUSTER_ACTION),  # UpdateRaftVoter
}

ROWS: Mapping[type[Any], Row] = {
    request_type(api_key, API_RANGES[api_key].handled): row for api_key, row in _BY_KEY.items()
}
