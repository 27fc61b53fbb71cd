"""ProducerIdControl: allocates blocks of producer ids to brokers (KIP-730). It has no state of its own."""

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
    """Checks requests against `metadata` and returns the records to write. Owned by the controller's loop."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def allocate(self, request: AllocateProducerIdsRequest) -> ControllerResult[AllocateProducerIdsResponse]:
        """Handle AllocateProducerIds (67): give the next block to the broker, whether it will be used or not.

        Raises StaleBrokerEpoch if the broker's epoch is not current, UnknownServerError if all ids are used
        up.
        """
        check_broker_epoch(self._metadata, request.broker_id, request.broker_epoch)
        first = self._metadata.next_producer_id
        if first > INT64_MAX - PRODUCER_ID_BLOCK_SIZE:
            raise UnknownServerError(f"all producer ids are used up: the next one would be {first}")
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
