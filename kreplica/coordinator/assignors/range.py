"""The assignor "range": each topic is cut into ranges of partitions, one for each subscriber.

Members are sorted: static members by instance id, then dynamic members by member id. In each topic the first
members get one partition more if the number of partitions is no multiple of the number of subscribers. So
topics with the same number of partitions and the same subscribers are co-partitioned: partition n of each of
them goes to the same member. What members had before plays no part.

The result is that of Kafka 4.3 for every input. Kafka's does not look at racks either.
"""

from __future__ import annotations

from collections.abc import Mapping

from kreplica.common.types import Uuid
from kreplica.coordinator.assignors.assignor import Assignment, MemberSubscription, check_topics


def assign(
    members: Mapping[str, MemberSubscription], partitions: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Return the range of each member in each topic. Raises PartitionAssignorError."""
    check_topics(members, partitions)
    result: dict[str, Assignment] = {member_id: {} for member_id in members}
    subscribers: dict[Uuid, list[str]] = {}
    lists: dict[frozenset[Uuid], list[list[str]]] = {}
    for member_id in sorted(members, key=lambda each: _order(each, members[each])):
        topic_ids = members[member_id].topic_ids
        if topic_ids not in lists:
            lists[topic_ids] = [subscribers.setdefault(topic_id, []) for topic_id in topic_ids]
        for each in lists[topic_ids]:
            each.append(member_id)
    for topic_id, member_ids in subscribers.items():
        length, longer = divmod(partitions[topic_id], len(member_ids))
        start = 0
        for n, member_id in enumerate(member_ids):
            end = start + length + (n < longer)
            if end == start:
                break
            result[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return result


def _order(member_id: str, member: MemberSubscription) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or member_id
