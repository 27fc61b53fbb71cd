"""AutoTopicCreationManager: has topics made that a client asked for and nobody made.

It is Kafka's auto.create.topics.enable. Nobody waits for it: who asked is told that there is no such topic,
and asks again. A topic gets num.partitions partitions and default.replication.factor replicas, those of the
controller. How many are under way is bounded, since any client may name any topic. Thread rule: `create` from
any thread posts; the rest runs in the loop, which owns the state.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.errors import ErrorCode

from kreplica.common.future import Future
from kreplica.common.ports import Loop, Transport

LOGGER = logging.getLogger(__name__)

CREATE_TIMEOUT_MS = 30_000
# So many topics may be on their way; of others nobody hears until there is room.
MOST_UNDER_WAY = 100
BY_DEFAULT = -1
# What is no failure: somebody else was sooner, or the controller is another one by now.
EXPECTED = frozenset({ErrorCode.none, ErrorCode.topic_already_exists, ErrorCode.not_controller})


class AutoTopicCreationManager:
    """One broker's. `controller()`: the node id of the active controller, None where it is not known."""

    def __init__(self, controller: Callable[[], int | None], *, transport: Transport, loop: Loop) -> None:
        self._controller = controller
        self._transport = transport
        self._loop = loop
        self._under_way: set[str] = set()
        # What was told of a topic that could not be made, to tell it once.
        self._told: dict[str, str] = {}

    def create(self, names: Iterable[str]) -> None:
        """Have these topics made; their names are lawful, and this broker knows none of them."""
        self._loop.post(partial(self._create, tuple(names)))

    def _create(self, names: tuple[str, ...]) -> None:
        controller = self._controller()
        new = [name for name in dict.fromkeys(names) if name not in self._under_way]
        new = new[: MOST_UNDER_WAY - len(self._under_way)]
        if controller is None or not new:
            return
        self._under_way.update(new)
        request = CreateTopicsRequest(
            topics=tuple(
                CreatableTopic(
                    name=name,
                    num_partitions=BY_DEFAULT,
                    replication_factor=BY_DEFAULT,
                    assignments=(),
                    configs=(),
                )
                for name in new
            ),
            timeout=timedelta(milliseconds=CREATE_TIMEOUT_MS),
            validate_only=False,
        )
        reply = self._transport.send(controller, request, timeout_ms=CREATE_TIMEOUT_MS)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._created, new, done)))

    def _created(self, names: list[str], reply: Future[CreateTopicsResponse]) -> None:
        self._under_way.difference_update(names)
        if reply.exception() is not None:
            return  # whoever wants the topic asks again
        for topic in reply.result().topics:
            if topic.error_code in EXPECTED:
                self._told.pop(topic.name, None)
                continue
            text = f"{topic.error_code.name}: {topic.error_message}"
            if self._told.get(topic.name) != text:
                if len(self._told) >= MOST_UNDER_WAY:
                    self._told.clear()
                self._told[topic.name] = text
                LOGGER.warning("topic %r, which a client asked for, cannot be made: %s", topic.name, text)
