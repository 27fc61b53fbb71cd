"""A member of a streams group that sends the heartbeats of Kafka Streams and does no work."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kreplica.cli.group import Groups
from kreplica.common.errors import CoordinatorLoadInProgress
from kreplica.common.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    Topology,
)
from kreplica.common.wire import error_of
from tests.support.polling import wait_until

MEMBER_ID = "member-1"


class StreamsMember:
    """Joins with one stateless subtopology, "0", that reads `topic`; it has all its tasks then."""

    def __init__(self, bootstrap: str, group_id: str, topic: str, tasks: int) -> None:
        self._groups = Groups(bootstrap)
        self._group_id = group_id
        self._coordinator = self._groups.coordinator(group_id)
        subtopology = Subtopology(
            subtopology_id="0",
            source_topics=(topic,),
            source_topic_regex=(),
            state_changelog_topics=(),
            repartition_sink_topics=(),
            repartition_source_topics=(),
            copartition_groups=(),
        )
        answer = self._beat(
            0,
            rebalance_timeout=timedelta(minutes=1),
            topology=Topology(epoch=0, subtopologies=(subtopology,)),
            active_tasks=(),
            standby_tasks=(),
            warmup_tasks=(),
            process_id="process",
            client_tags=(),
        )
        self._epoch = answer.member_epoch
        self._tasks: tuple[TaskIds, ...] = answer.active_tasks or ()
        wait_until(lambda: self._has(tasks), "tasks")

    def _has(self, tasks: int) -> bool:
        answer = self._beat(self._epoch, **self._owned())
        self._epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self._tasks = answer.active_tasks
        return sum(len(each.partitions) for each in self._tasks) == tasks

    def _owned(self) -> dict[str, Any]:
        owned = tuple(
            TaskIds(subtopology_id=each.subtopology_id, partitions=each.partitions) for each in self._tasks
        )
        return {"active_tasks": owned, "standby_tasks": (), "warmup_tasks": ()}

    def close(self) -> None:
        """Leave the group."""
        self._beat(-1)
        self._groups.close()

    def _beat(self, epoch: int, **declared: Any) -> Any:
        request = StreamsGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=MEMBER_ID,
            member_epoch=epoch,
            endpoint_information_epoch=0,
            **declared,
        )
        answers: list[Any] = []

        def is_answered() -> bool:
            answer = self._groups.ask_newest(self._coordinator, request, (0,))
            error = error_of(answer.error_code, answer.error_message)
            if isinstance(error, CoordinatorLoadInProgress):
                return False
            if error is not None:
                raise error
            answers.append(answer)
            return True

        wait_until(is_answered, "the coordinator has loaded the group")
        return answers[0]


def streams_group_is_shown_reset_and_deleted(
    run: Callable[..., Any], member: StreamsMember, group_id: str, topic: str
) -> None:
    """Go with `kreplica group` through the life of a group that has this member only, and no offsets.

    `run(*arguments)` runs kreplica. The topic has two partitions.
    """

    def facts(command: str, *arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
        result = run("group", command, *arguments, "--json")
        assert result.exit_code == exit_code, (result.output, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def state() -> object:
        return facts("describe", group_id)[0]["state"]

    def offsets() -> list[int]:
        return [each["committed_offset"] for each in facts("describe", group_id)[1:]]

    [listed] = facts("list", "--type", "streams")
    assert (listed["group_id"], listed["type"], listed["protocol_type"]) == (group_id, "streams", "streams")
    wait_until(lambda: state() == "Stable", "stable")
    head, shown = facts("describe", group_id, "--members")
    assert (head["type"], head["members"], head["protocol"]) == ("streams", 1, "sticky")
    assert (shown["member_id"], shown["protocol"]) == (MEMBER_ID, "streams")
    assert shown["partitions"] == shown["target_partitions"] == ["0_0", "0_1"]
    owned = facts("describe", group_id)[1:]
    assert [(each["topic"], each["partition"]) for each in owned] == [(topic, 0), (topic, 1)]
    assert [each["member_id"] for each in owned] == [MEMBER_ID, MEMBER_ID]
    reset = ("reset-offsets", group_id, "--topic", topic)
    facts(*reset, "--to-latest", "--execute", exit_code=1)  # it has a member
    facts("delete", group_id, "--execute", exit_code=1)
    member.close()
    assert state() == "Empty"
    planned = [each["new_offset"] for each in facts(*reset, "--to-latest")]
    assert sum(planned) == 20
    assert offsets() == []
    facts(*reset, "--to-latest", "--execute")
    assert offsets() == planned
    facts(*reset, "--to-earliest", "--execute")
    assert offsets() == [0, 0]
    facts(*reset, "--shift-by", "1", "--execute")
    shifted = [min(1, end) for end in planned]  # it stays within the log
    assert offsets() == shifted
    facts("delete-offsets", group_id, "--topic", f"{topic}:0")
    assert offsets() == shifted
    facts("delete-offsets", group_id, "--topic", f"{topic}:0", "--execute")
    assert offsets() == shifted[1:]
    facts("delete", group_id)
    assert state() == "Empty"
    facts("delete", group_id, "--execute")
    assert facts("list", "--type", "streams") == []
