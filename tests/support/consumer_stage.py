"""Groups of the consumer protocol on a coordinator under a virtual clock, and their members' heartbeats."""

from __future__ import annotations

import dataclasses
from typing import Any

from kreplica.common.types import Uuid
from kreplica.coordinator.consumer_groups import (
    ConsumerGroupPorts,
    ConsumerHeartbeat,
    ConsumerSettings,
)
from kreplica.coordinator.group_config import GroupConfig
from tests.support.group_stage import CONFIG, GroupStage


def topic_id(name):
    return Uuid(name.encode().ljust(16, b"\0"))


class MadeTopics:
    """Topics by name, with their number of partitions.

    `deletions`: how often a topic was deleted; one that is made again has another id.
    """

    def __init__(self, **counts):
        self.counts = counts
        self.deletions = {}
        self.offset = 1

    def delete(self, name):
        if self.counts.pop(name, None) is not None:
            self.deletions[name] = self.deletions.get(name, 0) + 1

    def names(self):
        return self.counts.keys()

    def topic_id(self, name):
        return topic_id(f"{name}{self.deletions.get(name, '')}") if name in self.counts else None

    def name_of(self, topic_id):
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def partition_count(self, name):
        return self.counts.get(name, 0)

    def metadata_hash(self, names):
        known = [(self.topic_id(name), self.counts[name]) for name in sorted(names) if name in self.counts]
        return hash(tuple(known)) if known else 0


def deal(members, partitions):
    """Deal the partitions of each topic to its subscribers in turn, by member id."""
    targets: dict[str, dict[Uuid, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic, count in partitions.items():
        takers = sorted(name for name, member in members.items() if topic in member.topic_ids)
        for number, name in enumerate(takers):
            numbers = frozenset(range(number, count, len(takers)))
            if numbers:
                targets[name][topic] = numbers
    return targets


def owned(**numbers):
    """Partitions by the names of topics."""
    return {topic_id(name): frozenset(each) for name, each in numbers.items()}


# What a group has besides the state that is in its log.
SOFT = ("_undo", "is_stale", "is_regex_stale", "regex_checked_ms", "sights", "narrowed")


class ConsumerStage(GroupStage):
    """A coordinator with the topics t (2 partitions) and u (1), and assignors that deal."""

    def __init__(self, config: GroupConfig = CONFIG, log: Any = None, topics: Any = None, **settings: int):
        self.topics = topics or MadeTopics(t=2, u=1)
        self.settings = ConsumerSettings(
            **{"session_timeout_ms": 1_000, "heartbeat_interval_ms": 100, "assignment_interval_ms": 0}
            | settings
        )
        self.assign: Any = deal
        super().__init__(config, log)

    def consumer_ports(self):
        return ConsumerGroupPorts(
            topics=self.topics,
            assignors={"uniform": self._assign, "range": self._assign},
            settings=lambda _: self.settings,
        )

    def _assign(self, members, partitions):
        return self.assign(members, partitions)

    def begin(self, member="a", epoch=0, **options):
        """Send a heartbeat of a member; by default it subscribes to t if it joins."""
        if epoch == 0:
            options = {"topics": ["t"], "owned": {}, "rebalance_timeout_ms": 500} | options
        asked = ConsumerHeartbeat("g", member, epoch, client_id="client", client_host="host")
        future = self.coordinator.consumer_heartbeat(asked._replace(**options))
        self.settle()
        return future

    def beat(self, member="a", epoch=0, **options):
        """Return the answer to a heartbeat. Raises its error."""
        return self.begin(member, epoch, **options).result(0)

    def refusal(self, member="a", epoch=0, **options):
        """Return the type of the error of a heartbeat."""
        return type(self.begin(member, epoch, **options).exception(0))

    def group(self, group="g"):
        future = self.coordinator.describe_consumer_group(group)
        self.settle()
        return future.result(0)

    @property
    def state(self):
        """The group's state, epoch and assignment epoch, and the epoch and partitions of each member."""
        group = self.group()
        members = {
            each.member_id: (each.epoch, {self.topics.name_of(at): set(n) for at, n in each.assigned.items()})
            for each in group.members
        }
        return group.state, group.epoch, group.assignment_epoch, members

    def in_memory(self):
        """Return all that a group's records describe."""
        found = {}
        for shard in self.coordinator.shards:
            for group in shard.groups.values():
                values = {**vars(group)}
                for name in SOFT:
                    values.pop(name, None)
                found[group.group_id] = (type(group), values)
        return found

    def reloaded(self):
        """Return another coordinator's stage, which has loaded the same log."""
        return ConsumerStage(log=self.log, topics=self.topics, **self.settings._asdict())


def with_config(**changes):
    return dataclasses.replace(CONFIG, **changes)
