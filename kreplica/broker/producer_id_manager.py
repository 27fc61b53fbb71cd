"""ProducerIdManager: gives producers ids that nobody else has, out of blocks that the controller hands out.

One block is asked for at a time; producers that come meanwhile wait for it (KIP-730). Thread rule: `generate`
from any thread; the rest runs in the loop, which owns the state.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse

from kreplica.common.controller_requests import ControllerRequests
from kreplica.common.errors import CoordinatorLoadInProgress, TransactionalIdAuthorizationFailed
from kreplica.common.future import Future, resolved, then
from kreplica.common.ports import Loop, Transport
from kreplica.common.wire import NO_THROTTLE, error_of

# How long an answer is waited for, and how soon another is asked for after a refusal.
REQUEST_TIMEOUT_MS = 2_000
RETRY_BACKOFF_MS = 20
# Whoever waits so long is told to come again.
PATIENCE_MS = 10_000


class ProducerIdManager:
    """One broker's. `broker_epoch()`: that of its registration; `controller()`: whom to ask, if known."""

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
        self._requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_BACKOFF_MS,
        )
        # The loop's own:
        self._next = self._end = 0
        self._waiting: deque[Future[int]] = deque()
        self._is_asking = False

    def generate(self) -> Future[int]:
        """An id; the future fails with CoordinatorLoadInProgress where no controller gives any."""
        future: Future[int] = Future()
        self._loop.post(partial(self._give, future))
        return future

    def handle_init_producer_id(self, request: InitProducerIdRequest) -> Future[InitProducerIdResponse]:
        """InitProducerId (22) of a producer without transactions; one with them is refused."""
        if request.transactional_id is not None:
            return resolved(_response(ErrorCode(TransactionalIdAuthorizationFailed.code)))
        return then(
            self.generate(),
            lambda producer_id: _response(ErrorCode.none, producer_id, 0),
            lambda _: _response(ErrorCode(CoordinatorLoadInProgress.code)),
        )

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
        if self._waiting and not self._is_asking:
            self._is_asking = True
            self._requests.ask(self._request, self._take)

    def _request(self) -> AllocateProducerIdsRequest | None:
        if not self._waiting:
            self._is_asking = False
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
        self._is_asking = False
        self._serve()
        return False

    def _expire(self, future: Future[int]) -> None:
        if not future.done():
            self._waiting.remove(future)
            future.set_exception(CoordinatorLoadInProgress("no controller gives producer ids now"))


def _response(error_code: ErrorCode, producer_id: int = -1, epoch: int = -1) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error_code, producer_id=producer_id, producer_epoch=epoch
    )
