"""CoordinatorSession: sends requests to the coordinator of a group or a transactional id, and retries.

If the coordinator is unavailable, still loading or has moved, the session looks it up again. Thread rule:
everything runs in the client's loop, where futures are resolved too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kreplica.client.client_config import ClientConfig
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidMetadata,
    KreplicaError,
    NotCoordinator,
    RequestTimedOut,
    StaleMemberEpoch,
    UnstableOffsetCommit,
    timed_out,
)
from kreplica.common.future import Future
from kreplica.common.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.wire import error_of

# After ELSEWHERE errors the coordinator may have moved; after NOT_YET the same one needs more time, or the
# member its new epoch.
ELSEWHERE = (NotCoordinator, CoordinatorNotAvailable, InvalidMetadata, RequestTimedOut)
NOT_YET = (CoordinatorLoadInProgress, ConcurrentTransactions, UnstableOffsetCommit, StaleMemberEpoch)
GROUP, TRANSACTION = 0, 1
NAMES = {GROUP: "group", TRANSACTION: "transactional id"}


@dataclass(slots=True, eq=False)
class _Ask:
    request: Any
    error_in: Callable[[Any], KreplicaError | None]
    answer_ms: int
    deadline_ms: int
    future: Future[Any] = field(default_factory=Future)
    last_error: BaseException | None = None


class CoordinatorSession:
    """Requests to the coordinator of `name`, a group or, with `key_type` TRANSACTION, a transactional id.

    `nodes()`: the nodes to ask for the coordinator.
    """

    def __init__(
        self,
        name: str,
        nodes: Callable[[], Sequence[int]],
        *,
        key_type: int = GROUP,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig,
    ) -> None:
        self._name = name
        self._key_type = key_type
        self._nodes = nodes
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config
        self._coordinator: int | None = None
        self._asked = 0
        self._is_looking = False
        self._waiting: list[_Ask] = []

    def ask(
        self,
        request: Any,
        error_in: Callable[[Any], KreplicaError | None],
        *,
        timeout_ms: int,
        answer_ms: int | None = None,
    ) -> Future[Any]:
        """Return the coordinator's response; retry while `error_in(response)` finds a retriable error.

        A `request` that is a function makes the message of each attempt; the error that it raises ends them.
        Retries go on for `timeout_ms`; each response may take `answer_ms` (request.timeout.ms by default).
        The future fails with other errors, and with RequestTimedOut.
        """
        patience_ms = self._config.request_timeout_ms if answer_ms is None else answer_ms
        asked = _Ask(request, error_in, patience_ms, monotonic_ms(self._clock) + timeout_ms)
        self._send(asked)
        return asked.future

    def _send(self, asked: _Ask) -> None:
        left_ms = asked.deadline_ms - monotonic_ms(self._clock)
        if left_ms <= 0:
            what = f"{NAMES[self._key_type]} {self._name}: no coordinator answered in time"
            asked.future.set_exception(timed_out(what, asked.last_error))
        elif self._coordinator is None:
            self._waiting.append(asked)
            self._look()
        else:
            node_id = self._coordinator
            try:
                request = asked.request() if callable(asked.request) else asked.request
            except KreplicaError as error:
                asked.future.set_exception(error)
                return
            reply = self._transport.send(node_id, request, timeout_ms=min(left_ms, asked.answer_ms))
            reply.add_done_callback(
                lambda done: self._loop.post(partial(self._answered, asked, node_id, done))
            )

    def _answered(self, asked: _Ask, node_id: int, reply: Future[Any]) -> None:
        error = reply.exception()
        if error is None:
            error = asked.error_in(reply.result())
        if error is None:
            asked.future.set_result(reply.result())
        elif isinstance(error, (*ELSEWHERE, *NOT_YET)):
            asked.last_error = error
            if isinstance(error, ELSEWHERE) and self._coordinator == node_id:
                self._coordinator = None
            self._loop.post_later(partial(self._send, asked), self._config.retry_backoff_ms)
        else:
            asked.future.set_exception(error)

    # ---- the coordinator ----------------------------------------------------------------------------------

    def _look(self) -> None:
        nodes = self._nodes()
        if self._is_looking:
            return
        self._is_looking = True
        if not nodes:
            self._loop.post_later(self._look_again, self._config.retry_backoff_ms)
            return
        # Another node each time: a node that is cut off from the others still answers, but with old data.
        self._asked += 1
        request = FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=(self._name,))
        node_id = nodes[self._asked % len(nodes)]
        reply = self._transport.send(node_id, request, timeout_ms=self._config.request_timeout_ms)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._found, done)))

    def _found(self, reply: Future[FindCoordinatorResponse]) -> None:
        error = reply.exception()
        if error is None:
            answer = reply.result().coordinators[0]
            error = error_of(answer.error_code, answer.error_message)
            if error is None:
                self._coordinator = answer.node_id
        if isinstance(error, KreplicaError) and not error.retriable:
            self._is_looking = False
            waiting, self._waiting = self._waiting, []
            for asked in waiting:
                asked.future.set_exception(error)
        elif error is not None:
            for asked in self._waiting:
                asked.last_error = error
            self._loop.post_later(self._look_again, self._config.retry_backoff_ms)
        else:
            self._look_again()

    def _look_again(self) -> None:
        self._is_looking = False
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            self._send(asked)
