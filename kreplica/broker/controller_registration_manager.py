"""ControllerRegistrationManager: registers this controller and its listeners at the active controller
(KIP-919).

A controller registers after each start: when the metadata has no registration of this node or an older one,
and the metadata version supports it. A node that has lost the role of a controller registers without
listeners, since there is no request to unregister. Thread rule: the methods of a publisher belong to the
quorum's loop; the rest runs in the manager's own loop, which owns the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kreplica.common.controller_requests import ControllerRequests, OneAtATime
from kreplica.common.future import Future
from kreplica.common.messages.controllers import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import Uuid
from kreplica.common.wire import error_of, uuid_of
from kreplica.controller.feature_control import METADATA_VERSION, SUPPORTED_FEATURES
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import Endpoint

LOGGER = logging.getLogger(__name__)

# 3.7-IV0, the first metadata version with a record for it.
FIRST_VERSION = 15
REQUEST_TIMEOUT_MS = 2_000
RETRY_MS = 200


class ControllerRegistrationManager:
    """Implements `kreplica.metadata.metadata_loader.MetadataPublisher` for the controller `node_id`.

    `incarnation_id`: of this start. `endpoints`: None if the node is not a controller. `controller()`: the
    active controller's node id, None if unknown.
    """

    def __init__(
        self,
        node_id: int,
        *,
        incarnation_id: Uuid,
        endpoints: Sequence[Endpoint] | None,
        controller: Callable[[], int | None],
        transport: Transport,
        loop: Loop,
    ) -> None:
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._endpoints = endpoints
        self._loop = loop
        requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_MS,
        )
        self._registrations = OneAtATime(requests, self._request, self._take)
        # Owned by the quorum's loop: whether a registration was missing in the last metadata.
        self._was_missing = False
        # Owned by this manager's loop:
        self._is_missing = False

    def on_metadata_update(
        self, delta: MetadataDelta, metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Register soon if the metadata does not have this start of the controller."""
        del delta, applied
        known = metadata.controllers.get(self._node_id)
        if self._endpoints is None:
            is_other = known is not None and bool(known.end_points)
        else:
            is_other = known is None or known.incarnation_id != self._incarnation_id
        is_missing = is_other and metadata.features.get(METADATA_VERSION, 0) >= FIRST_VERSION
        if is_missing != self._was_missing:
            self._was_missing = is_missing
            self._loop.post(partial(self._look, is_missing))

    def on_leader_change(self, leader: Any) -> None:
        """Do nothing: the next try goes to the current leader."""

    def _look(self, is_missing: bool) -> None:
        self._is_missing = is_missing
        if is_missing:
            self._registrations.begin()

    def _request(self) -> ControllerRegistrationRequest | None:
        if not self._is_missing:
            return None
        return ControllerRegistrationRequest(
            controller_id=self._node_id,
            incarnation_id=uuid_of(self._incarnation_id),
            zk_migration_ready=False,
            listeners=tuple(
                Listener(
                    name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
                )
                for each in self._endpoints or ()
            ),
            features=tuple(
                Feature(
                    name=each.name,
                    min_supported_version=each.min_supported_version,
                    max_supported_version=each.max_supported_version,
                )
                for each in SUPPORTED_FEATURES
            ),
        )

    def _take(self, reply: Future[ControllerRegistrationResponse]) -> bool:
        error = reply.exception()
        if error is None:
            error = error_of(reply.result().error_code, reply.result().error_message)
        if error is not None:
            LOGGER.info("controller %d: could not register, retrying: %s", self._node_id, error)
            return True
        # The registration is committed. The metadata will have it in a moment.
        self._is_missing = False
        return False
