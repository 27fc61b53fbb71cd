"""BrokerStory: a readable account of a random run of brokers under a scripted controller.

As sim.story, plus the controller's decisions and the clients' requests. Thread rule: one thread.
"""

from __future__ import annotations

from typing import Any

from kreplica.common.future import Future
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.sim import client
from kreplica.sim.driver import RandomDriver
from kreplica.sim.story import Story


class BrokerStory(Story):
    """Records the story of `driver`, which has not run yet."""

    def __init__(self, driver: RandomDriver) -> None:
        super().__init__(driver.cluster)
        self._controller = driver.cluster.controller
        self._known: dict[TopicPartition, LeaderAndIsr] = dict(self._controller.partitions)
        self._send = driver.cluster.send
        driver.cluster.send = self._sent  # type: ignore[method-assign]
        self._tell_before(driver.will, "deafen", "{0} hears of no decision".format)
        self._will, self._hear = driver.will, driver.will.hear
        driver.will.hear = self._heard  # type: ignore[method-assign]

    def _sent(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        answer = self._send(broker_id, request, timeout_ms=timeout_ms)
        if not isinstance(request, client.ProduceRequest):
            return answer
        values = ",".join(value.lstrip(b"0").decode() or "0" for value in request.values) or "a marker"
        acks = "all" if request.acks == -1 else request.acks
        self.tell(f"produce {values} to {request.topic_partition} at {broker_id}, acks={acks}")
        return self._told(answer, values, _appended)

    def _heard(self, broker_id: int, *, in_order: bool) -> None:
        if self._will.is_deaf(broker_id):
            what = "each decision" if in_order else "how everything stands"
            self.tell(f"{broker_id} hears of {what}")
        self._hear(broker_id, in_order=in_order)

    def _look(self) -> None:
        for at, state in self._controller.partitions.items():
            if state is not self._known.get(at):
                self._known[at] = state
                isr = ",".join(map(str, state.isr))
                self.tell(f"controller: {at}: leader {state.leader} in epoch {state.leader_epoch}, ISR {isr}")
        super()._look()


def _appended(made: client.Produced) -> str:
    if made.error is not None:
        return type(made.error).__name__
    return "sent" if made.base_offset < 0 else f"acknowledged at offset {made.base_offset}"
