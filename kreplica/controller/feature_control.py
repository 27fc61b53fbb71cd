"""FeatureControl: at which level the cluster's features are, and whether all nodes support another one.

No state of its own; it belongs to the controller's loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.schema.update_features.v1.response import UpdatableFeatureResult, UpdateFeaturesResponse

from kreplica.common.errors import FeatureUpdateFailed, InvalidRequest, KreplicaError, UnsupportedVersion
from kreplica.controller.controller_result import ControllerResult, Records
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import FeatureLevelRecord, SupportedFeature
from kreplica.metadata.serde import in_lowest_version

METADATA_VERSION = "metadata.version"
ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

# What a node of this version supports: Kafka's levels, 25 is that of Kafka 4.0.
SUPPORTED_FEATURES = (
    SupportedFeature(name=METADATA_VERSION, min_supported_version=7, max_supported_version=25),
    SupportedFeature(name=ELIGIBLE_LEADER_REPLICAS, min_supported_version=0, max_supported_version=1),
)


def bootstrap_records() -> Records:
    """What the first controller of a new cluster writes: the levels that all its nodes support."""
    return tuple(
        in_lowest_version(FeatureLevelRecord(name=each.name, feature_level=each.max_supported_version))
        for each in SUPPORTED_FEATURES
    )


def check_supported(levels: dict[str, int], supported: Iterable[SupportedFeature], who: str) -> None:
    """Raises UnsupportedVersion unless a node supports the levels that the cluster is at."""
    ranges = {each.name: each for each in supported}
    for name, level in levels.items():
        known = ranges.get(name)
        if level and (
            known is None or not known.min_supported_version <= level <= known.max_supported_version
        ):
            raise UnsupportedVersion(f"{who} does not support level {level} of {name}")


class FeatureControl:
    """Looks at `metadata`, and says what is to be written."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def update(self, request: UpdateFeaturesRequest) -> ControllerResult[UpdateFeaturesResponse]:
        """UpdateFeatures (57): all features get their level, or none (KIP-584)."""
        times = Counter(update.feature for update in request.feature_updates)
        records: Records = ()
        results = []
        first_error: KreplicaError | None = None
        for update in request.feature_updates:
            error: KreplicaError | None = None
            try:
                if times[update.feature] > 1:
                    raise InvalidRequest(f"{update.feature[:80]} is there twice")
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
            throttle_time=timedelta(0),
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
            raise InvalidRequest(f"{name[:80]}: level {level} by a change of type {kind}")
        if level < current and (kind == UPGRADE or name == METADATA_VERSION):
            # Records of a higher level lie in the log already, which an older node could not read.
            raise FeatureUpdateFailed(f"{name[:80]} cannot go back from level {current} to {level}")
        for who, supported in self._nodes():
            check_supported({name: level}, supported, who)
        return (in_lowest_version(FeatureLevelRecord(name=name, feature_level=level)),)

    def _nodes(self) -> Iterable[tuple[str, Any]]:
        yield "this controller", SUPPORTED_FEATURES
        for broker_id, broker in self._metadata.brokers.items():
            yield f"broker {broker_id}", broker.features
        for controller_id, controller in self._metadata.controllers.items():
            yield f"controller {controller_id}", controller.features
