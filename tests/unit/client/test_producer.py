"""The producer over three simulated brokers: everything once, in order, whatever happens on the way."""

from __future__ import annotations

import inspect
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from kreplica._core.records import batches
from kreplica.client.client_config import ClientConfig
from kreplica.client.producer import Producer
from kreplica.common import errors
from kreplica.common.encoded_request import message_of
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import failed, resolved
from kreplica.common.messages.data import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kreplica.common.types import TopicPartition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.network import LinkConditions
from tests.mutants.client_mutants import CLIENT_MUTANTS
from tests.mutants.mutants import built_in
from tests.support.clients import AT, CLIENT_NODE, CONFIG, Stage
from tests.support.replicas import TOPIC

OUT_OF_ORDER = ProduceResponse(
    responses=(
        TopicProduceResponse(
            name=TOPIC,
            partition_responses=(
                PartitionProduceResponse(
                    index=0,
                    error_code=ErrorCode.out_of_order_sequence_number,
                    base_offset=-1,
                    record_errors=(),
                ),
            ),
        ),
    ),
    throttle_time=timedelta(0),
)

# A batch has room for one record of one byte, with its header.
ONE_IN_EACH = replace(CONFIG, max_request_size=70)


@pytest.fixture
def stage():
    return Stage()


def test_batches_are_appended_in_order_and_their_offsets_returned(stage):
    futures = [stage.produce(b"%d" % number, b"x") for number in range(20)]
    assert stage.until_done(*futures) == list(range(0, 40, 2))
    assert futures[3].result().last_offset == 7
    stage.pass_time(1_000)
    assert stage.values(1) == stage.values(2) == [v for n in range(20) for v in (b"%d" % n, b"x")]


@pytest.mark.parametrize("acks", [0, 1])
def test_with_fewer_acks(stage, acks):
    assert stage.until_done(stage.produce(b"a", acks=acks)) == [0 if acks else -1]
    stage.pass_time(100)
    assert stage.values(1) == [b"a"]


def test_acks_are_checked(stage):
    with pytest.raises(errors.InvalidRequiredAcks):
        stage.produce(b"a", acks=2)


def test_what_is_no_record_is_refused_and_the_next_goes_on(stage):
    bad, good = stage.produce(7), stage.produce(b"a")
    assert isinstance(stage.until_done(bad, good)[0], TypeError)
    assert good.result().base_offset == 0
    assert stage.producer_ids == 1


def test_a_batch_that_is_too_large_is_refused(stage):
    future = stage.produce(bytes(2 << 20))
    assert isinstance(stage.until_done(future)[0], errors.MessageTooLarge)


def test_an_answer_that_is_lost_costs_no_duplicate(stage):
    stage.until_done(stage.produce(b"a"))
    hold = stage.cluster.hold(lambda message: message.name == "Produce" and not message.is_request)
    futures = [stage.produce_apart(b"b"), stage.produce_apart(b"c")]
    stage.pass_time(100)
    for message in stage.cluster.held():
        stage.cluster.drop(message)
    hold()
    assert stage.until_done(*futures) == [1, 2]
    assert stage.values(1) == [b"a", b"b", b"c"]


def test_a_request_that_is_lost_does_not_end_the_next(stage):
    stage.until_done(stage.produce(b"a"))
    stage.cluster.cut(CLIENT_NODE, 1)
    lost = stage.produce(b"b")
    stage.pass_time(1)
    stage.cluster.heal(CLIENT_NODE, 1)
    assert stage.until_done(lost, stage.produce(b"c")) == [1, 2]
    assert stage.values(1) == [b"a", b"b", b"c"]


