"""Requests that change settings of topics, brokers and groups. No state; any thread."""

from __future__ import annotations

from collections.abc import Mapping

from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

# Operations of IncrementalAlterConfigs.
SET, RESET = 0, 1


def config_changes(
    kind: int, changes: Mapping[str, Mapping[str, str | None]]
) -> IncrementalAlterConfigsRequest:
    """Return the request that changes settings of these resources of a kind.

    None resets a setting to its default.
    """
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    IncrementalAlterConfigsRequestAlterableConfig(
                        name=setting, config_operation=RESET if value is None else SET, value=value
                    )
                    for setting, value in changes[name].items()
                ),
            )
            for name in sorted(changes)
        ),
        validate_only=False,
    )
