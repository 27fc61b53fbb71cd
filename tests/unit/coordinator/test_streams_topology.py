"""What the topology of a Kafka Streams program needs from the topics of a cluster."""

from __future__ import annotations

import pytest

from kreplica.common.errors import StreamsInvalidTopology
from kreplica.coordinator.group_records import CopartitionGroup, KeyValue, Subtopology, TopicInfo
from kreplica.coordinator.streams_topology import (
    ConfiguredTopology,
    InternalTopic,
    TopologyStatus,
    check,
    configure,
    required_topics,
)


def internal(name: str, partitions: int = 0, **configs: str) -> TopicInfo:
    return TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=0,
        topic_configs=tuple(KeyValue(key=key, value=value) for key, value in configs.items()),
    )


def subtopology(
    name: str,
    *sources: str,
    reads: tuple[TopicInfo, ...] = (),
    writes: tuple[str, ...] = (),
    changelogs: tuple[TopicInfo, ...] = (),
    together: tuple[CopartitionGroup, ...] = (),
) -> Subtopology:
    return Subtopology(
        subtopology_id=name,
        source_topics=sources,
        source_topic_regex=(),
        state_changelog_topics=changelogs,
        repartition_sink_topics=writes,
        repartition_source_topics=reads,
        copartition_groups=together,
    )


def together(*sources: int, repartitioned: tuple[int, ...] = ()) -> CopartitionGroup:
    return CopartitionGroup(
        source_topics=sources, source_topic_regex=(), repartition_source_topics=repartitioned
    )


WORD_COUNT = (
    subtopology("0", "lines", writes=("words",)),
    subtopology("1", reads=(internal("words"),), changelogs=(internal("counts"),)),
)


def test_a_subtopology_has_a_task_for_each_partition_of_the_widest_topic_that_it_reads() -> None:
    found = configure([subtopology("0", "a", "b")], {"a": 2, "b": 5})
    assert found == ConfiguredTopology({"0": 5})
    assert found.is_ready


def test_a_missing_source_topic_is_waited_for() -> None:
    found = configure([subtopology("0", "a", "b", "c")], {"b": 1})
    assert not found.is_ready
    assert found.problem == (TopologyStatus.MISSING_SOURCE_TOPICS, "source topics are missing: a, c")
    assert not found.tasks
    assert not found.missing


def test_internal_topics_are_as_wide_as_what_their_writers_and_readers_read() -> None:
    found = configure(WORD_COUNT, {"lines": 3})
    assert found.problem == (
        TopologyStatus.MISSING_INTERNAL_TOPICS,
        "internal topics are missing: words, counts",
    )
    assert found.missing == (InternalTopic("words", 3, 0, {}), InternalTopic("counts", 3, 0, {}))


def test_only_the_internal_topics_that_do_not_exist_are_missing() -> None:
    found = configure(WORD_COUNT, {"lines": 3, "words": 3})
    assert [each.name for each in found.missing] == ["counts"]
    assert configure(WORD_COUNT, {"lines": 3, "words": 3, "counts": 3}).tasks == {"0": 3, "1": 3}


def test_an_internal_topic_of_another_width_is_refused() -> None:
    found = configure(WORD_COUNT, {"lines": 3, "words": 4})
    assert found.problem == (
        TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "topic words has 4 partitions, but the topology needs 3",
    )
    assert not found.missing


def test_the_settings_of_an_internal_topic_are_those_of_the_topology() -> None:
    topology = [subtopology("0", "a", changelogs=(internal("log", **{"cleanup.policy": "compact"}),))]
    assert configure(topology, {"a": 2}).missing == (
        InternalTopic("log", 2, 0, {"cleanup.policy": "compact"}),
    )


def test_a_chain_of_repartition_topics_is_decided_from_its_sources_on() -> None:
    chain = [
        subtopology("2", reads=(internal("second"),)),
        subtopology("1", reads=(internal("first"),), writes=("second",)),
        subtopology("0", "wide", "narrow", writes=("first",)),
    ]
    found = configure(chain, {"wide": 7, "narrow": 2, "first": 7, "second": 7})
    assert found.tasks == {"0": 7, "1": 7, "2": 7}