def test_a_new_leader_is_found(stage):
    stage.until_done(stage.produce(b"a"))
    stage.pass_time(1_000)
    stage.cluster.kill(1)
    future = stage.produce(b"b")
    stage.pass_time(300)
    assert not future.done()
    stage.elect(2, isr=[2, 3])
    assert stage.until_done(future) == [1]
    assert stage.values(2) == [b"a", b"b"]


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_leader_that_hangs_is_not_waited_for(acks):
    stage = Stage(client=ClientConfig(request_timeout_ms=4_000, leader_check_ms=100))
    stage.until_done(stage.produce(b"a"))
    stage.pass_time(1_000)
    stage.cluster.pause(1)
    futures = [stage.produce_apart(b"b", acks=acks), stage.produce_apart(b"c", acks=acks)]
    stage.pass_time(300)
    stage.elect(2, isr=[2, 3])
    stage.pass_time(200)
    # A batch that might be appended twice is not sent to another broker as long as the first may answer.
    assert [future.done() for future in futures] == [acks == -1] * 2
    stage.cluster.resume(1)
    outcomes = stage.until_done(*futures)
    stage.pass_time(1_000)
    assert outcomes == ([1, 2] if acks == -1 else outcomes)
    if acks == -1:
        assert stage.values(2) == stage.values(1) == [b"a", b"b", b"c"]


def test_it_gives_up_in_time_and_says_what_is_known(stage):
    stage.until_done(stage.produce(b"a"))
    stage.cluster.kill(1)
    never_sent = stage.produce(b"b", timeout_ms=500)
    stage.until_done(never_sent)
    assert isinstance(never_sent.exception(), errors.RequestTimedOut)
    assert "it is unknown whether it was appended" in str(never_sent.exception())
    cause = never_sent.exception().__cause__
    assert isinstance(cause, errors.NetworkException)
    assert str(never_sent.exception()).endswith(f"; the last error was {cause!r}")


def test_what_comes_after_a_batch_that_was_given_up(stage):
    stage.until_done(stage.produce(b"a"))
    for other in (1, 2, 3):
        stage.cluster.cut(CLIENT_NODE, other)
    lost = stage.produce_apart(b"b", timeout_ms=300)
    later = stage.produce_apart(b"c")
    stage.until_done(lost)
    for other in (1, 2, 3):
        stage.cluster.heal(CLIENT_NODE, other)
    outcome = stage.until_done(later)[0]
    assert isinstance(lost.exception(), errors.RequestTimedOut)
    # The later batch was sent, too, so its outcome is unknown. The next one has another producer id.
    assert isinstance(outcome, errors.NetworkException)
    assert stage.until_done(stage.produce(b"d")) == [1]
    assert stage.producer_ids == 2


@pytest.mark.parametrize("is_on_its_way", [False, True])
def test_it_goes_on_after_an_unclean_election_took_what_it_had_sent(is_on_its_way):
    """The new leader knows the producer id, and an earlier sequence number than the next one. What was on its
    way to the leader before may be in that one's log, which another unclean election may bring back."""
    stage = Stage(client=ONE_IN_EACH, settings={"unclean.leader.election.enable": True})
    stage.until_done(stage.produce(b"a"))
    stage.pass_time(1_000)
    for other in (2, 3):
        stage.cluster.cut(1, other)
    stage.elect(1, isr=[1])
    stage.pass_time(60_000)  # until the others do not count as about to join
    lost = [stage.produce(b"b"), stage.produce(b"c")]
    assert stage.until_done(*lost) == [1, 2]
    stage.cluster.kill(1)
    futures = [stage.produce(b"d"), stage.produce(b"e")] if is_on_its_way else []
    stage.pass_time(20)
    stage.elect(2, isr=[2], unclean=True)
    if not is_on_its_way:
        refreshed = stage.metadata.refresh(TOPIC)
        assert stage.cluster.scheduler.run_until(refreshed.done, 1_000)
        futures = [stage.produce(b"d"), stage.produce(b"e")]
    outcomes = stage.until_done(*futures, stage.produce(b"f"))
    assert stage.producer_ids == 2
    if is_on_its_way:
        assert isinstance(outcomes[0], errors.OutOfOrderSequenceNumber)
        assert isinstance(outcomes[1], errors.NetworkException)
        assert outcomes[2] == 1
        assert stage.values(2) == [b"a", b"f"]
    else:
        assert outcomes == [1, 2, 3]
        assert stage.values(2) == [b"a", b"d", b"e", b"f"]


