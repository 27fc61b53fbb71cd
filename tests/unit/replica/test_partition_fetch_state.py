"""A fetcher's partitions: which a fetch names, which it leaves out, and in which order."""

from __future__ import annotations

from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.partition_fetch_state import PartitionFetchState, PartitionStates, ReplicaState

ID = Uuid(b"t" * 16)
A, B, C = (TopicPartition("t", number) for number in range(3))


def state_of(topic_partition: TopicPartition, **changes: object) -> PartitionFetchState:
    made = PartitionFetchState(topic_partition, ID, 0, 5, ReplicaState.FETCHING, -1)
    return made._replace(**changes)


def made(*states: PartitionFetchState) -> PartitionStates:
    found = PartitionStates()
    for state in states:
        found.add(state)
    return found


def named(states: PartitionStates, *, every: bool = False) -> list[TopicPartition]:
    return [state.topic_partition for state in states.to_name(states.left_out(), every=every)]


def test_a_fetch_names_what_has_changed_since_the_last_one_or_all() -> None:
    states = made(state_of(A), state_of(B))
    assert named(states) == [A, B]
    states.mark_sent()
    assert (named(states), named(states, every=True)) == ([], [A, B])
    states.put(state_of(A, fetch_offset=3))
    assert named(states) == [A]


def test_what_was_put_goes_to_the_end() -> None:
    states = made(state_of(A), state_of(B), state_of(C))
    states.put(state_of(A, fetch_offset=1))
    assert list(states.by_partition) == [B, C, A]
    assert named(states, every=True) == [B, C, A]


def test_a_truncating_or_delayed_partition_is_left_out_until_that_is_over() -> None:
    states = made(state_of(A, state=ReplicaState.TRUNCATING), state_of(B, delayed_until_ms=70), state_of(C))
    assert (states.left_out(), named(states), states.first_delay_ends_ms()) == ({A, B}, [C], 70)
    states.put(state_of(A))
    assert states.left_out() == {B}
    states.end_delays(69)
    assert states.left_out() == {B}
    states.end_delays(70)
    assert states.left_out() == set()
    assert states.by_partition[B].delayed_until_ms == 0


def test_a_partition_out_of_range_or_held_back_is_left_out_whatever_is_put() -> None:
    states = made(state_of(A), state_of(B), state_of(C))
    states.out_of_range[A] = None
    states.held_back[B] = None
    for topic_partition in (A, B):
        states.put(state_of(topic_partition, fetch_offset=2))
    assert states.left_out() == {A, B}


def test_a_forgotten_partition_leaves_no_trace_and_may_come_back() -> None:
    states = made(state_of(A, delayed_until_ms=9), state_of(B))
    states.out_of_range[A] = states.held_back[A] = states.gone[A] = None
    assert states.forget(A) == state_of(A, delayed_until_ms=9)
    assert (len(states), states.left_out(), states.with_id(ID.raw, 0)) == (1, set(), None)
    assert states.forget(A) is None
    states.add(state_of(A))
    assert (states.with_id(ID.raw, 0), list(states.gone)) == (A, [])
    assert named(states) == [B, A]


def test_a_topic_of_another_id_is_another_one() -> None:
    states = made(state_of(B))
    assert (states.with_id(ID.raw, 1), states.with_id(b"u" * 16, 1)) == (B, None)