def test_a_repartition_topic_with_a_count_of_its_own_keeps_it() -> None:
    topology = [
        subtopology("0", "a", writes=("r",)),
        subtopology("1", reads=(internal("r", 12),)),
    ]
    assert configure(topology, {"a": 2}).missing == (InternalTopic("r", 12, 0, {}),)


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param([subtopology("0", reads=(internal("r"),))], id="written by none"),
        pytest.param(
            [
                subtopology("0", reads=(internal("r"),), writes=("s",)),
                subtopology("1", reads=(internal("s"),), writes=("r",)),
            ],
            id="a circle without a source",
        ),
    ],
)
def test_a_repartition_topic_whose_width_follows_from_nothing_is_an_error(
    topology: list[Subtopology],
) -> None:
    with pytest.raises(StreamsInvalidTopology, match="r"):
        configure(topology, {})


def test_a_subtopology_may_write_the_repartition_topic_that_it_reads() -> None:
    loop = [subtopology("0", "a", reads=(internal("r"),), writes=("r",))]
    assert configure(loop, {"a": 4}).missing == (InternalTopic("r", 4, 0, {}),)


def test_source_topics_that_are_joined_must_be_equally_wide() -> None:
    joined = [subtopology("0", "a", "b", together=(together(0, 1),))]
    assert configure(joined, {"a": 3, "b": 3}).tasks == {"0": 3}
    assert configure(joined, {"a": 3, "b": 4}).problem == (
        TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "these topics must have the same number of partitions: a has 3, b has 4",
    )


def test_a_repartition_topic_is_as_wide_as_the_topic_that_it_is_joined_with() -> None:
    joined = [
        subtopology("0", "narrow", writes=("r",)),
        subtopology("1", "wide", reads=(internal("r"),), together=(together(0, repartitioned=(0,)),)),
    ]
    assert configure(joined, {"narrow": 2, "wide": 6}).missing == (InternalTopic("r", 6, 0, {}),)


def test_repartition_topics_that_are_joined_get_the_width_of_the_widest() -> None:
    joined = [
        subtopology("0", "a", writes=("r",)),
        subtopology("1", "b", writes=("s",)),
        subtopology("2", reads=(internal("r"), internal("s")), together=(together(repartitioned=(0, 1)),)),
    ]
    assert {each.name: each.partitions for each in configure(joined, {"a": 2, "b": 5}).missing} == {
        "r": 5,
        "s": 5,
    }


def test_a_count_in_the_topology_must_fit_the_topics_that_it_is_joined_with() -> None:
    joined = [
        subtopology("0", "a", writes=("r",)),
        subtopology("1", "b", reads=(internal("r", 3),), together=(together(0, repartitioned=(0,)),)),
    ]
    problem = configure(joined, {"a": 3, "b": 4}).problem
    assert problem is not None
    assert problem[0] is TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS


def test_a_source_topic_that_is_its_own_changelog_is_not_created() -> None:
    table = [subtopology("0", "table", changelogs=(internal("table"),))]
    assert configure(table, {"table": 2}) == ConfiguredTopology({"0": 2})


def test_the_topics_that_a_topology_depends_on_are_sources_and_internal_ones() -> None:
    assert required_topics(WORD_COUNT) == {"lines", "words", "counts"}


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        (subtopology("0", "a", changelogs=(internal("log", 3),)), "log must have no partition count"),
        (subtopology("0", "a", together=(together(1),)), "copartition group"),
        (subtopology("0", "a", together=(together(repartitioned=(0,)),)), "copartition group"),
        (subtopology("0", "a", together=(together(-1),)), "copartition group"),
    ],
)
def test_a_topology_that_contradicts_itself_is_refused(broken: Subtopology, match: str) -> None:
    with pytest.raises(StreamsInvalidTopology, match=match):
        check([broken])