def test_a_leader_that_has_lost_all_of_a_producer_gets_its_batches_one_by_one():
    """It takes the first sequence number that comes. Were that the second batch's, it would answer the first
    one, when that is sent again, as one that it has."""
    stage = Stage(settings={"unclean.leader.election.enable": True})
    for other in (2, 3):
        stage.cluster.cut(1, other)
    stage.elect(1, isr=[1])
    stage.pass_time(60_000)
    assert stage.until_done(stage.produce_apart(b"a"), stage.produce_apart(b"b")) == [0, 1]
    stage.cluster.kill(1)
    stage.elect(2, isr=[2], unclean=True)
    refreshed = stage.metadata.refresh(TOPIC)
    assert stage.cluster.scheduler.run_until(refreshed.done, 1_000)
    hold = stage.cluster.hold(lambda message: message.name == "Produce" and message.is_request)
    futures = [stage.produce_apart(b"c"), stage.produce_apart(b"d")]
    stage.pass_time(100)
    first, *others = stage.cluster.held()
    hold()
    stage.cluster.drop(first)
    for other in others:
        stage.cluster.release(other)
    assert stage.until_done(*futures) == [0, 1]
    assert stage.values(2) == [b"c", b"d"]


@pytest.mark.parametrize("is_sent", [False, True])
def test_what_may_be_in_a_log_is_not_sent_under_another_producer_id(stage, is_sent):
    """That a leader lacks the batch does not say that no log has it."""
    stage.until_done(stage.produce(b"a"))
    stage.pass_time(1_000)
    lost = errors.NetworkException("no answer") if is_sent else errors.NodeUnreachable("not there")
    send, answers = stage.send, [resolved(OUT_OF_ORDER), failed(lost)]

    def answer(node_id, request, *, timeout_ms):
        if answers and isinstance(message_of(request), ProduceRequest):
            return answers.pop()
        return send(node_id, request, timeout_ms=timeout_ms)

    stage.send = answer
    [outcome] = stage.until_done(stage.produce(b"b"))
    if is_sent:
        assert isinstance(outcome, errors.OutOfOrderSequenceNumber)
        assert stage.values(1) == [b"a"]
    else:
        assert (outcome, stage.producer_ids) == (1, 2)


def test_it_goes_on_when_brokers_come_back_after_all_were_gone(stage):
    ids, stage.ids = stage.ids, []
    early = stage.producer.send(AT, [b"a"], timeout_ms=200)
    stage.until_done(early)
    assert isinstance(early.exception(), errors.RequestTimedOut)
    later = stage.producer.send(AT, [b"b"])
    stage.pass_time(100)
    stage.ids = ids
    assert stage.until_done(later) == [0]


def test_a_list_may_be_used_again(stage):
    records = [b"a", b"b"]
    future = stage.producer.send(AT, records)
    records.clear()
    stage.until_done(future)
    assert future.result().record_count == 2
    assert stage.until_done(stage.producer.send(AT, (b"%d" % number for number in range(3)))) == [2]


def test_too_few_in_sync_are_waited_for():
    stage = Stage(settings={"min.insync.replicas": 2})
    stage.until_done(stage.produce(b"a"))
    stage.elect(1, isr=[1])
    stage.cluster.kill(2)
    stage.cluster.kill(3)
    future = stage.produce(b"b")
    stage.pass_time(500)
    assert not future.done()
    assert stage.values(1) == [b"a"]


def test_a_topic_that_is_not_there_yet(stage):
    at = TopicPartition("later", 0)
    future = stage.producer.send(at, [b"a"])
    stage.pass_time(100)
    assert not future.done()
    stage.controller.add_topic("later", stage.controller.topics[TOPIC].config)
    stage.notify(stage.controller.create(at, stage.ids))
    assert stage.until_done(future) == [0]


