"""ConsoleViews: what one node knows of its cluster, as plain data for the console.

The cluster's metadata is the node's own immutable image; offsets, damage and disks are those of the node's
replicas. Groups are those that this node coordinates. Values that the node keeps secret stay so: settings
come from DescribeConfigs. Each view has a limit of rows. Thread rule: any thread but the node's loop, since a
view may wait for the loop.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import islice
from typing import Any

from kreplica.broker.node import Node
from kreplica.broker.request_context import IN_PROCESS
from kreplica.common.errors import (
    GroupIdNotFound,
    InvalidRequest,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.administration import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kreplica.common.messages.consumer_groups import ConsumerGroupDescribeRequest
from kreplica.common.messages.groups import (
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kreplica.common.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from kreplica.common.types import METADATA_TOPIC, TopicPartition
from kreplica.common.wire import error_of
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.shard_store import partition_for
from kreplica.log.damage import Damage
from kreplica.log.unified_log import UnifiedLog
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.replica.hosted_partitions import INTERNAL_TOPICS
from kreplica.replica.partition import Partition
from kreplica.runtime.partition_history import PartitionHistory
from kreplica.security.acl import AclOperation, AclPermissionType, PatternType, ResourceType

ANSWER_WITHIN_S = 5.0
MOST_ROWS = 500
CONFIG_TYPES = {"topic": 2, "broker": 4, "group": 32}
CONFIG_SOURCES = {
    1: "topic",
    2: "broker, dynamic",
    3: "default of brokers, dynamic",
    4: "broker, static",
    5: "default",
    8: "group",
}


class ConsoleViews:
    """The views of one node. They raise KreplicaError while it is starting or has ended."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # The counts of the last metadata that was looked at; replaced as a whole.
        self._counted: tuple[ClusterMetadata, dict[str, Any]] | None = None

    # ---- the cluster --------------------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        """Return the node, the brokers, the numbers of partitions by what they lack, and the disks."""
        node, metadata = self._node, self._node.loader.published
        counted = self._counts(metadata)
        return {
            "cluster_id": node.config.cluster_id,
            "node_id": node.config.node_id,
            "roles": sorted(node.config.roles),
            "controller": node.active_controller(),
            "metadata_offset": node.loader.applied.offset,
            "reasons": node.what_keeps_from_serving(),
            "brokers": [
                {
                    "id": broker_id,
                    "address": ["{}:{}".format(*each[1:]) for each in _addresses(broker)],
                    "rack": broker.rack,
                    "state": _state(broker),
                    "leaders": counted["leaders"].get(broker_id, 0),
                    "replicas": counted["replicas"].get(broker_id, 0),
                }
                for broker_id, broker in sorted(metadata.brokers.items())
            ],
            "topics": len(metadata.topics),
            **{name: counted[name] for name in ("partitions", "under_replicated", "offline", "moving")},
            "disks": [] if node.broker is None else self._disks(),
            "damaged": 0 if node.broker is None else sum(1 for _ in self._damaged()),
        }

    def _counts(self, metadata: ClusterMetadata) -> dict[str, Any]:
        known = self._counted
        if known is not None and known[0] is metadata:
            return known[1]
        leaders: dict[int, int] = {}
        replicas: dict[int, int] = {}
        total = under = offline = moving = 0
        for _, _, each in metadata.partitions():
            total += 1
            under += len(each.isr) < len(each.replicas)
            offline += each.leader == NO_LEADER
            moving += each.is_reassigning
            leaders[each.leader] = leaders.get(each.leader, 0) + 1
            for broker_id in each.replicas:
                replicas[broker_id] = replicas.get(broker_id, 0) + 1
        counted = {
            "partitions": total,
            "under_replicated": under,
            "offline": offline,
            "moving": moving,
            "leaders": leaders,
            "replicas": replicas,
        }
        self._counted = metadata, counted
        return counted

    def _disks(self) -> list[dict[str, Any]]:
        assert self._node.broker is not None
        manager = self._node.broker.log_manager
        failed = [
            {"path": path, "error": str(error), "total_bytes": None, "usable_bytes": None}
            for path, error in sorted(manager.offline_directories.items())
        ]
        return [*map(_disk, sorted(manager.directory_ids)), *failed]

    def quorum(self) -> dict[str, Any]:
        """Return the voters and observers as the quorum's leader sees them, or what another node knows."""
        raft = self._node.raft
        leader_id, epoch = raft.leader_and_epoch
        known: dict[str, Any] = {
            "leader": leader_id,
            "epoch": epoch,
            "high_watermark": raft.high_watermark,
            "voters": sorted(raft.voters.voter_ids),
            "replicas": None,
        }
        if leader_id != self._node.config.node_id:
            return known
        partition = DescribeQuorumRequestPartitionData(partition_index=0)
        topic = DescribeQuorumRequestTopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
        answer = self._ask(DescribeQuorumRequest(topics=(topic,)))
        described = answer.topics[0].partitions[0] if answer.topics else None
        if described is None or error_of(described.error_code) is not None:
            return known
        ends = {each.replica_id: each.log_end_offset for each in described.current_voters}
        known["replicas"] = [
            {
                "id": each.replica_id,
                "role": "leader" if each.replica_id == leader_id else role,
                "log_end_offset": each.log_end_offset,
                "lag": ends.get(leader_id, 0) - each.log_end_offset if each.log_end_offset >= 0 else None,
                "last_caught_up_timestamp": each.last_caught_up_timestamp,
            }
            for role, replicas in (("voter", described.current_voters), ("observer", described.observers))
            for each in replicas
        ]
        return known

    def configs(self, kind: str, name: str) -> dict[str, Any]:
        """Return the settings of a topic, broker or group; sensitive values are left out."""
        if kind not in CONFIG_TYPES:
            raise InvalidRequest(f"type={kind[:40]} is not one of {', '.join(CONFIG_TYPES)}")
        if kind == "broker" and name != str(self._node.config.node_id):
            raise InvalidRequest(
                f"node {self._node.config.node_id} knows the settings of itself, not {name[:20]}"
            )
        resource = DescribeConfigsResource(
            resource_type=CONFIG_TYPES[kind], resource_name=name, configuration_keys=None
        )
        result = self._ask(DescribeConfigsRequest(resources=(resource,))).results[0]
        error = error_of(result.error_code, result.error_message)
        if error is not None:
            raise error
        return {
            "type": kind,
            "name": name,
            "configs": [
                {
                    "name": each.name,
                    "value": None if each.is_sensitive else each.value,
                    "is_sensitive": each.is_sensitive,
                    "source": CONFIG_SOURCES.get(each.config_source, str(each.config_source)),
                    "is_default": each.config_source == 5,
                }
                for each in sorted(result.configs, key=lambda each: str(each.name))
            ],
        }

    def acls(self) -> dict[str, Any]:
        """Return the access rules, and whether this node enforces any."""
        rules = list(islice(self._node.loader.published.acls.values(), MOST_ROWS))
        return {
            "is_enforced": self._node.rules is not None,
            "total": len(self._node.loader.published.acls),
            "acls": [
                {
                    "principal": each.principal,
                    "host": each.host,
                    "permission": AclPermissionType(each.permission_type).name,
                    "operation": AclOperation(each.operation).name,
                    "resource": ResourceType(each.resource_type).name,
                    "pattern": PatternType(each.pattern_type).name,
                    "name": each.resource_name,
                }
                for each in rules
            ],
        }

    # ---- topics -------------------------------------------------------------------------------------------

    def topics(self, search: str, start: int) -> dict[str, Any]:
        """Return the topics whose names contain `search`, internal ones last.

        MOST_ROWS of them, from the place `start` on.
        """
        topics = self._node.loader.published.topics
        found_names = (name for name in topics if search.lower() in name.lower())
        names = sorted(found_names, key=lambda name: (name in INTERNAL_TOPICS, name))
        rows = []
        for name in names[start : start + MOST_ROWS]:
            found = topics[name]
            partitions = list(found.partitions.values())
            rows.append(
                {
                    "name": name,
                    "is_internal": name in INTERNAL_TOPICS,
                    "partitions": len(partitions),
                    "replication_factor": max((len(each.replicas) for each in partitions), default=0),
                    "under_replicated": sum(len(each.isr) < len(each.replicas) for each in partitions),
                    "offline": sum(each.leader == NO_LEADER for each in partitions),
                }
            )
        return {"topics": rows, "total": len(names)}

    def topic(self, name: str, start: int) -> dict[str, Any]:
        """Return the topic's partitions, MOST_ROWS of them from the number `start` on."""
        found = self._node.loader.published.topics.get(name)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no topic {name[:249]!r}")
        numbers = sorted(number for number in found.partitions if number >= start)[:MOST_ROWS]
        return {
            "name": name,
            "topic_id": str(found.topic_id),
            "total": len(found.partitions),
            "partitions": [
                self._partition(TopicPartition(name, number), found.partitions[number]) for number in numbers
            ],
        }

    def _partition(self, at: TopicPartition, found: PartitionRegistration) -> dict[str, Any]:
        replica = self._hosted(at)
        log = None if replica is None else replica.log
        return {
            "partition": at.partition,
            "leader": None if found.leader == NO_LEADER else found.leader,
            "leader_epoch": found.leader_epoch,
            "replicas": found.replicas,
            "isr": found.isr,
            "elr": found.elr,
            "adding": found.adding_replicas,
            "removing": found.removing_replicas,
            # Offsets of this node's replica; None if it has none.
            "log_start_offset": None if log is None else log.log_start_offset,
            "high_watermark": None if log is None else log.high_watermark,
            "log_end_offset": None if log is None else log.log_end_offset,
            "bytes": None if log is None else log.size,
            "is_damaged": replica is not None and replica.is_damaged,
        }

    def history(self, history: PartitionHistory, topic: str, partition: int) -> dict[str, Any]:
        """Return the partition's leaders and ISRs over time, and why replicas left or joined.

        The reasons are those that the leader keeps in memory, so only the node that leads has them.
        """
        at = TopicPartition(topic, partition)
        metadata = self._node.loader.published
        found = metadata.require_partition(at)
        changes, is_whole = history.of(metadata.topics[topic].topic_id, partition)
        replica = self._hosted(at)
        return {
            "topic": topic,
            "partition": partition,
            "is_whole": is_whole,
            "changes": [each._asdict() for each in changes[-MOST_ROWS:]],
            "replicas": found.replicas,
            "now": {"leader": found.leader, "isr": found.isr},
            "reasons": [
                {
                    "timestamp": each.time_ms,
                    "broker": each.broker_id,
                    "kind": each.kind,
                    "reason": str(each.reason),
                }
                for each in (() if replica is None else replica.isr_history)
            ],
        }

    def replica(self, topic: str, partition: int) -> UnifiedLog:
        """Return this node's log of the partition.

        Raises UnknownTopicOrPartition, and NotLeaderOrFollower that names the nodes with a replica.
        """
        at = TopicPartition(topic, partition)
        found = self._node.loader.published.require_partition(at)
        replica = self._hosted(at)
        if replica is None or replica.log is None:
            raise NotLeaderOrFollower(
                f"node {self._node.config.node_id} has no replica of {at}: "
                f"ask the console of one of the nodes {', '.join(map(str, found.replicas))}"
            )
        return replica.log

    def _hosted(self, at: TopicPartition) -> Partition | None:
        broker = self._node.broker
        return None if broker is None else broker.replica_manager.partitions.get(at)

    # ---- groups -------------------------------------------------------------------------------------------

    def groups(self) -> dict[str, Any]:
        """Return the groups that this node coordinates."""
        answer = self._ask(ListGroupsRequest())
        error = error_of(answer.error_code)
        if error is not None:
            raise error
        listed = sorted(answer.groups, key=lambda each: str(each.group_id))
        return {
            "total": len(listed),
            "groups": [
                {"id": each.group_id, "state": each.group_state, "type": each.group_type.lower()}
                for each in listed[:MOST_ROWS]
            ],
        }

    def group(self, group_id: str) -> dict[str, Any]:
        """Return the group's members, and its committed offsets with their lag.

        The lag is None for a partition without a replica here. Raises GroupIdNotFound.
        """
        listed = {each.group_id: each for each in self._ask(ListGroupsRequest()).groups}
        if group_id not in listed:
            raise GroupIdNotFound(self._why_no_group(group_id))
        kind = listed[group_id].group_type.lower()
        asked = OffsetFetchRequestGroup(group_id=group_id, topics=None)
        fetched = self._ask(OffsetFetchRequest(groups=(asked,))).groups[0]
        offsets = [
            self._lag(topic.name, each)
            for topic in fetched.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        ]
        offsets.sort(key=lambda row: (row["topic"], row["partition"]))
        lags = [row["lag"] for row in offsets]
        return {
            "id": group_id,
            "type": kind,
            "state": listed[group_id].group_state,
            "members": list(islice(self._members(group_id, kind), MOST_ROWS)),
            "total_lag": None if not lags or None in lags else sum(lags),
            "total": len(offsets),
            "offsets": offsets[:MOST_ROWS],
        }

    def _why_no_group(self, group_id: str) -> str:
        here = f"node {self._node.config.node_id} coordinates no group {group_id[:249]!r}"
        offsets = self._node.loader.published.topics.get(CONSUMER_OFFSETS)
        if offsets is None:
            return here
        leader = offsets.partitions[partition_for(group_id, len(offsets.partitions))].leader
        if leader in (NO_LEADER, self._node.config.node_id):
            return here
        return f"{here}: if there is one, the console of node {leader} shows it"

    def _lag(self, topic: str, committed: Any) -> dict[str, Any]:
        replica = self._hosted(TopicPartition(topic, committed.partition_index))
        end = None if replica is None or replica.log is None else replica.log.high_watermark
        return {
            "topic": topic,
            "partition": committed.partition_index,
            "committed": committed.committed_offset,
            "end": end,
            "lag": None if end is None else max(end - committed.committed_offset, 0),
        }

    def _members(self, group_id: str, kind: str) -> Iterator[dict[str, Any]]:
        if kind == "consumer":
            request: Any = ConsumerGroupDescribeRequest(
                group_ids=(group_id,), include_authorized_operations=False
            )
        elif kind == "classic":
            request = DescribeGroupsRequest(groups=(group_id,))
        else:
            return
        for each in self._ask(request).groups[0].members:
            yield {"id": each.member_id, "client_id": each.client_id, "host": each.client_host}

    # ---- damage -------------------------------------------------------------------------------------------

    def damage(self) -> dict[str, Any]:
        """Return the damaged ranges of this node's logs, its failed disks, and how far its scrubber is."""
        broker = self._node.broker
        if broker is None:
            return {"ranges": [], "total": 0, "offline": [], "scrubber": None}
        rows = list(self._damaged())
        manager = broker.log_manager
        status = manager.scrubber.status
        return {
            "ranges": rows[:MOST_ROWS],
            "total": len(rows),
            "offline": [
                {"path": path, "error": str(error)}
                for path, error in sorted(manager.offline_directories.items())
            ],
            "scrubber": {
                "rounds": status.rounds,
                "segments": status.segments,
                "bytes": status.bytes,
                "damages": status.damages,
                "at": None if status.at is None else str(status.at),
            },
        }

    def _damaged(self) -> Iterator[dict[str, Any]]:
        assert self._node.broker is not None
        for log in self._node.broker.log_manager.logs():
            for each in log.damages:
                what = "recovery stopped here" if each == log.stopped_at else "damaged"
                yield _range(log.topic_partition, what, each)

    # ---- requests -----------------------------------------------------------------------------------------

    def _ask(self, request: Any) -> Any:
        """Return the node's answer. Raises RequestTimedOut if its loop does not answer soon."""
        try:
            return self._node.handle(request, IN_PROCESS).result(ANSWER_WITHIN_S)
        except FutureTimeoutError:
            raise RequestTimedOut(
                f"node {self._node.config.node_id} has not answered within {ANSWER_WITHIN_S:g} s"
            ) from None


def _disk(path: str) -> dict[str, Any]:
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return {"path": path, "error": str(error), "total_bytes": None, "usable_bytes": None}
    return {"path": path, "error": None, "total_bytes": usage.total, "usable_bytes": usage.free}


def _addresses(broker: Any) -> list[tuple[str, str, int]]:
    return [(each.name, each.host, each.port) for each in broker.endpoints]


def _state(broker: Any) -> str:
    if broker.fenced:
        return "fenced"
    return "shutting down" if broker.in_controlled_shutdown else "running"


def _range(at: TopicPartition, what: str, damage: Damage) -> dict[str, Any]:
    return {
        "topic": at.topic,
        "partition": at.partition,
        "what": what,
        "first_offset": damage.first_offset,
        "next_offset": damage.next_offset,
        "file": damage.path.rpartition("/")[2],
        "position": damage.position,
        "end_position": damage.end_position,
        "reason": damage.reason,
    }
