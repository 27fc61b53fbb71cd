"""Topics that are created because a client asked for them: each once, in bounded requests, logged once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kreplica.broker.auto_topic_creation_manager import MOST_UNDER_WAY, AutoTopicCreationManager
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import NetworkException
from kreplica.common.future import Future
from kreplica.common.messages.administration import CreatableTopicResult, CreateTopicsResponse


class Stage:
    """A controller that the test answers for; tasks run at once."""

    def __init__(self):
        self.controller = 7
        self.sent = []
        self.manager = AutoTopicCreationManager(lambda: self.controller, transport=self, loop=self)

    def post(self, task):
        task()

    def send(self, node_id, request, *, timeout_ms):
        assert node_id == self.controller
        assert timeout_ms > 0
        assert {(each.num_partitions, each.replication_factor) for each in request.topics} == {(-1, -1)}
        self.sent.append(([each.name for each in request.topics], Future()))
        return self.sent[-1][1]

    def names(self):
        return [names for names, _ in self.sent]

    def answer(self, error=ErrorCode.none):
        names, future = self.sent.pop(0)
        topics = tuple(
            CreatableTopicResult(name=name, error_code=error, error_message="m", topic_id=None, configs=())
            for name in names
        )
        future.set_result(CreateTopicsResponse(throttle_time=timedelta(0), topics=topics))


@pytest.fixture
def stage():
    return Stage()


def test_a_topic_is_asked_for_once_until_there_is_an_answer(stage):
    stage.manager.create(["a", "a", "b"])
    stage.manager.create(["b", "c"])
    assert stage.names() == [["a", "b"], ["c"]]
    stage.answer()
    stage.manager.create(["a"])
    assert stage.names() == [["c"], ["a"]]


def test_without_a_known_controller_no_request_is_sent(stage):
    stage.controller = None
    stage.manager.create(["a"])
    stage.controller = 7
    stage.manager.create(["a"])
    assert stage.names() == [["a"]]


def test_a_flood_of_names_is_bounded(stage):
    stage.manager.create(f"t{number}" for number in range(2 * MOST_UNDER_WAY))
    stage.manager.create(["one more"])
    assert [len(names) for names in stage.names()] == [MOST_UNDER_WAY]
    stage.answer()
    stage.manager.create(["one more"])
    assert stage.names() == [["one more"]]


def test_without_an_answer_it_may_be_asked_for_again(stage):
    stage.manager.create(["a"])
    stage.sent.pop()[1].set_exception(NetworkException("cut"))
    stage.manager.create(["a"])
    assert stage.names() == [["a"]]


def test_a_topic_that_cannot_be_created_is_logged_once(stage, caplog):
    for error in (ErrorCode.invalid_replication_factor,) * 3 + (ErrorCode.topic_already_exists,):
        stage.manager.create(["a"])
        stage.answer(error)
    assert caplog.messages == [
        "could not create topic 'a', which a client asked for: invalid_replication_factor: m"
    ]
