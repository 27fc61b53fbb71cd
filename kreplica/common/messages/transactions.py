"""Messages of transactions."""

from __future__ import annotations

from typing import Annotated

from kreplica.common.error_code import ErrorCode
from kreplica.common.message import Duration32, Error, Int8, Int16, Int32, Int64, Message, Moment, Since


class AddPartitionsToTxnTopic(Message):
    name: str
    partitions: tuple[Int32, ...] = ()


class AddPartitionsToTxnTransaction(Message):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...]


class AddPartitionsToTxnRequest(Message, api_key=24, versions=(0, 5), flexible=3):
    transactions: Annotated[tuple[AddPartitionsToTxnTransaction, ...], Since(4)] = ()
    v3_and_below_transactional_id: Annotated[str, Since(0, last=3)] = ""
    v3_and_below_producer_id: Annotated[Int64, Since(0, last=3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Since(0, last=3)] = 0
    v3_and_below_topics: Annotated[tuple[AddPartitionsToTxnTopic, ...], Since(0, last=3)] = ()


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32
    partition_error_code: Error


class AddPartitionsToTxnTopicResult(Message):
    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


class AddPartitionsToTxnResult(Message):
    transactional_id: str
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...]


class AddPartitionsToTxnResponse(Message, api_key=24, versions=(0, 5), flexible=3):
    throttle_time: Duration32
    error_code: Annotated[Error, Since(4)] = ErrorCode.none
    results_by_transaction: Annotated[tuple[AddPartitionsToTxnResult, ...], Since(4)] = ()
    results_by_topic_v3_and_below: Annotated[tuple[AddPartitionsToTxnTopicResult, ...], Since(0, last=3)] = ()


class AddOffsetsToTxnRequest(Message, api_key=25, versions=(0, 4), flexible=3):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


class AddOffsetsToTxnResponse(Message, api_key=25, versions=(0, 4), flexible=3):
    throttle_time: Duration32
    error_code: Error


class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible=3):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


class EndTxnResponse(Message, api_key=26, versions=(0, 5), flexible=3):
    throttle_time: Duration32
    error_code: Error
    producer_id: Annotated[Int64, Since(5)] = -1
    producer_epoch: Annotated[Int16, Since(5)] = -1


class WritableTxnMarkerTopic(Message):
    name: str
    partition_indexes: tuple[Int32, ...] = ()


class WritableTxnMarker(Message):
    producer_id: Int64
    producer_epoch: Int16
    transaction_result: bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Since(2)] = 0


class WriteTxnMarkersRequest(Message, api_key=27, versions=(1, 2), flexible=1):
    markers: tuple[WritableTxnMarker, ...]


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32
    error_code: Error


class WritableTxnMarkerTopicResult(Message):
    name: str
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


class WritableTxnMarkerResult(Message):
    producer_id: Int64
    topics: tuple[WritableTxnMarkerTopicResult, ...]


class WriteTxnMarkersResponse(Message, api_key=27, versions=(1, 2), flexible=1):
    markers: tuple[WritableTxnMarkerResult, ...]


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(2)] = -1
    committed_metadata: str | None


class TxnOffsetCommitRequestTopic(Message):
    name: str
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


class TxnOffsetCommitRequest(Message, api_key=28, versions=(0, 5), flexible=3):
    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[str, Since(3)] = ""
    group_instance_id: Annotated[str | None, Since(3)] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32
    error_code: Error


class TxnOffsetCommitResponseTopic(Message):
    name: str
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


class TxnOffsetCommitResponse(Message, api_key=28, versions=(0, 5), flexible=3):
    throttle_time: Duration32
    topics: tuple[TxnOffsetCommitResponseTopic, ...]


class DescribeTransactionsRequest(Message, api_key=65, versions=(0, 0), flexible=0):
    transactional_ids: tuple[str, ...] = ()


class TopicData(Message):
    topic: str
    partitions: tuple[Int32, ...] = ()


class DescribeTransactionsResponseTransactionState(Message):
    error_code: Error
    transactional_id: str
    transaction_state: str
    transaction_timeout: Duration32
    transaction_start_time: Moment
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[TopicData, ...]


class DescribeTransactionsResponse(Message, api_key=65, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    transaction_states: tuple[DescribeTransactionsResponseTransactionState, ...]


class ListTransactionsRequest(Message, api_key=66, versions=(0, 2), flexible=0):
    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[str | None, Since(2)] = None


class ListTransactionsResponseTransactionState(Message):
    transactional_id: str
    producer_id: Int64
    transaction_state: str


class ListTransactionsResponse(Message, api_key=66, versions=(0, 2), flexible=0):
    throttle_time: Duration32
    error_code: Error
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListTransactionsResponseTransactionState, ...]
