"""FeatureControl: the levels of the cluster's features, and checks that all nodes support a new one.

It has no state of its own. Owned by the controller's loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import FeatureUpdateFailed, InvalidRequest, KreplicaError, UnsupportedVersion
from kreplica.common.messages.administration import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.controller_broker_request_batch import ControllerResult, Records
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import FeatureLevelRecord, SupportedFeature, UserScramCredentialRecord
from kreplica.metadata.serde import in_lowest_version

METADATA_VERSION = "metadata.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

# The levels that this version supports. They are Kafka's: 25 is the level of Kafka 4.0. At level 0 of
# group.version there are no consumer groups, of share.version no share groups, of streams.version no
# streams groups.
SUPPORTED_FEATURES = (
    SupportedFeature(name=METADATA_VERSION, min_supported_version=7, max_supported_version=25),
    SupportedFeature(name=ELIGIBLE_LEADER_REPLICAS, min_supported_version=0, max_supported_version=1),
    SupportedFeature(name=TRANSACTION_VERSION, min_supported_version=0, max_supported_version=2),
    SupportedFeature(name=GROUP_VERSION, min_supported_version=0, max_supported_version=1),
    SupportedFeature(name=SHARE_VERSION, min_supported_version=0, max_supported_version=1),
    SupportedFeature(name=STREAMS_VERSION, min_supported_version=0, max_supported_version=1),
)


def bootstrap_records(credentials: Iterable[UserScramCredentialRecord] = ()) -> Records:
    """Return the first records of a new cluster: the highest feature levels that this version supports, and
    the users that its controllers were formatted with.
    """
    levels = (
        in_lowest_version(FeatureLevelRecord(name=each.name, feature_level=each.max_supported_version))
        for each in SUPPORTED_FEATURES
        if each.max_supported_version > 0
    )
    return (*levels, *map(in_lowest_version, credentials))


def check_supported(levels: dict[str, int], supported: Iterable[SupportedFeature], who: str) -> None:
    """Raise UnsupportedVersion unless a node supports all feature levels of the cluster."""
    ranges = {each.name: each for each in supported}
    for name, level in levels.items():
        known = ranges.get(name)
        if level and (
            known is None or not known.min_supported_version <= level <= known.max_supported_version
        ):
            raise UnsupportedVersion(f"{who} does not support level {level} of {name}")


class FeatureControl:
    """Checks changes against `metadata` and returns the records to write."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def update(self, request: UpdateFeaturesRequest) -> ControllerResult[UpdateFeaturesResponse]:
        """Handle UpdateFeatures (57): change all features atomically (KIP-584)."""
        times = Counter(update.feature for update in request.feature_updates)
        records: Records = ()
        results = []
        first_error: KreplicaError | None = None
        for update in request.feature_updates:
            error: KreplicaError | None = None
            try:
                if times[update.feature] > 1:
                    raise InvalidRequest(f"the request names {update.feature[:80]} twice")
                records += self._level(update)
            except KreplicaError as raised:
                error = raised
                first_error = first_error or raised
            results.append(
                UpdatableFeatureResult(
                    feature=update.feature,
                    error_code=ErrorCode.none if error is None else ErrorCode(error.code),
                    error_message=None if error is None else str(error),
                )
            )
        response = UpdateFeaturesResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none if first_error is None else ErrorCode(first_error.code),
            error_message=None if first_error is None else str(first_error),
            results=tuple(results),
        )
        return ControllerResult(() if first_error or request.validate_only else records, response)

    def _level(self, update: FeatureUpdateKey) -> Records:
        name, level, kind = update.feature, int(update.max_version_level), int(update.upgrade_type)
        current = self._metadata.features.get(name, 0)
        if level == current:
            return ()
        if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE) or level < 0:
            raise InvalidRequest(f"{name[:80]}: invalid update to level {level} with upgrade type {kind}")
        if level < current and (kind == UPGRADE or name == METADATA_VERSION):
            # The log already has records of the higher level, which an older node could not read.
            raise FeatureUpdateFailed(f"{name[:80]} cannot be downgraded from level {current} to {level}")
        for who, supported in self._nodes():
            check_supported({name: level}, supported, who)
        return (in_lowest_version(FeatureLevelRecord(name=name, feature_level=level)),)

    def _nodes(self) -> Iterable[tuple[str, Any]]:
        yield "this controller", SUPPORTED_FEATURES
        for broker_id, broker in self._metadata.brokers.items():
            yield f"broker {broker_id}", broker.features
        for controller_id, controller in self._metadata.controllers.items():
            yield f"controller {controller_id}", controller.features