@pytest.mark.parametrize("seed", range(8))
def test_over_a_bad_network_everything_is_once_and_in_order(seed):
    config = ReplicaConfig(
        replica_socket_timeout_ms=150, replica_fetch_wait_max_ms=50, replica_fetch_backoff_ms=30
    )
    stage = Stage(config=config)
    chance = random.Random(seed)
    bad = LinkConditions(delay_us=(100, 60_000), loss=0.15, duplication=0.1)
    stage.cluster.network.set_conditions(bad)
    futures = []
    for number in range(120):
        futures.append(stage.produce(b"%d" % number))
        stage.pass_time(chance.randrange(20))
        if chance.randrange(25) == 0:
            stage.elect(chance.choice(stage.controller.partitions[AT].isr))
    stage.cluster.network.set_conditions(LinkConditions())
    outcomes = stage.until_done(*futures, limit_ms=60_000)
    leader = stage.controller.partitions[AT].leader
    values = [int(value) for value in stage.values(leader)]
    assert values == sorted(set(values))
    acked = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, int)]
    assert set(acked) <= set(values)
    assert len(acked) > 60
    for number in acked:
        assert outcomes[number] in (-1, values.index(number))


# ---- batches of several appends ----------------------------------------------------------------------------

OTHER = TopicPartition(TOPIC, 1)


def produced(stage):
    """Return each produce request so far: its acks, and the values for each partition."""
    return [
        (
            request.acks,
            {
                data.index: [record.value for batch in batches(data.records) for record in batch]
                for topic in request.topic_data
                for data in topic.partition_data
            },
        )
        for _, request in stage.requests
        if isinstance(request, ProduceRequest)
    ]


def hold_answers(stage):
    """Hold the answers to produce requests; return a function that releases them."""
    stop = stage.cluster.hold(lambda message: message.name == "Produce" and not message.is_request)

    def release():
        stop()
        for message in stage.cluster.held():
            stage.cluster.release(message)

    return release


def test_appends_that_wait_are_one_batch_and_each_has_its_offsets(stage):
    stage.until_done(stage.produce(b"0"))
    futures = [stage.produce(*[b"v"] * count) for count in (1, 3, 2)]
    assert stage.until_done(*futures) == [1, 2, 5]
    assert [future.result().record_count for future in futures] == [1, 3, 2]
    assert [future.result().last_offset for future in futures] == [1, 4, 6]
    assert produced(stage)[1:] == [(-1, {0: [b"v"] * 6})]


def test_appends_made_while_a_request_is_under_way_are_the_next_batch():
    stage = Stage(client=replace(CONFIG, max_in_flight=1))
    release = hold_answers(stage)
    futures = [stage.produce_apart(b"a"), stage.produce_apart(b"b"), stage.produce_apart(b"c")]
    release()
    assert stage.until_done(*futures) == [0, 1, 2]
    assert [values for _, values in produced(stage)] == [{0: [b"a"]}, {0: [b"b", b"c"]}]


def test_an_append_is_never_in_two_batches():
    stage = Stage(client=replace(CONFIG, max_request_size=100))
    futures = [stage.produce(bytes(8), bytes(8)) for _ in range(5)]
    assert stage.until_done(*futures) == [0, 2, 4, 6, 8]
    assert [len(values[0]) for _, values in produced(stage)] == [2] * 5


def test_appends_with_other_acks_are_sent_apart_and_in_order(stage):
    stage.until_done(stage.produce(b"a"))
    futures = [stage.produce(b"%d" % n, acks=acks) for n, acks in enumerate((-1, -1, 1, 0, 1, 1, -1))]
    stage.until_done(*futures)
    stage.pass_time(100)
    assert produced(stage)[1:] == [
        (-1, {0: [b"0", b"1"]}),
        (1, {0: [b"2"]}),
        (0, {0: [b"3"]}),
        (1, {0: [b"4", b"5"]}),
        (-1, {0: [b"6"]}),
    ]
    assert stage.values(1) == [b"a", *(b"%d" % n for n in range(7))]


def test_partitions_of_one_leader_share_a_request():
    stage = Stage(partitions=2)
    stage.until_done(stage.produce(b"a"), stage.producer.send(OTHER, [b"b"]))
    stage.requests.clear()
    futures = [stage.produce(b"c"), stage.producer.send(OTHER, [b"d"]), stage.produce(b"e")]
    assert stage.until_done(*futures) == [1, 1, 2]
    assert produced(stage) == [(-1, {0: [b"c", b"e"], 1: [b"d"]})]


