"""How the leader of a group assigns partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kreplica.client.group_messages import assign_ranges
from kreplica.common.types import TopicPartition


def test_ranges_are_in_order_and_the_first_get_more():
    assigned = assign_ranges({"b": ["t", "u"], "a": ["t"]}, {"t": 3, "u": 1})
    assert assigned == {
        "a": [TopicPartition("t", 0), TopicPartition("t", 1)],
        "b": [TopicPartition("t", 2), TopicPartition("u", 0)],
    }


@given(
    st.dictionaries(st.text(max_size=3), st.lists(st.sampled_from("tuv"), unique=True), max_size=6),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 9)),
)
def test_every_partition_has_one_reader_of_its_topic(subscriptions, counts):
    assigned = assign_ranges(subscriptions, counts)
    given_out = [at for partitions in assigned.values() for at in partitions]
    read = {topic for topics in subscriptions.values() for topic in topics}
    wanted = {TopicPartition(t, n) for t, count in counts.items() if t in read for n in range(count)}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted
    for member_id, partitions in assigned.items():
        for topic in subscriptions[member_id]:
            share = sum(at.topic == topic for at in partitions)
            readers = sum(topic in topics for topics in subscriptions.values())
            assert abs(share - counts.get(topic, 0) / readers) < 1
