"""ControllersWill: what the controller of a random run decides by itself, and how its word gets about.

It fences brokers that are gone, elects leaders among those in sync, or, where a topic allows it, one that is
not. Each decision comes to each broker after a delay of its own: late, twice, or after the next one. Thread
rule: one thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kreplica.common.errors import KafkaStorageError, StorageFull
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.sim.cluster import SimCluster
from kreplica.sim.observer import Observer
from kreplica.sim.scheduler import NANOSECONDS_PER_MS

# Who was deaf hears of one decision after the other, each so long after the one before at most.
HEARD_WITHIN_MS = 10


class ControllersWill:
    """`unclean_topics`: those that would rather have a leader than all that was committed. `note()` is called
    after each decision."""

    def __init__(
        self,
        cluster: SimCluster,
        observer: Observer,
        unclean_topics: Collection[str],
        note: Callable[[], None],
    ) -> None:
        self.is_calm = False  # whether the word gets about soon, and once
        self._cluster = cluster
        self._controller = cluster.controller
        self._counts = observer.counts
        self._observer = observer
        self._random = cluster.random
        self._note = note
        self._unclean_topics = unclean_topics
        # Who hears nothing now, and what was said to it meanwhile, each to one of its lives.
        self._deaf: dict[int, list[tuple[Any, LeaderAndIsr]]] = {}
        self._controller.on_change = self._isr_changed
        self._controller.on_handover = self._hand_over

    def may_lead(self, broker_id: int) -> bool:
        """Whether the broker runs, as far as the controller knows."""
        return self._cluster.brokers[broker_id].is_alive and broker_id not in self._controller.fenced

    def fence(self, broker_id: int) -> None:
        """The broker is gone: it leads nothing, and is in no ISR but where it is the last one."""
        self._controller.fenced.add(broker_id)
        for state in list(self._controller.partitions.values()):
            isr = tuple(each for each in state.isr if each != broker_id)
            if state.leader == broker_id:
                state = self.elect(state, NO_LEADER, isr or state.isr, tell=False)
                if not self._elect_among_the_living(state):
                    self.hand_out(state)
            elif broker_id in state.isr and isr:
                state = self._controller.decide(state.topic_partition, isr=isr)
                self._note()
                self._observer.decided(state)
                self.hand_out(state)

    def unfence(self, broker_id: int, life: Any) -> None:
        """The broker is there again: it learns how everything stands."""
        broker = self._cluster.brokers[broker_id]
        if broker.life is not life or not broker.is_alive:
            return
        self._controller.fenced.discard(broker_id)
        for state in list(self._controller.partitions.values()):
            if state.leader == NO_LEADER:
                self._elect_among_the_living(state)
        for state in self._controller.partitions.values():
            self._hand_out_to(broker_id, state)

    def elect(
        self,
        state: LeaderAndIsr,
        leader: int,
        isr: tuple[int, ...],
        *,
        unclean: bool = False,
        tell: bool = True,
    ) -> LeaderAndIsr:
        """Let `leader` lead in the next leader epoch."""
        same = leader in (state.leader, NO_LEADER)
        self._counts["leader epochs without a change" if same else "leader changes"] += 1
        state = self._controller.elect(state.topic_partition, leader, isr, unclean=unclean)
        self._note()
        self._observer.decided(state)
        if tell:
            self.hand_out(state)
        return state

    def deafen(self, broker_id: int) -> None:
        """From now on the broker hears of no decision."""
        self._deaf.setdefault(broker_id, [])

    def is_deaf(self, broker_id: int) -> bool:
        """Whether decisions are kept from the broker."""
        return broker_id in self._deaf

    def hear(self, broker_id: int, *, in_order: bool) -> None:
        """Now it hears of what was decided: one after the other, or only of how everything stands."""
        said = self._deaf.pop(broker_id, [])
        broker = self._cluster.brokers[broker_id]
        words = [state for life, state in said if life is broker.life]
        if not in_order:
            words = list({state.topic_partition: state for state in words}.values())
        most_ms = 0
        for state in words:
            most_ms += 1 + self._random.randrange(HEARD_WITHIN_MS)
            self._say(broker, state, most_ms, least_ms=most_ms - 1)

    def hand_out(self, state: LeaderAndIsr) -> None:
        """Let all replicas hear of the state."""
        for broker_id in state.replicas:
            self._hand_out_to(broker_id, state)

    # ---- within -------------------------------------------------------------------------------------------

    def _elect_among_the_living(self, state: LeaderAndIsr) -> bool:
        candidates = [each for each in state.replicas if self.may_lead(each)]
        in_sync = [each for each in candidates if each in state.isr]
        if in_sync:
            if self._cluster.brokers[in_sync[0]].lost_power and len(state.isr) == 1:
                self._counts["elections of a harmed replica"] += 1
            self.elect(state, in_sync[0], tuple(each for each in state.isr if self.may_lead(each)))
        elif candidates and state.topic_partition.topic in self._unclean_topics:
            self._counts["unclean elections"] += 1
            self.elect(state, candidates[0], (candidates[0],), unclean=True)
        else:
            return False
        return True

    def _hand_over(self, broker_id: int, topic_partition: TopicPartition) -> None:
        """The leader wants another one: one in sync, if there is one, or, where the topic allows it, any."""
        self._counts["handovers"] += 1
        state = self._controller.partitions[topic_partition]
        if state.leader != broker_id:
            return
        others = [each for each in state.replicas if each != broker_id and self.may_lead(each)]
        in_sync = [each for each in others if each in state.isr]
        if in_sync:
            self.elect(state, in_sync[0], state.isr)

    def _isr_changed(self, state: LeaderAndIsr) -> None:
        self._observer.isr_changed(state)
        # Everybody hears of it in time, as from a metadata log; the leader, too, whose answer may be lost.
        self.hand_out(state)

    def _hand_out_to(self, broker_id: int, state: LeaderAndIsr) -> None:
        broker = self._cluster.brokers[broker_id]
        if not broker.is_alive:
            return
        told = dataclasses.replace(state, is_new=False)
        if broker_id in self._deaf:
            self._deaf[broker_id].append((broker.life, told))
            return
        most_ms, chance = 20, self._random.randrange(20)
        if chance == 0 and not self.is_calm:
            most_ms = 200
        self._say(broker, told, most_ms)
        if chance < 3 and not self.is_calm:
            self._say(broker, told, 100)

    def _say(self, broker: Any, state: LeaderAndIsr, most_ms: int, *, least_ms: int = 0) -> None:
        least_ns, most_ns = least_ms * NANOSECONDS_PER_MS, most_ms * NANOSECONDS_PER_MS
        self._cluster.scheduler.add(
            "decision",
            f"{state.topic_partition} leader {state.leader} epoch {state.leader_epoch}",
            partial(self._tell, broker.program, state),
            delay_ns=least_ns + self._random.randrange(most_ns - least_ns),
            incarnation=broker.life,
        )

    def _tell(self, program: Any, state: LeaderAndIsr) -> None:
        known = program.replica_manager.partitions.get(state.topic_partition)
        if known is not None and state.partition_epoch < known.partition_epoch:
            self._counts["late decisions"] += 1
        results = program.become_leader_or_follower([state], self._controller.epoch)
        for error in results.values():
            # What a disk does to a log is borne, and must be made good.
            if error is not None and not isinstance(error, KafkaStorageError):
                raise error
            if isinstance(error, StorageFull) and program.log_manager.get_log(state.topic_partition) is None:
                # There was no room to make the log, so it cannot take the role until it is handed out again.
                self._hand_out_to(program.broker_id, self._controller.partitions[state.topic_partition])
