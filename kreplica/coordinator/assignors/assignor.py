"""What an assignor of partitions takes and returns.

An assignor is a pure function from the members of a group and the partitions of topics to the target
assignment of each member. `uniform` and `range` are those of consumer groups, `simple` is that of share
groups. Tasks of streams groups have types of their own in `sticky_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import UnknownServerError
from kreplica.common.types import Uuid

# The partitions of a member, by topic id. A topic without partitions of the member is left out.
Assignment: TypeAlias = dict[Uuid, frozenset[int]]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member of a group, as an assignor sees it.

    `assigned` is the member's current target assignment; a new member has none. A static member that replaces
    another one is given the target of its predecessor. Assignors may return the same sets again.
    """

    instance_id: str | None
    rack_id: str | None
    topic_ids: frozenset[Uuid]
    assigned: Mapping[Uuid, frozenset[int]]


# Takes the members by member id, and the number of partitions of each subscribed topic. The result has an
# entry for each member. Raises PartitionAssignorError.
Assign: TypeAlias = Callable[
    [Mapping[str, MemberSubscription], Mapping[Uuid, int]],
    dict[str, Assignment],
]


class PartitionAssignorError(UnknownServerError):
    """The assignor cannot assign: a member subscribes to a topic that the assignor does not know."""


def check_topics(members: Mapping[str, MemberSubscription], topic_ids: Iterable[Uuid]) -> None:
    """Raises PartitionAssignorError if a member subscribes to a topic that is not among `topic_ids`."""
    known = frozenset(topic_ids)
    for subscription in {member.topic_ids for member in members.values()}:
        if unknown := subscription - known:
            names = ", ".join(sorted(map(str, unknown)))
            raise PartitionAssignorError(f"members subscribe to topic ids that are not known: {names}")