def test_partitions_do_not_share_a_request_that_would_be_too_large():
    stage = Stage(client=replace(CONFIG, max_request_size=200), partitions=2)
    stage.until_done(stage.produce(b"a"), stage.producer.send(OTHER, [b"b"]))
    stage.requests.clear()
    stage.until_done(stage.produce(bytes(100)), stage.producer.send(OTHER, [bytes(100)]))
    assert len(produced(stage)) == 2


def test_partitions_of_a_request_fail_and_succeed_apart():
    stage = Stage(partitions=2, settings={"max.message.bytes": 200})
    stage.until_done(stage.produce(b"a"), stage.producer.send(OTHER, [b"b"]))
    bad, good = stage.until_done(stage.produce(bytes(300)), stage.producer.send(OTHER, [b"c"]))
    assert isinstance(bad, errors.MessageTooLarge)
    assert good == 1


def test_a_batch_that_is_too_large_together_is_sent_in_parts():
    stage = Stage(settings={"max.message.bytes": 200})
    stage.until_done(stage.produce(b"a"))
    futures = [stage.produce(bytes([n]) * (300 if n == 4 else 30)) for n in range(10)]
    outcomes = stage.until_done(*futures)
    assert isinstance(outcomes.pop(4), errors.MessageTooLarge)
    assert outcomes == list(range(1, 10))
    assert stage.values(1)[1:] == [bytes([n]) * 30 for n in range(10) if n != 4]
    # From then on batches are smaller at once.
    before = len(produced(stage))
    stage.until_done(*[stage.produce(bytes(30)) for _ in range(8)])
    assert len(produced(stage)) - before <= 8


def test_batches_grow_slowly_again_after_one_was_too_large():
    stage = Stage(settings={"max.message.bytes": 2_000})
    stage.until_done(stage.produce(b"a"))
    stage.until_done(*[stage.produce(bytes(30)) for _ in range(100)])
    before, sizes = len(produced(stage)), []
    for _ in range(100):
        stage.until_done(*[stage.produce(bytes(30)) for _ in range(80)])
    for _, parts in produced(stage)[before:]:
        sizes.append(len(parts[0]))
    # Of those that have 50 records, as many as fit, a few have more and are sent again in parts.
    assert max(sizes) >= 50
    assert sum(sizes) <= 80 * 100 * 1.1


class Ending(SystemExit):
    """Ends a thread."""


def end_the_thread(_):
    raise Ending


@pytest.mark.parametrize("is_late", [False, True])
def test_a_callback_that_ends_its_thread_ends_no_other_append(is_late):
    stage = Stage(partitions=2)
    stage.until_done(stage.produce(b"a"), stage.producer.send(OTHER, [b"b"]))
    release = hold_answers(stage) if is_late else None
    ending = stage.produce(b"c", timeout_ms=50) if is_late else stage.produce(b"c")
    beside = stage.producer.send(OTHER, [b"d"])
    ending.add_done_callback(end_the_thread)
    with pytest.raises(Ending):
        stage.until_done(ending, beside)
    after = stage.produce(b"e")
    if release is not None:
        release()
    stage.until_done(beside, after)
    assert beside.exception() is None
    assert after.exception() is None


@pytest.mark.parametrize(("first", "second"), [(-1, 1), (1, -1), (1, 1)])
def test_no_append_overtakes_a_batch_that_is_sent_in_parts(first, second):
    stage = Stage(settings={"max.message.bytes": 200})
    stage.until_done(stage.produce(b"a"))
    futures = [stage.produce(bytes([n]) * 30, acks=first) for n in range(8)]
    futures += [stage.produce(b"b", acks=second), stage.produce(b"c", acks=-second)]
    assert stage.until_done(*futures) == list(range(1, 11))


