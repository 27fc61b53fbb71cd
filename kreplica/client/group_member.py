"""GroupMember: one side of a group's protocol, classic or consumer; and RebalanceListener, its reader.

A member joins, sends heartbeats and learns which partitions it owns. The listener reads these partitions and
commits their offsets. Thread rule: everything runs in the client's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kreplica.client.group_messages import Membership
from kreplica.common.errors import InvalidRequest, KreplicaError
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of

LOGGER = logging.getLogger(__name__)


class Subscription(NamedTuple):
    """What a member reads: topics by name, and all those whose whole name matches `pattern` (RE2)."""

    topics: tuple[str, ...]
    pattern: str | None = None

    def require_names(self) -> None:
        """Raises InvalidRequest if there is a pattern, which only the consumer protocol knows."""
        if self.pattern is not None:
            raise InvalidRequest(
                f"pattern={self.pattern!r} needs the protocol 'consumer': the group uses 'classic'"
            )


class RebalanceListener(Protocol):
    """Reads the partitions of a member."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, too; the member owns them from now on."""

    def revoke(self, partitions: Sequence[TopicPartition], max_wait_ms: int) -> Future[None]:
        """Stop reading these partitions, commit what is processed, and let go of them; then resolve.

        Records that are being processed delay this by at most `max_wait_ms`. The future never fails.
        """

    def lost(self) -> None:
        """Let go of all partitions at once: others may own them already."""

    def failed(self, error: KreplicaError) -> None:
        """The member cannot be in the group, and has left it."""

    def has_stalled(self) -> bool:
        """Whether the program has not asked for records for max.poll.interval.ms."""


class GroupMember(Protocol):
    """A member of a group. `is_stable`: it has joined, and owns all that the last assignment gives it."""

    @property
    def is_stable(self) -> bool: ...

    @property
    def identity(self) -> Membership:
        """What the member's requests name: its id, and the generation or epoch, or NO_GENERATION."""

    def join(self) -> None:
        """Join the group, unless that has begun."""

    def refused(self) -> None:
        """Take note that a commit was refused: the member may have lost its partitions."""

    def leave(self) -> Future[Any]:
        """Leave the group; a static member stays in it (KIP-345). The future may fail."""


def log_stall(member: Membership, max_poll_interval_ms: int) -> None:
    """Warn that a member leaves because its program has asked for no records."""
    LOGGER.warning(
        "group %s: member %s has not polled for max.poll.interval.ms=%d; it leaves the group",
        member.group_id,
        member.member_id,
        max_poll_interval_ms,
    )


def error_code(response: Any) -> KreplicaError | None:
    """Return the error of a response that has one for the whole request."""
    return error_of(response.error_code, getattr(response, "error_message", None))
