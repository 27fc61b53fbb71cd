"""AutoTopicCreationManager: creates topics that a client has asked for and that do not exist.

This is Kafka's auto.create.topics.enable, and it makes the internal topics of streams groups. No request
waits for it: the client gets an error for the missing topic and asks again. Where a topic does not say, it
gets num.partitions partitions and default.replication.factor replicas, as the controller is configured. The
number of creations in progress is limited, since any client may name any topic. Thread rule: any thread may
call `create` and `create_topics`, which post; the rest runs in the loop, which owns the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from types import MappingProxyType

from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.common.messages.administration import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kreplica.common.ports import Loop, Transport

LOGGER = logging.getLogger(__name__)

CREATE_TIMEOUT_MS = 30_000
# How many topics may be in creation at a time. Others are ignored until there is room.
MOST_UNDER_WAY = 100
BY_DEFAULT = -1
# Results that are not failures: the topic was created by another request, or the controller has changed.
EXPECTED = frozenset({ErrorCode.none, ErrorCode.topic_already_exists, ErrorCode.not_controller})


class AutoTopicCreationManager:
    """Creates topics for one broker. `controller()`: the active controller's node id, None if unknown."""

    def __init__(self, controller: Callable[[], int | None], *, transport: Transport, loop: Loop) -> None:
        self._controller = controller
        self._transport = transport
        self._loop = loop
        self._under_way: set[str] = set()
        # The last message logged about each topic that could not be created, so that it is logged once.
        self._logged: dict[str, str] = {}

    def create(self, names: Iterable[str], settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """Create topics, with default settings but for these. Their names must be valid, and unknown to this
        broker.
        """
        configs = tuple(CreatableTopicConfig(name=name, value=value) for name, value in settings.items())
        self.create_topics(
            CreatableTopic(
                name=name,
                num_partitions=BY_DEFAULT,
                replication_factor=BY_DEFAULT,
                assignments=(),
                configs=configs,
            )
            for name in dict.fromkeys(names)
        )

    def create_topics(self, topics: Iterable[CreatableTopic]) -> None:
        """Create these topics. Their names must be valid, and unknown to this broker."""
        self._loop.post(partial(self._create, tuple(topics)))

    def _create(self, topics: tuple[CreatableTopic, ...]) -> None:
        controller = self._controller()
        new = [topic for topic in topics if topic.name not in self._under_way]
        new = new[: MOST_UNDER_WAY - len(self._under_way)]
        if controller is None or not new:
            return
        names = [topic.name for topic in new]
        self._under_way.update(names)
        request = CreateTopicsRequest(
            topics=tuple(new),
            timeout=timedelta(milliseconds=CREATE_TIMEOUT_MS),
            validate_only=False,
        )
        reply = self._transport.send(controller, request, timeout_ms=CREATE_TIMEOUT_MS)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._created, names, done)))

    def _created(self, names: list[str], reply: Future[CreateTopicsResponse]) -> None:
        self._under_way.difference_update(names)
        if reply.exception() is not None:
            return  # a client that needs the topic asks again
        for topic in reply.result().topics:
            if topic.error_code in EXPECTED:
                self._logged.pop(topic.name, None)
                continue
            text = f"{topic.error_code.name}: {topic.error_message}"
            if self._logged.get(topic.name) != text:
                if len(self._logged) >= MOST_UNDER_WAY:
                    self._logged.clear()
                self._logged[topic.name] = text
                LOGGER.warning("could not create topic %r, which a client asked for: %s", topic.name, text)
