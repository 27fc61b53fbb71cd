"""The decisions of the state machines in memory: a broker dies, topics are created, a controller fails over.

Only the controller's time counts: appended records go into a list. Each figure is beside its minimum,
encoding the records. test_controller.py has the times to the response, with the log.
"""

import logging

import pytest

from kreplica.controller.controller_context import ControllerContext
from kreplica.controller.controller_term import StateMachines
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.metadata.serde import encode
from tests.support.controllers import ControllerStage, creatable, topics_request

LED = 10_000
MADE = 1_000
ALL = 100_000
BROKERS = range(10)


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


class Stage(ControllerStage):
    """A stage whose log keeps the records unencoded."""

    def append(self, _epoch, records):
        self.log += records
        self.batches.append(len(records))
        return len(self.log) - 1


def encode_last(stage, count):
    for record in stage.log[-count:]:
        encode(*record)


def test_broker_that_dies(row):
    """a broker that led 10,000 partitions dies, for each partition"""

    def led():
        stage = Stage()
        stage.create("orders", *[(0, 1, 2)] * LED)
        return (stage,)

    row.time(lambda stage: stage.fence(0), LED, led, rounds=5)
    (stage,) = led()
    stage.fence(0)
    assert {partition.leader_and_isr.leader for partition in stage.context.partitions.values()} == {1}
    row.beside("encoding", lambda: encode_last(stage, LED), LED)


@pytest.mark.parametrize("topics", [1, MADE])
def test_partitions_are_made(row, topics):
    """1,000 partitions made in {topics} topics, for each partition"""
    asked = topics_request(
        *(creatable(f"t{number}", (), MADE // topics, 3) for number in range(topics)),
    )

    def empty():
        return (Stage(BROKERS),)

    row.time(lambda stage: stage.control.create_topics(asked), MADE, empty)
    (stage,) = empty()
    stage.control.create_topics(asked)
    assert len(stage.context.partitions) == MADE
    row.beside("encoding", lambda: encode_last(stage, MADE + topics), MADE)


def test_fail_over(row):
    """a new controller of 100,000 partitions finds their states, for each partition"""
    stage = Stage(BROKERS)
    for number in range(ALL // LED):
        stage.create(f"t{number}", *[tuple((place + each) % 10 for each in range(3)) for place in range(LED)])

    def take_over(metadata):
        context = ControllerContext(metadata, 9)
        StateMachines(context, stage.append, StateChangeLogger(1), stage.random).startup()

    row.time(take_over, ALL, lambda: (stage.context.metadata.copy(),), rounds=3)
    assert stage.batches[-1] == LED + 1