def test_an_append_without_acknowledgement_is_not_lost_with_another_one():
    stage = Stage(settings={"max.message.bytes": 200})
    stage.until_done(stage.produce(b"a"))
    futures = [stage.produce(bytes([n]) * (300 if n == 4 else 30), acks=0) for n in range(10)]
    outcomes = stage.until_done(*futures)
    assert isinstance(outcomes.pop(4), errors.NetworkException)
    assert outcomes == [-1] * 9
    assert stage.values(1)[1:] == [bytes([n]) * 30 for n in range(10) if n != 4]


def test_a_batch_that_is_too_large_is_sent_in_parts_also_after_a_try_without_an_answer():
    stage = Stage(settings={"max.message.bytes": 200})
    stage.until_done(stage.produce(b"a"))
    stop = stage.cluster.hold(lambda message: message.name == "Produce" and not message.is_request)
    futures = [stage.produce(bytes([n]) * 30) for n in range(8)]
    stage.pass_time(100)
    [message] = stage.cluster.held()
    stage.cluster.drop(message)
    stop()
    assert stage.until_done(*futures) == list(range(1, 9))


def test_records_that_the_leader_refuses_fail_their_own_append_alone():
    stage = Stage(settings={"cleanup.policy": "compact"})
    futures = [stage.produce((b"k", b"%d" % n), (b"k" if n % 3 else None, b"x")) for n in range(7)]
    outcomes = stage.until_done(*futures)
    assert all(isinstance(outcomes[n], errors.InvalidRecord) for n in (0, 3, 6))
    assert [outcomes[n] for n in (1, 2, 4, 5)] == [0, 2, 4, 6]
    assert stage.values(1) == [v for n in (1, 2, 4, 5) for v in (b"%d" % n, b"x")]


def test_an_invalid_record_fails_before_it_is_sent(stage):
    bad = stage.produce(b"v", 7)
    assert isinstance(bad.exception(), TypeError)
    assert stage.until_done(stage.produce(b"a")) == [0]


def test_the_bytes_may_be_used_again(stage):
    value = bytearray(b"a")
    future = stage.produce(value)
    value[:] = b"b"
    stage.until_done(future)
    assert stage.values(1) == [b"a"]


def test_an_append_that_expires_before_it_is_sent_is_left_out_of_its_batch():
    stage = Stage(client=replace(CONFIG, max_in_flight=1))
    release = hold_answers(stage)
    first = stage.produce_apart(b"a")
    futures = [stage.produce(b"b"), stage.produce(b"c", timeout_ms=100), stage.produce(b"d")]
    stage.pass_time(99)
    assert not futures[1].done()
    stage.pass_time(2)
    assert [future.done() for future in futures] == [False, True, False]
    assert isinstance(futures[1].exception(), errors.RequestTimedOut)
    assert "it was not appended" in str(futures[1].exception())
    release()
    assert stage.until_done(first, *futures[::2]) == [0, 1, 2]
    assert stage.values(1) == [b"a", b"b", b"d"]


def test_a_batch_whose_appends_all_expire_is_not_sent():
    stage = Stage(client=replace(CONFIG, max_in_flight=1))
    release = hold_answers(stage)
    first = stage.produce_apart(b"a")
    late = [stage.produce(b"b", timeout_ms=50), stage.produce(b"c", timeout_ms=60)]
    stage.pass_time(70)
    assert [future.done() for future in late] == [True, True]
    release()
    assert stage.until_done(first, stage.produce(b"d")) == [0, 1]
    assert stage.producer_ids == 1


def test_a_batch_whose_appends_all_expire_keeps_no_memory():
    stage = Stage(client=replace(ONE_IN_EACH, max_in_flight=1))
    release = hold_answers(stage)
    first = stage.produce_apart(b"a")
    futures = [stage.produce(b"%d" % number, timeout_ms=50 if number % 3 else None) for number in range(8)]
    stage.pass_time(70)
    assert [future.done() for future in futures] == [number % 3 > 0 for number in range(8)]
    [sender] = stage.producer._senders.values()
    assert len(sender._accumulator) == 3
    release()
    stage.until_done(first, *futures[::3], stage.produce(b"z"))
    assert stage.values(1) == [b"a", b"0", b"3", b"6", b"z"]


