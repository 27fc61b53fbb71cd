"""One machine under a virtual clock: its loop, and a transport whose responses a test gives."""

from __future__ import annotations

import random
from typing import Any

from kreplica.common.future import Future
from kreplica.sim.scheduler import Incarnation, SimScheduler, VirtualClock, VirtualTime


class VirtualMachine:
    """A `loop` and a `clock`; `pass_time` runs what is due."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.scheduler = SimScheduler(self.time, random.Random(1), shuffle=False)
        self.clock = VirtualClock(self.time)
        self._life = Incarnation(1)
        self.loop = self.scheduler.loop(self._life, "loop")

    def settle(self) -> None:
        """Run everything that needs no time."""
        self.scheduler.run_due()

    def pass_time(self, duration_ms: int) -> None:
        self.scheduler.run_for(duration_ms)

    def stand_still(self, duration_ms: int) -> None:
        """Let time pass in which the machine does nothing, as if suspended."""
        self.scheduler.pause(self._life)
        self.scheduler.run_for(duration_ms)
        self.scheduler.resume(self._life)
        self.settle()


class AnsweringTransport:
    """A Transport whose requests a test answers: (receiver, request, future) in `sent`."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any, Future[Any]]] = []
        self.timeouts_ms: list[int] = []  # of all requests

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        assert timeout_ms > 0
        future: Future[Any] = Future()
        self.sent.append((node_id, request, future))
        self.timeouts_ms.append(timeout_ms)
        return future
