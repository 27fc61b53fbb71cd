"""ProducerIdControl: hands out producer ids to brokers, a block at a time (KIP-730). No state of its own."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from datetime import timedelta

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.errors import ErrorCode

from kreplica.common.errors import UnknownServerError
from kreplica.common.types import INT64_MAX
from kreplica.controller.cluster_control import check_broker_epoch
from kreplica.controller.controller_result import ControllerResult
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import ProducerIdsRecord
from kreplica.metadata.serde import in_lowest_version

PRODUCER_ID_BLOCK_SIZE = 1_000


class ProducerIdControl:
    """Looks at `metadata`, and says what is to be written. It belongs to the controller's loop."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def allocate(self, request: AllocateProducerIdsRequest) -> ControllerResult[AllocateProducerIdsResponse]:
        """AllocateProducerIds (67): the next block is the broker's, whether it is ever used or not.

        Raises StaleBrokerEpoch for a broker that is registered otherwise; UnknownServerError when there are
        no ids left.
        """
        check_broker_epoch(self._metadata, request.broker_id, request.broker_epoch)
        first = self._metadata.next_producer_id
        if first > INT64_MAX - PRODUCER_ID_BLOCK_SIZE:
            raise UnknownServerError(f"there are no producer ids from {first} on")
        record = ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
        )
        response = AllocateProducerIdsResponse(
            throttle_time=timedelta(0),
            error_code=ErrorCode.none,
            producer_id_start=first,
            producer_id_len=PRODUCER_ID_BLOCK_SIZE,
        )
        return ControllerResult((in_lowest_version(record),), response)
