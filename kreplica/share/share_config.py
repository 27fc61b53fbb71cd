"""The settings of share groups that the leaders of partitions follow. No state; any thread may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kreplica.common.iso_duration import duration_ms
from kreplica.common.isolation import isolation_level
from kreplica.share.dead_letters import LetterConfig
from kreplica.share.share_partition import ShareSettings

EARLIEST, LATEST = "earliest", "latest"


class ShareGroupConfig(NamedTuple):
    """The settings of one share group. `reset`: EARLIEST, LATEST, or how many ms before now to begin.

    `isolation`: as the log's reads name it. `letters`: of dead letters.
    """

    settings: ShareSettings
    reset: str | int
    isolation: str
    letters: LetterConfig = LetterConfig()


def config_of(value: Callable[[str, str], Any], group_id: str) -> ShareGroupConfig:
    """Return the settings of a group. `value(group_id, name)`: looks up one."""
    letters = LetterConfig(
        value(group_id, "errors.deadletterqueue.topic.name"),
        value(group_id, "errors.deadletterqueue.copy.record.enable"),
    )
    return ShareGroupConfig(
        ShareSettings(
            value(group_id, "share.record.lock.duration.ms"),
            value(group_id, "share.delivery.count.limit"),
            value(group_id, "share.partition.max.record.locks"),
            value(group_id, "share.renew.acknowledge.enable"),
            has_dead_letters=bool(letters.topic),
        ),
        reset_of(value(group_id, "share.auto.offset.reset")),
        isolation_level(value(group_id, "share.isolation.level")),
        letters,
    )


def reset_of(text: str) -> str | int:
    """Read a checked value of share.auto.offset.reset."""
    if text in (EARLIEST, LATEST):
        return text
    return duration_ms(text.partition(":")[2])
