"""LeaderChanges: the elections of a random run, in the worst circumstances, drawn from its seed.

Leaders change for no reason, or several times within moments, in turns between two replicas that often cannot
reach each other. A broker learns of decisions late, and leads or follows meanwhile as before. The controller
delays its responses to leaders. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.sim.cluster import SimCluster
from kreplica.sim.network import LinkConditions
from kreplica.sim.will import ControllersWill

MOST_TURNS = 6
# The average times between elections in turns; a follower needs a few ms to get a leader's records.
TURN_MS = (4, 15, 40)
# How long a link is cut, or a broker gets no decisions, while leaders change: for a moment, over a few turns,
# or until a replica is out of the ISR.
SHORT_MS = (15, 60, 250)
# The conditions of links during faults, and of slow links.
CONDITIONS = LinkConditions(delay_us=(100, 4_000), loss=0.005, duplication=0.005)
SLOW_US = 10_000, 140_000
SLOW_FOR_MS = 200
REQUESTS_HELD_MS = 100
LOOK_MS = 10

Later = Callable[[int, str, Callable[[], None]], None]


class LeaderChanges:
    """The leader changes of `cluster`, decided by `will`. `later(mean_ms, summary, action)` postpones an
    action.

    `restart(broker_id)` kills a broker and starts it again at once.
    """

    def __init__(
        self,
        cluster: SimCluster,
        will: ControllersWill,
        counts: Counter[str],
        random: Random,
        later: Later,
        restart: Callable[[int], None],
    ) -> None:
        self._cluster = cluster
        self._controller = cluster.controller
        self._will = will
        self._counts = counts
        self._random = random
        self._later = later
        self._restart = restart

    def heal(self) -> None:
        """Deliver all decisions now, and let the controller answer."""
        for broker_id in self._cluster.brokers:
            self._hear(broker_id)
        self._answer_requests()

    def move(self, _: int) -> None:
        """Elect another replica in sync, as a preferred election would, or the same leader in a new epoch."""
        state = self._random.choice(list(self._controller.partitions.values()))
        if state.leader in state.isr and self._will.may_lead(state.leader):
            self.elect(state.topic_partition, self._random.choice(state.isr))

    def take_turns(self, _: int) -> None:
        """Let two replicas in sync lead in turns, for moments, each perhaps without the other's records.

        The present leader is one of them. Random circumstances lead to that: they cannot reach each other, or
        one not the other, or only slowly; a replica learns late of an election; a third one leads in between.
        """
        state = self._random.choice(list(self._controller.partitions.values()))
        candidates = [each for each in state.isr if self._will.may_lead(each)]
        if state.leader not in candidates or len(candidates) < 2:
            return
        self._counts["elections in turns"] += 1
        one, other = state.leader, self._random.choice([each for each in candidates if each != state.leader])
        link = self._random.randrange(5)
        if link > 2:
            self.cut(one, other, self._random.choice(SHORT_MS))
        elif link > 0:
            self.slow_down(other, one)
        if self._random.randrange(2):
            self.tell_late(self._random.choice(state.replicas))
        mean_ms, after_ms = self._random.choice(TURN_MS), 0.0
        for number in range(1 + self._random.randrange(MOST_TURNS)):
            after_ms += self._random.expovariate(1 / mean_ms)
            leader = (other, one)[number % 2]
            if self._random.randrange(3) == 0:
                leader = self._random.choice(candidates)
            self._cluster.scheduler.add(
                "fault",
                f"{leader} is to lead {state.topic_partition}",
                partial(self.elect, state.topic_partition, leader),
                delay_ns=int(after_ms * NANOSECONDS_PER_MS),
            )

    def tell_late(self, broker_id: int) -> None:
        """Keep decisions from the broker for a while; then deliver each of them, or only the last ones."""
        self._counts["late words"] += 1
        self._will.deafen(broker_id)
        self._later(self._random.choice(SHORT_MS), f"{broker_id} hears again", partial(self._hear, broker_id))

    def hold_requests(self, _: int) -> None:
        """Hold leaders' requests at the controller for a while; often a replica that they would add is
        restarted before the response."""
        if self._controller.holds:
            return
        self._counts["slow controllers"] += 1
        self._controller.holds = True
        self._later(REQUESTS_HELD_MS, "the controller answers", self._answer_requests)
        if self._random.randrange(3):
            self._look_who_is_to_join()

    def cut(self, one: int, other: int, mean_ms: int) -> None:
        """Cut the link between two brokers in one direction or both, and restore it later."""
        both_ways = self._random.random() < 0.5
        self._counts["two-way partitions" if both_ways else "one-way partitions"] += 1
        network = self._cluster.network
        network.cut(one, other, both_ways=both_ways)
        self._later(mean_ms, f"heal {one} {other}", partial(network.heal, one, other))

    def slow_down(self, sender: int, receiver: int) -> None:
        """Slow the messages from one broker to another so much that other leaders are elected meanwhile."""
        self._counts["slow answers"] += 1
        self._cluster.network.change_link(sender, receiver, delay_us=SLOW_US, in_order=False)
        self._later(SLOW_FOR_MS, f"quicken {sender}->{receiver}", partial(self._quicken, sender, receiver))

    def elect(self, at: TopicPartition, leader: int) -> None:
        """Elect a replica, if it is in sync and runs."""
        state = self._controller.partitions[at]
        if leader in state.isr and self._will.may_lead(leader) and not self._will.is_calm:
            self._will.elect(state, leader, state.isr)

    # ---- internals ----------------------------------------------------------------------------------------

    def _quicken(self, sender: int, receiver: int) -> None:
        if not self._will.is_calm:
            self._cluster.network.change_link(
                sender, receiver, delay_us=CONDITIONS.delay_us, in_order=CONDITIONS.in_order
            )

    def _hear(self, broker_id: int) -> None:
        self._will.hear(broker_id, in_order=self._random.randrange(2) == 0)

    def _look_who_is_to_join(self) -> None:
        joining = self._controller.about_to_join()
        if joining and not self._will.is_calm:
            self._counts["restarts before joining"] += 1
            self._restart(self._random.choice(joining))
        elif self._controller.holds:
            # This event changes nothing.
            delay_ns = int(self._random.expovariate(1 / LOOK_MS) * NANOSECONDS_PER_MS)
            self._cluster.scheduler.add(
                "timer", "who is to join", self._look_who_is_to_join, delay_ns=delay_ns
            )

    def _answer_requests(self) -> None:
        self._controller.holds = False
        self._controller.answer()