def test_an_append_that_expires_in_flight_leaves_the_others_there(stage):
    stage.until_done(stage.produce(b"a"))
    release = hold_answers(stage)
    futures = [stage.produce(b"b"), stage.produce(b"c", timeout_ms=50), stage.produce(b"d")]
    stage.pass_time(60)
    assert [future.done() for future in futures] == [False, True, False]
    assert isinstance(futures[1].exception(), errors.RequestTimedOut)
    assert "it is unknown whether it was appended" in str(futures[1].exception())
    release()
    assert stage.until_done(*futures[::2]) == [1, 3]
    assert stage.until_done(stage.produce(b"e")) == [4]
    assert stage.values(1) == [b"a", b"b", b"c", b"d", b"e"]
    assert stage.producer_ids == 1


def test_an_append_that_expires_between_two_tries_stays_in_its_batch(stage):
    stage.until_done(stage.produce(b"a"))
    stage.pass_time(1_000)
    stage.cluster.kill(1)
    futures = [stage.produce(b"b", timeout_ms=100), stage.produce(b"c")]
    stage.pass_time(150)
    assert "it is unknown whether it was appended" in str(futures[0].exception(0))
    stage.elect(2, isr=[2, 3])
    # The batch keeps its content and its sequence numbers.
    assert stage.until_done(futures[1]) == [2]
    assert stage.values(2) == [b"a", b"b", b"c"]
    assert stage.producer_ids == 1


def test_a_later_append_may_expire_first(stage):
    stage.until_done(stage.produce(b"a"))
    for other in (1, 2, 3):
        stage.cluster.cut(CLIENT_NODE, other)
    slow = stage.produce_apart(b"b", timeout_ms=2_000)
    fast = stage.produce_apart(b"c", timeout_ms=50)
    stage.pass_time(52)
    assert (slow.done(), fast.done()) == (False, True)
    stage.pass_time(2_000)
    assert slow.done()


def test_a_batch_whose_answers_are_lost_is_stored_once(stage):
    stage.until_done(stage.produce(b"a"))
    hold = stage.cluster.hold(lambda message: message.name == "Produce" and not message.is_request)
    futures = [stage.produce(b"b"), stage.produce(b"c", b"d"), stage.produce(b"e")]
    stage.pass_time(100)
    [message] = stage.cluster.held()
    stage.cluster.drop(message)
    hold()
    assert stage.until_done(*futures) == [1, 2, 4]
    assert stage.values(1) == [b"a", b"b", b"c", b"d", b"e"]


def test_appends_of_a_batch_that_fails_have_errors_of_their_own(stage):
    stage.until_done(stage.produce(b"a"))
    for other in (1, 2, 3):
        stage.cluster.cut(CLIENT_NODE, other)
    futures = [stage.produce(b"b", timeout_ms=300), stage.produce(b"c", timeout_ms=300)]
    one, other = stage.until_done(*futures)
    assert isinstance(one, errors.RequestTimedOut)
    assert isinstance(other, errors.RequestTimedOut)
    assert one is not other
    assert one.__cause__ is not None


def test_an_interrupt_while_an_append_is_posted_does_not_hold_up_later_ones(stage):
    class InterruptedLoop:
        def post(self, _task):
            raise KeyboardInterrupt

    stage.until_done(stage.produce(b"a"))
    loop, stage.producer._loop = stage.producer._loop, InterruptedLoop()
    with pytest.raises(KeyboardInterrupt):
        stage.produce(b"b")
    stage.producer._loop = loop
    assert stage.until_done(stage.produce(b"c")) == [2]


def test_what_is_pending_is_known(stage):
    stage.until_done(stage.produce(b"a"))
    assert stage.producer.pending() == []
    release = hold_answers(stage)
    sent = stage.produce_apart(b"b")
    waiting = stage.produce(b"c")
    assert stage.producer.pending() == [sent, waiting]
    release()
    stage.until_done(sent, waiting)
    assert stage.producer.pending() == []


