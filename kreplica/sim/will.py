"""ControllersWill: the controller's own decisions in a random run, and their delivery to brokers.

It fences brokers that are gone, and elects leaders from the ISR, or, if unclean election is enabled for the
topic, from outside it. Each decision reaches each broker after its own delay: late, twice, or after the next
one. Thread rule: one thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kreplica.common.errors import KafkaStorageError, StorageFull
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.sim.cluster import SimCluster
from kreplica.sim.observer import Observer

# A broker without news then gets one decision after the other, each at most this long after the previous one.
HEARD_WITHIN_MS = 10


class ControllersWill:
    """The decisions of the controller. `unclean_topics`: those with unclean election enabled.

    `note()` is called after each decision.
    """

    def __init__(
        self,
        cluster: SimCluster,
        observer: Observer,
        unclean_topics: Collection[str],
        note: Callable[[], None],
    ) -> None:
        self.is_calm = False  # whether decisions are delivered soon, and once
        self._cluster = cluster
        self._controller = cluster.controller
        self._counts = observer.counts
        self._observer = observer
        self._random = cluster.random
        self._note = note
        self._unclean_topics = unclean_topics
        # The brokers that get no decisions now, and the withheld decisions, each for one of the broker's
        # lives.
        self._deaf: dict[int, list[tuple[Any, LeaderAndIsr]]] = {}
        self._controller.on_change = self._isr_changed
        self._controller.on_handover = self._hand_over

    def may_lead(self, broker_id: int) -> bool:
        """Return whether the broker runs, as far as the controller knows."""
        return self._cluster.brokers[broker_id].is_alive and broker_id not in self._controller.fenced

    def fence(self, broker_id: int) -> None:
        """Fence a broker that is gone: it leads nothing, and stays in an ISR only as its last member."""
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
        """Unfence a broker that is back, and deliver the current state of everything to it."""
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
        """Elect `leader` in the next leader epoch."""
        same = leader in (state.leader, NO_LEADER)
        self._counts["leader epochs without a change" if same else "leader changes"] += 1
        state = self._controller.elect(state.topic_partition, leader, isr, unclean=unclean)
        self._note()
        self._observer.decided(state)
        if tell:
            self.hand_out(state)
        return state

    def deafen(self, broker_id: int) -> None:
        """Withhold decisions from the broker from now on."""
        self._deaf.setdefault(broker_id, [])

    def is_deaf(self, broker_id: int) -> bool:
        """Return whether decisions are withheld from the broker."""
        return broker_id in self._deaf

    def hear(self, broker_id: int, *, in_order: bool) -> None:
        """Deliver what was withheld: one decision after the other, or only the current state."""
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
        """Deliver the state to all replicas."""
        for broker_id in state.replicas:
            self._hand_out_to(broker_id, state)

    # ---- internals ----------------------------------------------------------------------------------------

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
        """Replace a leader that asks for it: by a replica in sync or, with unclean election, by any."""
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
        # All replicas learn of it in time, as from a metadata log; also the leader, whose response may be
        # lost.
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
            # A disk's effect on a log is tolerated, and must be repaired later.
            if error is not None and not isinstance(error, KafkaStorageError):
                raise error
            if isinstance(error, StorageFull) and program.log_manager.get_log(state.topic_partition) is None:
                # There was no room to create the log, so the broker takes the role when the state is
                # delivered again.
                self._hand_out_to(program.broker_id, self._controller.partitions[state.topic_partition])
