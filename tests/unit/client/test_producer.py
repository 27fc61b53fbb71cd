"""The producer over three simulated brokers: everything once, in order, whatever happens on the way."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from kreplica.client.client_config import ClientConfig
from kreplica.common import errors
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
from tests.support.clients import AT, CLIENT_NODE, Stage
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
    futures = [stage.produce(b"b"), stage.produce(b"c")]
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
    futures = [stage.produce(b"b", acks=acks), stage.produce(b"c", acks=acks)]
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
    assert isinstance(never_sent.exception().__cause__, errors.NetworkException)


def test_what_comes_after_a_batch_that_was_given_up(stage):
    stage.until_done(stage.produce(b"a"))
    for other in (1, 2, 3):
        stage.cluster.cut(CLIENT_NODE, other)
    lost = stage.produce(b"b", timeout_ms=300)
    later = stage.produce(b"c")
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
    stage = Stage(settings={"unclean.leader.election.enable": True})
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
    assert stage.until_done(stage.produce(b"a"), stage.produce(b"b")) == [0, 1]
    stage.cluster.kill(1)
    stage.elect(2, isr=[2], unclean=True)
    refreshed = stage.metadata.refresh(TOPIC)
    assert stage.cluster.scheduler.run_until(refreshed.done, 1_000)
    hold = stage.cluster.hold(lambda message: message.name == "Produce" and message.is_request)
    futures = [stage.produce(b"c"), stage.produce(b"d")]
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
        if answers and isinstance(request, ProduceRequest):
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
