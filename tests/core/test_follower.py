"""A follower's partitions and its session: what a fetch names and leaves out, and what an answer does."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kreplica._core.fetch_frames import PartitionAnswer
from kreplica._core.follower import PARTITIONS_DECLINED, FollowedAppend, FollowedPartition, Follower
from kreplica._core.leader_state import LeaderState, Term
from kreplica._core.log_state import LogState
from kreplica.common.errors import CorruptMessage
from kreplica.common.locks import RLock
from kreplica.common.types import AppendOrigin, TopicPartition, Uuid
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.replica.partition import Partition
from kreplica.replica.remote_leader_endpoint import EncodedFetch
from tests.support.batches import build
from tests.support.replicas import Replicas, batch

ID, OTHER_ID = Uuid(b"t" * 16), Uuid(b"u" * 16)
A, B, C = (TopicPartition("t", number) for number in range(3))
SESSION = 7


class Stage:
    """A Follower of `topic_partitions`, and its owner, which notes what is left to it."""

    def __init__(self, *topic_partitions: TopicPartition) -> None:
        self.logs: dict[TopicPartition, LogState] = {}
        self.decided: list[tuple[TopicPartition, Any]] = []
        self.follower = Follower(self, RLock(), self.hosted, object())
        for each in topic_partitions:
            self.add(each)

    def hosted(self, topic_partition: TopicPartition) -> LeaderState | None:
        state = self.logs.get(topic_partition)
        if state is None:
            return None
        partition = LeaderState()
        partition.term = Term(1, 5, log=SimpleNamespace(state=state))
        return partition

    def add(self, topic_partition: TopicPartition, topic_id: Uuid = ID, **given: Any) -> FollowedPartition:
        self.logs.setdefault(topic_partition, LogState(None, ""))
        state = FollowedPartition(topic_partition, topic_id, given.pop("offset", 0), 5, **given)
        self.follower.add(state)
        return state

    def state(self, topic_partition: TopicPartition) -> FollowedPartition:
        return self.follower.by_partition[topic_partition]

    def change(self, topic_partition: TopicPartition, **changes: object) -> FollowedPartition:
        state = self.state(topic_partition)
        for name, value in changes.items():
            setattr(state, name, value)
        self.follower.put(state)
        return state

    def fetch(self, *, answered: bool = True) -> tuple[list[int], list[int]]:
        """Send the next fetch; the partitions of ID that it names, and that it forgets."""
        fetch = self.follower.next_fetch()
        assert fetch is not None
        if answered:
            self.follower.answered(SESSION)
        return [each[0] for each in fetch.asked.get(ID.raw, [])], fetch.forgotten.get(ID.raw, [])

    def decide(self, state: FollowedPartition, answer: Any) -> None:
        self.decided.append((state.topic_partition, answer))


# ---- what a fetch names ------------------------------------------------------------------------------------


def test_a_fetch_names_what_has_changed_since_the_last_one_or_all():
    stage = Stage(A, B)
    assert stage.fetch() == ([0, 1], [])
    assert stage.fetch() == ([], [])
    stage.change(A, fetch_offset=3)
    assert stage.fetch() == ([0], [])
    stage.change(A)
    assert stage.fetch() == ([], [])
    stage.follower.failed(is_unknown=False)
    assert stage.fetch() == ([1, 0], [])


def test_a_fetch_has_the_offsets_and_epochs_of_a_partition_and_where_its_log_begins():
    stage = Stage()
    stage.add(B, offset=30, last_fetched_epoch=4)
    stage.logs[B].update(log_start_offset=9)
    fetch = stage.follower.next_fetch()
    assert fetch is not None
    assert (fetch.session_id, fetch.session_epoch) == (0, 0)
    assert fetch.asked == {ID.raw: [(1, 30, 9, 5, 4)]}


def test_a_new_log_start_is_sent_with_the_next_change():
    stage = Stage(A)
    stage.fetch()
    stage.logs[A].update(log_start_offset=9)
    assert stage.fetch() == ([], [])
    stage.change(A)
    assert stage.fetch() == ([0], [])


def test_what_was_put_goes_to_the_end():
    stage = Stage(A, B, C)
    stage.change(A, fetch_offset=1)
    assert list(stage.follower.by_partition) == [B, C, A]
    assert stage.fetch() == ([1, 2, 0], [])


def test_a_truncating_or_delayed_partition_is_left_out_until_that_is_over():
    stage = Stage(A, B, C)
    stage.change(A, is_truncating=True)
    stage.change(B, delayed_until_ms=70)
    assert stage.follower.first_delay_ends_ms() == 70
    assert stage.fetch() == ([2], [])
    stage.change(A, is_truncating=False)
    stage.follower.end_delays(69)
    assert stage.fetch() == ([0], [])
    stage.follower.end_delays(70)
    assert stage.state(B).delayed_until_ms == 0
    assert stage.fetch() == ([1], [])


def test_the_leader_is_to_forget_what_is_left_out_and_what_has_left():
    stage = Stage(A, B, C)
    stage.fetch()
    stage.change(A, delayed_until_ms=9)
    stage.follower.forget(B)
    assert stage.fetch() == ([], [1, 0])
    assert stage.fetch() == ([], [])
    stage.change(A, delayed_until_ms=0)
    assert stage.fetch() == ([0], [])


def test_a_partition_out_of_range_or_held_back_is_left_out_whatever_is_put():
    stage = Stage(A, B, C)
    stage.follower.out_of_range[stage.state(A)] = None
    stage.follower.held_back[stage.state(B)] = None
    for each in (A, B):
        stage.change(each, fetch_offset=2)
    assert stage.fetch() == ([2], [])


def test_nothing_is_fetched_without_partitions_or_if_all_are_left_out():
    stage = Stage()
    assert stage.follower.next_fetch() is None
    stage.add(A, is_truncating=True)
    assert stage.follower.next_fetch() is None


def test_a_partition_without_a_log_is_not_named():
    stage = Stage(A, B)
    del stage.logs[A]
    assert stage.fetch() == ([1], [])


def test_an_answer_that_was_not_used_is_asked_for_again():
    stage = Stage(A, B)
    stage.fetch()
    stage.follower.name_again(stage.change(A))
    assert stage.fetch() == ([0], [])
    stage.change(A)
    assert stage.fetch() == ([], [])


def test_throttled_partitions_out_of_sync_are_held_back_while_the_quota_is_exceeded():
    stage = Stage(A, B)
    stage.change(B, lag=0)
    exceeded = [True]
    quota = SimpleNamespace(
        is_active=True, holds_back=lambda _, *, is_in_sync: exceeded[0] and not is_in_sync
    )
    stage.follower.hold_back(quota)
    assert stage.fetch() == ([1], [])
    exceeded[0] = False
    stage.follower.hold_back(quota)
    assert stage.fetch() == ([0], [])


# ---- partitions that come and go ---------------------------------------------------------------------------


def test_a_forgotten_partition_leaves_no_trace_and_may_come_back():
    stage = Stage(A, B)
    state = stage.change(A, delayed_until_ms=9)
    stage.follower.out_of_range[state] = stage.follower.held_back[state] = None
    assert stage.follower.forget(A) is state
    assert stage.follower.forget(A) is None
    assert (len(stage.follower), list(stage.follower.delayed), list(stage.follower.gone)) == (1, [], [])
    stage.add(A)
    assert stage.fetch() == ([1, 0], [])


def test_a_partition_that_comes_back_before_the_next_fetch_is_named_if_it_differs():
    stage = Stage(A, B)
    stage.fetch()
    stage.add(A)
    stage.add(B, offset=4)
    assert stage.fetch() == ([1], [])


def test_a_topic_that_is_created_again_is_another_one():
    stage = Stage(A)
    stage.fetch()
    stage.add(A, OTHER_ID)
    fetch = stage.follower.next_fetch()
    assert fetch is not None
    assert (list(fetch.asked), fetch.forgotten) == ([OTHER_ID.raw], {ID.raw: [0]})


# ---- the session -------------------------------------------------------------------------------------------


def test_a_session_counts_its_fetches_and_begins_again_after_a_failure():
    stage = Stage(A)
    seen: list[tuple[int, int]] = []

    def fetch() -> None:
        made = stage.follower.next_fetch()
        assert made is not None
        seen.append((made.session_id, made.session_epoch))

    fetch()
    stage.follower.answered(SESSION)
    fetch()
    stage.follower.answered(SESSION)
    fetch()
    stage.follower.failed(is_unknown=False)
    fetch()
    stage.follower.answered(8)
    fetch()
    stage.follower.failed(is_unknown=True)
    fetch()
    stage.follower.answered(0)
    fetch()
    assert seen == [(0, 0), (7, 1), (7, 2), (7, 0), (8, 1), (0, 0), (0, 0)]


# ---- answers that are left to the owner --------------------------------------------------------------------


def test_an_answer_is_dropped_for_a_partition_that_is_unknown_or_leaves_the_session():
    stage = Stage(A, B, C)
    stage.fetch()
    stage.change(A, delayed_until_ms=5)
    stage.change(B, is_truncating=True)
    stage.follower.forget(C)
    answers = [(ID.raw, number, PartitionAnswer(1, 0, None)) for number in range(4)]
    assert stage.follower.take([*answers, (OTHER_ID.raw, 0, None)], 0, 64) == 5
    assert stage.decided == []


def test_an_answer_to_a_fetch_from_before_a_change_ends_the_session():
    stage = Stage(A)
    stage.fetch()
    stage.change(A, fetch_offset=4)
    stage.follower.take([(ID.raw, 0, PartitionAnswer(1, 0, None))], 0, 64)
    assert stage.decided == []
    fetch = stage.follower.next_fetch()
    assert fetch is not None
    assert (fetch.session_id, fetch.session_epoch) == (SESSION, 0)


def test_a_step_takes_only_some_answers_and_says_where_the_rest_begins():
    stage = Stage(A, B, C)
    stage.fetch()
    answers = [(ID.raw, number, "a message") for number in range(3)]
    assert stage.follower.take(answers, 0, 2) == 2
    assert stage.decided == [(A, "a message"), (B, "a message")]
    assert stage.follower.take(answers, 2, 2) == 3
    assert stage.follower.take([], 0, 2) == 0


def test_a_declined_answer_is_counted_by_its_reason():
    stage = Stage(A)
    stage.fetch()
    stage.logs[A].update(log_end_offset=3)
    answer = PartitionAnswer(1, 0, None)
    stage.follower.take([(ID.raw, 0, answer)], 0, 64)
    assert stage.decided == [(A, answer)]
    counts = {name: stage.follower.declined(number) for number, name in enumerate(PARTITIONS_DECLINED)}
    assert counts == {**dict.fromkeys(PARTITIONS_DECLINED, 0), "log end": 1}
    with pytest.raises(IndexError):
        stage.follower.declined(len(PARTITIONS_DECLINED))


# ---- beside Python -----------------------------------------------------------------------------------------

PARTITIONS = 2
# The clock of Replicas.
NOW_MS = 1_600_000_000_000
SETTINGS = {"segment.bytes": 1_500, "unclean.leader.election.enable": True}


class World:
    """Three brokers whose followers take answers natively, or all of them as messages, by Python."""

    def __init__(self, *, is_native: bool, with_disks: bool) -> None:
        self.is_native = is_native
        self.leader = 1
        self.sequence = 0
        # Of producer 11, in the open transaction of each partition.
        self.in_transaction = [0] * PARTITIONS
        with self.way():
            self.at = Replicas(partitions=PARTITIONS, settings=SETTINGS, with_disks=with_disks)

    def way(self) -> AbstractContextManager[object]:
        if self.is_native:
            return nullcontext()
        return mock.patch.object(EncodedFetch, "read", EncodedFetch.read_message)

    def append(self, number: int, records: bytes) -> None:
        self.at.manager(self.leader).append(TopicPartition("t", number), records, required_acks=1)

    def write(self, number: int, count: int) -> None:
        """Append records of a transaction."""
        values = [b"%d" % n for n in range(count)]
        sequence = self.in_transaction[number]
        fields = {"producer_id": 11, "producer_epoch": 0, "base_sequence": sequence, "now_ms": NOW_MS}
        self.append(number, build(values, transactional=True, **fields))
        self.in_transaction[number] += count

    def end(self, number: int, *, commit: bool) -> None:
        """End the transaction of producer 11."""
        marker = EndTransactionMarker(commit, coordinator_epoch=0)
        records = build_end_transaction_marker(marker, producer_id=11, producer_epoch=0, timestamp_ms=NOW_MS)
        origin = AppendOrigin.COORDINATOR
        at = TopicPartition("t", number)
        self.at.manager(self.leader).append(at, records, required_acks=1, origin=origin)

    def followers(self) -> list[Follower]:
        managers = [self.at.manager(each) for each in self.at.ids]
        return [fetcher._follower for manager in managers for fetcher in manager.fetchers]

    def states(self) -> list[Any]:
        """Return all that an answer may change."""
        fetchers = [
            (
                [
                    (at, state.fetch_offset, state.leader_epoch, state.last_fetched_epoch, state.lag)
                    for at, state in follower.by_partition.items()
                ],
                [len(each) for each in (follower.truncating, follower.delayed, follower.out_of_range)],
                follower.appending,
            )
            for follower in self.followers()
        ]
        partitions = [
            self.at.partition(broker, number) for broker in self.at.ids for number in range(PARTITIONS)
        ]
        return [fetchers, *(contents(each) for each in partitions)]

    def declined(self) -> set[str]:
        return {
            name
            for number, name in enumerate(PARTITIONS_DECLINED)
            if any(follower.declined(number) for follower in self.followers())
        }


def contents(partition: Partition) -> Any:
    log = partition.local_log
    return (
        partition.isr,
        log.high_watermark,
        log.last_stable_offset,
        [bytes(each) for each in log.batches(log.log_start_offset)],
        [segment.base_offset for segment in log.local.segments],
        log.epochs.entries,
        log.producers.map_end_offset,
        {key: repr(entry) for key, entry in log.producers.active_producers.items()},
        log.producers.first_undecided_offset,
        [log.local.transaction_index(each).entries() for each in log.local.segments],
    )


def step(world: World, chance: random.Random) -> None:
    """Do one thing that the seed chooses, the same in every world."""
    at, number = world.at, chance.randrange(PARTITIONS)
    values = [b"v" * chance.randrange(200) for _ in range(chance.randint(1, 3))]
    match chance.randrange(20):
        case 0:
            world.leader = chance.choice(at.ids)
            at.elect(world.leader)
        case 1:
            at.notify(at.controller.partitions[A], [chance.choice(at.ids)])
        case 2:
            follower = at.partition(chance.choice(at.ids), number)
            if not follower.is_leader:
                log = follower.local_log
                log.truncate_to(max(log.high_watermark, log.log_end_offset - 2))
        case 3:
            at.partition(world.leader, number).local_log.roll()
        case 4:
            at.manager(world.leader).delete_records({TopicPartition("t", number): chance.randrange(30)})
        case 5:
            listed = chance.choice((["*"], []))
            at.manager(chance.choice(at.ids)).quotas.follower.set_throttled("t", listed, 2)
        case 6:
            broker = chance.choice(at.ids)
            level = chance.choice(("page_cache", "fsync_quorum"))
            log = at.partition(broker, number).local_log
            log.configure(log.config.replace({"durability": level}))
        case 7:
            at.cluster.cut(*chance.sample(at.ids, 2))
        case 8:
            at.cluster.heal_all()
        case 9 | 10 | 11:
            at.pass_time(chance.choice((1, 30, 1_000)))
        case 12 | 13 | 14:
            made = build(values, producer_id=9, producer_epoch=0, base_sequence=world.sequence, now_ms=NOW_MS)
            world.sequence += len(values)
            world.append(number, made)
        case 15 | 16:
            world.write(number, len(values))
        case 17:
            world.end(number, commit=True)
        case 18:
            world.end(number, commit=False)
        case _:
            world.append(number, batch(*values))


@pytest.mark.parametrize("with_disks", [False, True], ids=["in the caller's turn", "by a disk thread"])
@pytest.mark.parametrize("seed", range(12))
def test_logs_and_states_are_those_that_python_makes(seed: int, *, with_disks: bool) -> None:
    worlds = [World(is_native=is_native, with_disks=with_disks) for is_native in (True, False)]
    for number in range(60):
        for world in worlds:
            with world.way():
                step(world, random.Random(1_000 * seed + number))
                if number % 3:
                    world.at.settle()
        native, python = (world.states() for world in worlds)
        assert native == python, f"after step {number}"
    assert worlds[0].declined()


def test_the_random_steps_meet_the_reasons_to_decline() -> None:
    met: set[str] = set()
    for seed in range(16):
        world = World(is_native=True, with_disks=bool(seed % 2))
        for number in range(60):
            step(world, random.Random(1_000 * seed + number))
            world.at.settle()
        met |= world.declined()
    assert met >= {"log end", "quota", "durability", "core"}, met


# ---- what happens while the disk is at work ----------------------------------------------------------------


def in_flight(records: bytes = b"") -> Replicas:
    """Return brokers whose follower, broker 2, has an append in flight."""
    at = Replicas(brokers=2, with_disks=True)
    # The first record begins the leader epoch, which is not left to the disk.
    at.manager(1).append(A, batch(b"first"), required_acks=1)
    at.pass_time(1_000)
    at.manager(1).append(A, records or batch(b"a"), required_acks=1)
    queue = at.partition(2).queue
    assert queue is not None
    for _ in range(1_000):
        at.cluster.scheduler.step()
        if queue.in_flight:
            break
    assert isinstance(queue.in_flight[0], FollowedAppend)
    return at


def test_a_durability_that_comes_meanwhile_counts_for_the_append() -> None:
    at = in_flight()
    log = at.partition(2).local_log
    log.configure(log.config.replace({"durability": "fsync_quorum"}))
    at.pass_time(1_000)
    assert (log.log_end_offset, log.flush_offset, log.high_watermark) == (2, 2, 2)


def test_readers_of_committed_data_stop_before_a_transaction_that_is_being_appended() -> None:
    fields = {"producer_id": 11, "producer_epoch": 0, "base_sequence": 0, "now_ms": NOW_MS}
    at = in_flight(build([b"a"], transactional=True, **fields))
    log = at.partition(2).local_log
    queue = at.partition(2).queue
    assert queue is not None
    # The disk thread is done, and the leader's high watermark arrives before its report.
    queue.wait()
    assert log.log_end_offset == 2
    log.maybe_increment_high_watermark(2)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    at.pass_time(1_000)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    assert log.producers.first_undecided_offset == 1


def test_an_append_that_the_queue_gives_up_leaves_the_fetcher_at_work() -> None:
    at = in_flight()
    partition = at.partition(2)
    assert partition.queue is not None
    at.manager(2).appends.finish(partition.queue.give_up(CorruptMessage("given up")))
    [fetcher] = at.manager(2).fetchers
    assert fetcher._follower.appending == 0
    at.manager(1).append(A, batch(b"b"), required_acks=1)
    at.pass_time(5_000)
    assert partition.log_end_offset == at.partition(1).log_end_offset == 3


def test_a_partition_that_leaves_its_fetcher_meanwhile_takes_nothing_over() -> None:
    at = in_flight()
    [fetcher] = at.manager(2).fetchers
    fetcher.remove_partitions([A])
    at.pass_time(1_000)
    assert (at.partition(2).log_end_offset, at.partition(2).high_watermark) == (2, 1)
    assert fetcher._follower.appending == 0
