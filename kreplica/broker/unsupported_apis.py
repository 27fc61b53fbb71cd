"""Answers requests for features that a broker lacks: transactions, ACLs, SASL, groups of KIP-848.

The answers contain an error of Kafka's after which clients stop asking. No state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    IllegalSaslState,
    KreplicaError,
    SecurityDisabled,
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFound,
    UnsupportedVersion,
)
from kreplica.common.future import Future, resolved
from kreplica.common.message import moment_of
from kreplica.common.messages.administration import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kreplica.common.messages.data import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kreplica.common.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kreplica.common.messages.groups import ConsumerGroupDescribeResponseDescribedGroup as DescribedGroup
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kreplica.common.messages.transactions import (
    DescribeTransactionsResponseTransactionState as TransactionState,
)
from kreplica.common.wire import NO_THROTTLE

NEVER = moment_of(0)


def _code(kind: type[KreplicaError]) -> ErrorCode:
    return ErrorCode(kind.code)


def _text(kind: type[KreplicaError]) -> str:
    return str(kind())


_NO_TRANSACTIONS = _code(TransactionalIdAuthorizationFailed)
_NO_RULES: dict[str, Any] = {"error_code": _code(SecurityDisabled), "error_message": _text(SecurityDisabled)}
_NO_SUCH_GROUPS: dict[str, Any] = {
    "error_code": _code(UnsupportedVersion),
    "error_message": "only the classic group protocol is supported",
}

# ---- transactions ------------------------------------------------------------------------------------------


def _add_partitions_to_txn(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE,
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=_NO_TRANSACTIONS
                    )
                    for number in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        ),
    )


def _txn_offset_commit(request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=_NO_TRANSACTIONS
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _describe_transactions(request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(
            TransactionState(
                error_code=_code(TransactionalIdNotFound),
                transactional_id=each,
                transaction_state="",
                transaction_timeout=NO_THROTTLE,
                transaction_start_time=NEVER,
                producer_id=-1,
                producer_epoch=-1,
                topics=(),
            )
            for each in request.transactional_ids
        ),
    )


# ---- security ----------------------------------------------------------------------------------------------


def _create_acls(request: CreateAclsRequest) -> CreateAclsResponse:
    refused = AclCreationResult(**_NO_RULES)
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=(refused,) * len(request.creations))


def _delete_acls(request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(matching_acls=(), **_NO_RULES)
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=(refused,) * len(request.filters))


# ---- groups of KIP-848 -------------------------------------------------------------------------------------


def _consumer_group_describe(request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(
            DescribedGroup(
                group_id=group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=(),
                **_NO_SUCH_GROUPS,
            )
            for group_id in request.group_ids
        ),
    )


# The answers that are the same for every request.
_FIXED: Mapping[type[Any], Any] = {
    AddOffsetsToTxnRequest: AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=_NO_TRANSACTIONS),
    EndTxnRequest: EndTxnResponse(throttle_time=NO_THROTTLE, error_code=_NO_TRANSACTIONS),
    # An empty list is not an error.
    ListTransactionsRequest: ListTransactionsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, transaction_states=()
    ),
    SaslHandshakeRequest: SaslHandshakeResponse(error_code=_code(IllegalSaslState), mechanisms=()),
    SaslAuthenticateRequest: SaslAuthenticateResponse(
        error_code=_code(IllegalSaslState), error_message=_text(IllegalSaslState), auth_bytes=b""
    ),
    DescribeAclsRequest: DescribeAclsResponse(throttle_time=NO_THROTTLE, resources=(), **_NO_RULES),
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE, member_epoch=0, heartbeat_interval=NO_THROTTLE, **_NO_SUCH_GROUPS
    ),
}
# The answers that list what the request lists.
_MADE: Mapping[type[Any], Callable[[Any], Any]] = {
    AddPartitionsToTxnRequest: _add_partitions_to_txn,
    TxnOffsetCommitRequest: _txn_offset_commit,
    DescribeTransactionsRequest: _describe_transactions,
    CreateAclsRequest: _create_acls,
    DeleteAclsRequest: _delete_acls,
    ConsumerGroupDescribeRequest: _consumer_group_describe,
}


def _handler(answer: Callable[[Any], Any]) -> Callable[[Any], Future[Any]]:
    return lambda request: resolved(answer(request))


def _handler_of_fixed(answer: Any) -> Callable[[Any], Future[Any]]:
    return lambda _: resolved(answer)


HANDLERS: Mapping[type[Any], Callable[[Any], Future[Any]]] = {
    **{kind: _handler_of_fixed(answer) for kind, answer in _FIXED.items()},
    **{kind: _handler(answer) for kind, answer in _MADE.items()},
}
