"""ProducerIdManager: gives unique ids to producers, from blocks that the controller allocates.

It requests one block at a time; producers that ask meanwhile wait for it (KIP-730). Thread rule: any thread
may call `generate`, which posts; the rest runs in the loop, which owns the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from kreplica.common.controller_requests import ControllerRequests, OneAtATime
from kreplica.common.errors import CoordinatorLoadInProgress
from kreplica.common.future import Future
from kreplica.common.messages.controllers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kreplica.common.ports import Loop, Transport
from kreplica.common.wire import error_of

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
        self._next = self._end = 0
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
        while self._waiting and self._next < self._end:
            future = self._waiting.popleft()
            self._next += 1
            future.set_result(self._next - 1)
        if self._waiting:
            self._blocks.begin()

    def _request(self) -> AllocateProducerIdsRequest | None:
        if not self._waiting:
            return None
        return AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())

    def _take(self, reply: Future[AllocateProducerIdsResponse]) -> bool:
        error = reply.exception()
        if error is None:
            error = error_of(reply.result().error_code)
        if error is not None:
            return True
        block = reply.result()
        self._next, self._end = block.producer_id_start, block.producer_id_start + block.producer_id_len
        self._serve()
        return False

    def _expire(self, future: Future[int]) -> None:
        if not future.done():
            self._waiting.remove(future)
            future.set_exception(CoordinatorLoadInProgress("no controller allocated producer ids in time"))