def test_a_thread_that_waits_runs_what_is_due_first():
    stage = Stage()
    stage.producer = Producer(
        stage.metadata,
        lambda: stage.ids,
        transport=stage,
        loop=stage.loop,
        clock=stage.clock,
        config=CONFIG,
        work=lambda: stage.pass_time(1_000),
    )
    assert stage.produce(b"a").result(0).base_offset == 0
    assert stage.produce(b"b").exception(0) is None


def test_a_program_pauses_a_moment_while_a_full_batch_waits():
    stage = Stage(client=ONE_IN_EACH)
    futures = [stage.produce(b"a")]
    assert stage.producer.pause_s == 0
    futures.append(stage.produce(b"b"))
    assert stage.producer.pause_s == 0.01
    stage.until_done(*futures)
    stage.until_done(stage.produce(b"c"))
    assert stage.producer.pause_s == 0


@pytest.mark.parametrize("seed", range(4))
def test_over_a_bad_network_each_of_many_appends_has_its_own_outcome(seed):
    config = ReplicaConfig(
        replica_socket_timeout_ms=150, replica_fetch_wait_max_ms=50, replica_fetch_backoff_ms=30
    )
    stage = Stage(config=config, partitions=2, settings={"max.message.bytes": 400})
    chance = random.Random(seed)
    bad = LinkConditions(delay_us=(100, 60_000), loss=0.15, duplication=0.1)
    stage.cluster.network.set_conditions(bad)
    sent = {at: [] for at in (AT, OTHER)}
    for number in range(300):
        at = chance.choice((AT, OTHER))
        values = [b"%d/%d" % (number, each) for each in range(1 + chance.randrange(3))]
        timeout_ms = chance.choice((400, 5_000, 5_000, 5_000))
        sent[at].append((values, stage.producer.send(at, values, timeout_ms=timeout_ms)))
        if chance.randrange(6) == 0:
            stage.pass_time(chance.randrange(40))
        if chance.randrange(60) == 0:
            stage.elect(chance.choice(stage.controller.partitions[AT].isr))
    stage.cluster.network.set_conditions(LinkConditions())
    for at in sent:
        outcomes = stage.until_done(*[future for _, future in sent[at]], limit_ms=60_000)
        stored = stage.values(stage.controller.partitions[at].leader, at.partition)
        assert len(stored) == len(set(stored))
        expected = [values for values, _ in sent[at] if values[0] in stored]
        assert stored == [value for values in expected for value in values]
        acked = 0
        for (values, _), outcome in zip(sent[at], outcomes, strict=True):
            if isinstance(outcome, int):
                acked += 1
                assert values[0] in stored
                assert outcome in (-1, stored.index(values[0]))
            elif "it was not appended" in str(outcome):
                assert values[0] not in stored
        assert acked > 30


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("give_each_the_offset_of_the_batch", test_appends_that_wait_are_one_batch_and_each_has_its_offsets),
        ("split_appends", test_an_append_is_never_in_two_batches),
        ("answer_one_of_a_failed_batch", test_appends_of_a_batch_that_fails_have_errors_of_their_own),
        ("expire_the_whole_batch", test_an_append_that_expires_in_flight_leaves_the_others_there),
        ("refuse_the_whole_batch", test_a_batch_that_is_too_large_together_is_sent_in_parts),
        ("send_what_has_expired", test_an_append_that_expires_before_it_is_sent_is_left_out_of_its_batch),
        ("send_each_partition_alone", test_partitions_of_one_leader_share_a_request),
        ("number_parts_from_the_first", test_a_batch_that_is_too_large_together_is_sent_in_parts),
    ],
)
def test_a_mutant_is_caught(name, scenario):
    takes_stage = "stage" in inspect.signature(scenario).parameters
    with built_in(CLIENT_MUTANTS[name]), pytest.raises(AssertionError):
        scenario(*([Stage()] if takes_stage else []))


def test_every_mutant_is_caught():
    [cases] = [mark.args[1] for mark in test_a_mutant_is_caught.pytestmark]
    assert {name for name, _ in cases} == CLIENT_MUTANTS.keys()
