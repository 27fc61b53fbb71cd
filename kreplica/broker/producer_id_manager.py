"""ProducerIdManager: gives unique ids to producers, from blocks that the controller allocates.

It requests the next block when nine tenths of the current one are used, so producers rarely wait for it
(KIP-730). No id is given twice: a block that begins below the last one is refused. Thread rule: any thread
may call `generate`, which posts; the rest runs in the loop, which owns the state.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from kreplica.common.controller_requests import ControllerRequests, OneAtATime
from kreplica.common.errors import CoordinatorLoadInProgress
from kreplica.common.future import Future
from kreplica.common.messages.controllers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kreplica.common.ports import Loop, Transport
from kreplica.common.wire import error_of

LOGGER = logging.getLogger(__name__)

# Timeout of a request for a block, and the pause before it is retried.
REQUEST_TIMEOUT_MS = 2_000
RETRY_BACKOFF_MS = 20
# How long a producer waits for an id before it gets an error, after which it retries.
PATIENCE_MS = 10_000


class ProducerIdManager:
    """Producer ids of one broker. `broker_epoch()`: of its registration; `controller()`: node id, if
    known.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        broker_epoch: Callable[[], int],
        controller: Callable[[], int | None],
        transport: Transport,
        loop: Loop,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._loop = loop
        requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_BACKOFF_MS,
        )
        self._blocks = OneAtATime(requests, self._request, self._take)
        # Owned by the loop:
        self._block = self._following = range(0)
        self._next = self._prefetch_at = 0
        self._waiting: deque[Future[int]] = deque()

    def generate(self) -> Future[int]:
        """Return a future of a new id. It fails with CoordinatorLoadInProgress if no controller allocates
        ids.
        """
        future: Future[int] = Future()
        self._loop.post(partial(self._give, future))
        return future

    # ---- in the loop --------------------------------------------------------------------------------------

    def _give(self, future: Future[int]) -> None:
        self._waiting.append(future)
        self._loop.post_later(partial(self._expire, future), PATIENCE_MS)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._has_id():
            future = self._waiting.popleft()
            self._next += 1
            future.set_result(self._next - 1)
        if self._needs_block():
            self._blocks.begin()

    def _has_id(self) -> bool:
        if self._next == self._block.stop and self._following:
            self._block, self._following = self._following, range(0)
            self._next = self._block.start
            self._prefetch_at = self._block.start + len(self._block) * 9 // 10
        return self._next < self._block.stop

    def _needs_block(self) -> bool:
        if not self._block:
            return bool(self._waiting)
        return not self._following and self._next >= self._prefetch_at

    def _request(self) -> AllocateProducerIdsRequest | None:
        if not self._needs_block():
            return None
        return AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())

    def _take(self, reply: Future[AllocateProducerIdsResponse]) -> bool:
        error = reply.exception()
        if error is None:
            error = error_of(reply.result().error_code)
        if error is not None:
            return True
        start, length = reply.result().producer_id_start, reply.result().producer_id_len
        if length <= 0 or start < self._block.stop:
            LOGGER.error(
                "the controller gave producer ids %d to %d, after %d: refused",
                *(start, start + length - 1, self._block.stop - 1),
            )
            return True
        self._following = range(start, start + length)
        self._serve()
        return False

    def _expire(self, future: Future[int]) -> None:
        if not future.done():
            self._waiting.remove(future)
            future.set_exception(CoordinatorLoadInProgress("no controller allocated producer ids in time"))
