"""ConfiguredTopology: what the topology of a Kafka Streams program means for the topics that exist.

A topology consists of subtopologies. Each one reads source topics and repartition topics, writes repartition
topics that others read, and keeps its state in changelog topics. It has one task for each partition of the
widest topic that it reads. A program leaves the partition counts of most internal topics open. `configure`
decides them (KIP-1071):

1. A repartition topic gets as many partitions as the widest topic read by the subtopologies that write it.
2. The topics of a copartition group get the same number.
3. A changelog topic gets one partition for each task of its subtopology.

Stateless; any thread may call.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import StreamsInvalidTopology
from kreplica.coordinator.group_records import CopartitionGroup, Subtopology, TopicInfo


class TopologyStatus(enum.IntEnum):
    """Why the tasks of a topology cannot be assigned, as the codes of a heartbeat's answer."""

    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition or changelog topic to create. A replication factor of 0 is the cluster's default."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """A topology beside the topics that exist.

    `tasks`: the number of tasks by subtopology id; empty if `problem` is set. `problem`: why tasks cannot be
    assigned yet, in words. `missing`: the internal topics to create.
    """

    tasks: Mapping[str, int] = field(default_factory=dict)
    problem: tuple[TopologyStatus, str] | None = None
    missing: tuple[InternalTopic, ...] = ()

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _IncorrectlyPartitioned(Exception):
    """Topics have numbers of partitions that do not fit the topology."""


def check(topology: Sequence[Subtopology]) -> None:
    """Check what a topology must state in any cluster.

    Raises StreamsInvalidTopology if a changelog topic has a partition count, or an index of a copartition
    group points to no topic.
    """
    for each in topology:
        for changelog in each.state_changelog_topics:
            if changelog.partitions:
                raise StreamsInvalidTopology(
                    f"changelog topic {changelog.name} must have no partition count,"
                    f" but it has {changelog.partitions}"
                )
        for group in each.copartition_groups:
            indexes = (
                (group.source_topics, each.source_topics),
                (group.repartition_source_topics, each.repartition_source_topics),
            )
            for numbers, topics in indexes:
                if not all(0 <= number < len(topics) for number in numbers):
                    raise StreamsInvalidTopology(
                        f"subtopology {each.subtopology_id}: a copartition group names topics {numbers}"
                        f" of {len(topics)}"
                    )


def topics_read(subtopology: Subtopology) -> tuple[str, ...]:
    """Return the names of the topics that the subtopology reads."""
    return (*subtopology.source_topics, *(each.name for each in subtopology.repartition_source_topics))


def required_topics(topology: Sequence[Subtopology]) -> frozenset[str]:
    """Return the names of all topics that the topology reads or keeps its state in."""
    return frozenset(
        name
        for each in topology
        for name in (*topics_read(each), *(topic.name for topic in each.state_changelog_topics))
    )


def configure(topology: Sequence[Subtopology], partitions: Mapping[str, int]) -> ConfiguredTopology:
    """Decide the internal topics and count the tasks. `partitions`: those of each topic that exists.

    Raises StreamsInvalidTopology if the partitions of a repartition topic cannot be decided.
    """
    sources = {name for each in topology for name in each.source_topics}
    missing = sorted(sources - partitions.keys())
    if missing:
        text = f"source topics are missing: {', '.join(missing)}"
        return ConfiguredTopology(problem=(TopologyStatus.MISSING_SOURCE_TOPICS, text))
    try:
        counts = {name: partitions[name] for name in sources}
        _decide_repartition_topics(topology, counts)
        for each in topology:
            for group in each.copartition_groups:
                _align(each, group, counts)
        tasks = {each.subtopology_id: max(_read_by(each, counts), default=0) for each in topology}
        wanted = list(_internal_topics(topology, counts, tasks))
        _check_existing(wanted, partitions)
    except _IncorrectlyPartitioned as error:
        return ConfiguredTopology(
            problem=(TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS, str(error)),
        )
    to_create = tuple(each for each in wanted if each.name not in partitions)
    if to_create:
        text = f"internal topics are missing: {', '.join(each.name for each in to_create)}"
        return ConfiguredTopology({}, (TopologyStatus.MISSING_INTERNAL_TOPICS, text), to_create)
    return ConfiguredTopology(tasks)


def _read_by(subtopology: Subtopology, counts: Mapping[str, int]) -> list[int]:
    """Return the partition counts of what the subtopology reads, as far as they are decided."""
    return [counts[name] for name in topics_read(subtopology) if name in counts]


def _repartition_topics(topology: Sequence[Subtopology]) -> dict[str, TopicInfo]:
    return {topic.name: topic for each in topology for topic in each.repartition_source_topics}


def _decide_repartition_topics(topology: Sequence[Subtopology], counts: dict[str, int]) -> None:
    """Add the counts of repartition topics, round by round, as one may depend on another."""
    topics = _repartition_topics(topology)
    counts.update({name: topic.partitions for name, topic in topics.items() if topic.partitions})
    open_topics = {name for name, topic in topics.items() if not topic.partitions}
    while open_topics:
        decided = {}
        for name in open_topics:
            writers = [each for each in topology if name in each.repartition_sink_topics]
            widths = [width for each in writers for width in _read_by(each, counts)]
            if widths and all(_is_decided(each, counts) for each in writers):
                decided[name] = max(widths)
        if not decided:
            raise StreamsInvalidTopology(
                "the partitions of these repartition topics cannot be decided, since no subtopology with"
                f" known sources writes them: {', '.join(sorted(open_topics))}"
            )
        counts.update(decided)
        open_topics -= decided.keys()


def _is_decided(subtopology: Subtopology, counts: Mapping[str, int]) -> bool:
    # A subtopology that writes a topic which it reads itself does not wait for that topic.
    own = set(subtopology.repartition_sink_topics)
    return all(each.name in counts or each.name in own for each in subtopology.repartition_source_topics)


def _align(subtopology: Subtopology, group: CopartitionGroup, counts: dict[str, int]) -> None:
    """Give the topics of a copartition group the same number of partitions.

    Topics of the user, and repartition topics with a count in the topology, must agree already.
    """
    topics = [subtopology.repartition_source_topics[number] for number in group.repartition_source_topics]
    fixed = [subtopology.source_topics[number] for number in group.source_topics]
    fixed += [each.name for each in topics if each.partitions]
    widths = {counts[name] for name in fixed}
    if len(widths) > 1:
        shown = ", ".join(f"{name} has {counts[name]}" for name in sorted(fixed))
        raise _IncorrectlyPartitioned(f"these topics must have the same number of partitions: {shown}")
    open_names = [each.name for each in topics if not each.partitions]
    if open_names:
        width = widths.pop() if widths else max(counts[name] for name in open_names)
        counts.update(dict.fromkeys(open_names, width))


def _internal_topics(
    topology: Sequence[Subtopology], counts: Mapping[str, int], tasks: Mapping[str, int]
) -> Iterable[InternalTopic]:
    for topic in _repartition_topics(topology).values():
        yield _internal_topic(topic, counts[topic.name])
    for each in topology:
        # A changelog that is also a source (a table read from its topic) exists already.
        for topic in each.state_changelog_topics:
            if topic.name not in counts:
                yield _internal_topic(topic, tasks[each.subtopology_id])


def _internal_topic(topic: TopicInfo, partitions: int) -> InternalTopic:
    configs = {each.key: each.value for each in topic.topic_configs}
    return InternalTopic(topic.name, partitions, topic.replication_factor, configs)


def _check_existing(wanted: Iterable[InternalTopic], partitions: Mapping[str, int]) -> None:
    for each in wanted:
        existing = partitions.get(each.name)
        if existing is not None and existing != each.partitions:
            raise _IncorrectlyPartitioned(
                f"topic {each.name} has {existing} partitions, but the topology needs {each.partitions}"
            )
