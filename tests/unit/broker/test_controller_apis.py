"""What a client gets of a controller that is not, or no longer, the active one."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.broker.controller_apis import REFUSALS, ControllerApis
from kreplica.broker.request_context import IN_PROCESS
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import NotController, PolicyViolation
from kreplica.common.future import Future, failed
from kreplica.common.messages.administration import (
    CreatableTopic,
    CreateTopicsRequest,
    UpdateFeaturesRequest,
)


class Controller:
    """A controller whose events fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def append_write_event(self, _name: str, _operation: Any) -> Future[Any]:
        return failed(self.error)


CREATE = CreateTopicsRequest(
    topics=(CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=()),)
)
UPDATE = UpdateFeaturesRequest(feature_updates=(), validate_only=False)


def apis(error: Exception) -> ControllerApis:
    return ControllerApis(Controller(error))  # type: ignore[arg-type]


@pytest.mark.parametrize("request_", [CREATE, UPDATE], ids=["charged for partitions", "another one"])
def test_a_request_that_is_retried_fails_if_the_controller_is_replaced(request_: Any) -> None:
    retried = IN_PROCESS._replace(is_retried=True)
    answer = apis(NotController("node 1 is not the active controller")).handle(request_, retried)
    assert isinstance(answer.exception(0), NotController)


def test_another_one_is_answered() -> None:
    answer = apis(NotController("node 1 is not the active controller")).handle(CREATE).result(0)
    assert [each.error_code for each in answer.topics] == [ErrorCode.not_controller]
    assert type(CREATE) in REFUSALS


def test_another_error_is_the_answer_of_a_request_that_is_retried_too() -> None:
    retried = IN_PROCESS._replace(is_retried=True)
    answer = apis(PolicyViolation("no")).handle(CREATE, retried).result(0)
    assert [each.error_code for each in answer.topics] == [ErrorCode.policy_violation]
