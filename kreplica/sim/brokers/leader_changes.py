"""The controller's decisions in a random run of brokers, and leader changes in the worst circumstances.

ControllersWill decides and delivers. LeaderChanges changes leaders for no reason, or several times within
moments, in turns between two replicas that often cannot reach each other. A broker learns of decisions late,
and leads or follows meanwhile as before. LateAnswers changes leaders while a response with the point of
divergence of two logs is in flight. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator
from functools import partial
from random import Random
from typing import Any

from kreplica.common.dataclass import replace
from kreplica.common.errors import KafkaStorageError, NoReplicaOnline, StateChangeFailed, StorageFull
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.replica.remote_leader_endpoint import fetch_answers
from kreplica.sim.brokers.observer import Observer
from kreplica.sim.cluster import SimCluster
from kreplica.sim.faults import Faults
from kreplica.sim.network import LinkConditions, Message, SimNetwork

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
                state = self.elect(state, NO_LEADER, isr or state.isr, deliver=False)
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
        deliver: bool = True,
    ) -> LeaderAndIsr:
        """Elect `leader` in the next leader epoch."""
        same = leader in (state.leader, NO_LEADER)
        self._counts["leader epochs without a change" if same else "leader changes"] += 1
        state = self._controller.elect(state.topic_partition, leader, isr, unclean=unclean)
        self._note()
        self._observer.decided(state)
        if deliver:
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

    def _live(self, state: LeaderAndIsr) -> list[int]:
        return [each for each in state.replicas if self.may_lead(each)]

    def _elect_among_the_living(self, state: LeaderAndIsr) -> bool:
        unclean = state.topic_partition.topic in self._unclean_topics
        try:
            chosen = self._controller.select_leader(state, self._live(state), unclean=unclean)
        except NoReplicaOnline:
            return False
        if chosen.unclean:
            self._counts["unclean elections"] += 1
        elif self._cluster.brokers[chosen.leader].lost_power and len(state.isr) == 1:
            self._counts["elections of a harmed replica"] += 1
        self.elect(state, chosen.leader, chosen.isr, unclean=chosen.unclean)
        return True

    def _hand_over(self, broker_id: int, topic_partition: TopicPartition) -> None:
        """Replace a leader that asks for it by another replica in sync."""
        self._counts["handovers"] += 1
        state = self._controller.partitions[topic_partition]
        if state.leader != broker_id:
            return
        try:
            chosen = self._controller.select_successor(state, self._live(state))
        except StateChangeFailed:
            return
        self.elect(state, chosen.leader, chosen.isr)

    def _isr_changed(self, state: LeaderAndIsr) -> None:
        self._observer.isr_changed(state)
        # All replicas learn of it in time, as from a metadata log; also the leader, whose response may be
        # lost.
        self.hand_out(state)

    def _hand_out_to(self, broker_id: int, state: LeaderAndIsr) -> None:
        broker = self._cluster.brokers[broker_id]
        if not broker.is_alive:
            return
        decision = replace(state, is_new=False)
        if broker_id in self._deaf:
            self._deaf[broker_id].append((broker.life, decision))
            return
        most_ms, chance = 20, self._random.randrange(20)
        if chance == 0 and not self.is_calm:
            most_ms = 200
        self._say(broker, decision, most_ms)
        if chance < 3 and not self.is_calm:
            self._say(broker, decision, 100)

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


class LeaderChanges:
    """The leader changes of `cluster`, decided by `will`; `faults` are the other ones of the run.

    `restart(broker_id)` kills a broker and starts it again at once.
    """

    def __init__(
        self,
        cluster: SimCluster,
        will: ControllersWill,
        counts: Counter[str],
        random: Random,
        faults: Faults,
        restart: Callable[[int], None],
    ) -> None:
        self._cluster = cluster
        self._controller = cluster.controller
        self._will = will
        self._counts = counts
        self._random = random
        self._faults = faults
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
            self._faults.cut_link(one, other, self._random.choice(SHORT_MS))
        elif link > 0:
            self.slow_down(other, one)
        if self._random.randrange(2):
            self.notify_late(self._random.choice(state.replicas))
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

    def notify_late(self, broker_id: int) -> None:
        """Keep decisions from the broker for a while; then deliver each of them, or only the last ones."""
        self._counts["late words"] += 1
        self._will.deafen(broker_id)
        self._faults.later(
            self._random.choice(SHORT_MS), f"{broker_id} hears again", partial(self._hear, broker_id)
        )

    def hold_requests(self, _: int) -> None:
        """Hold leaders' requests at the controller for a while; often a replica that they would add is
        restarted before the response."""
        if self._controller.holds:
            return
        self._counts["slow controllers"] += 1
        self._controller.holds = True
        self._faults.later(REQUESTS_HELD_MS, "the controller answers", self._answer_requests)
        if self._random.randrange(3):
            self._look_who_is_to_join()

    def slow_down(self, sender: int, receiver: int) -> None:
        """Slow the messages from one broker to another so much that other leaders are elected meanwhile."""
        self._counts["slow answers"] += 1
        self._cluster.network.change_link(sender, receiver, delay_us=SLOW_US, in_order=False)
        self._faults.later(
            SLOW_FOR_MS, f"quicken {sender}->{receiver}", partial(self._faults.quicken, sender, receiver)
        )

    def elect(self, at: TopicPartition, leader: int) -> None:
        """Elect a replica, if it is in sync and runs."""
        state = self._controller.partitions[at]
        if leader in state.isr and self._will.may_lead(leader) and not self._will.is_calm:
            self._will.elect(state, leader, state.isr)

    # ---- internals ----------------------------------------------------------------------------------------

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


# How often, and for how long at most, a step checks its condition: shorter than a follower waits.
STEP_MS = 2
WAITS_MS = 120

Waiting = Generator[None, None, bool]


class LateAnswers:
    """The late answers of `cluster`. `elect(partition, broker_id)` elects a running replica that is in
    sync."""

    def __init__(
        self,
        cluster: SimCluster,
        counts: Counter[str],
        random: Random,
        elect: Callable[[TopicPartition, int], None],
    ) -> None:
        self._cluster = cluster
        self._counts = counts
        self._random = random
        self._elect = elect
        self._story: Generator[None, None, None] | None = None

    def strike(self, _: int) -> None:
        """Start the sequence on one partition, unless it is running on another."""
        state = self._random.choice(list(self._cluster.controller.partitions.values()))
        others = [each for each in state.isr if each != state.leader]
        if self._story is None and state.leader in state.isr and others:
            self._story = self._late(state, self._random.choice(others))
            self._go_on()

    def heal(self) -> None:
        """Deliver what is held."""
        if self._story is not None:
            self._story.close()
            self._story = None

    # ---- internals ----------------------------------------------------------------------------------------

    def _late(self, state: LeaderAndIsr, other: int) -> Generator[None, None, None]:
        at, leader = state.topic_partition, state.leader
        network = self._cluster.network
        deaf = _Held(network, lambda message: _is_answer(message, leader, other))
        late = _Held(network, lambda message: _is_answer(message, other, leader) and _parts(message, state))
        try:
            if not (yield from self._wait(lambda: self._end(leader, at) > self._end(other, at) >= 0)):
                return
            written = self._end(leader, at)
            self._elect(at, other)
            if not (yield from self._wait(lambda: bool(late.messages))):
                return
            self._elect(at, leader)
            deaf.release()
            if not (yield from self._wait(lambda: self._mark(leader, at) >= written)):
                return
            self._elect(at, self._random.choice([each for each in state.isr if each != leader]))
            if (yield from self._wait(lambda: self._follows(leader, at))):
                self._counts["late divergences"] += 1
        finally:
            deaf.release()
            late.release()

    def _wait(self, is_so: Callable[[], bool]) -> Waiting:
        for _ in range(WAITS_MS // STEP_MS):
            if is_so():
                return True
            yield
        return False

    def _go_on(self) -> None:
        if self._story is None:
            return
        try:
            next(self._story)
        except StopIteration:
            self._story = None
            return
        # This event changes nothing.
        self._cluster.scheduler.add(
            "timer", "who has heard what", self._go_on, delay_ns=STEP_MS * NANOSECONDS_PER_MS
        )

    def _partition(self, broker_id: int, at: TopicPartition) -> Any:
        program = self._cluster.brokers[broker_id].program
        partition = None if program is None else program.replica_manager.partitions.get(at)
        return None if partition is None or partition.log is None or partition.log.closed else partition

    def _end(self, broker_id: int, at: TopicPartition) -> int:
        partition = self._partition(broker_id, at)
        return -1 if partition is None else int(partition.log.log_end_offset)

    def _mark(self, broker_id: int, at: TopicPartition) -> int:
        partition = self._partition(broker_id, at)
        return -1 if partition is None or not partition.is_leader else int(partition.log.high_watermark)

    def _follows(self, broker_id: int, at: TopicPartition) -> bool:
        partition = self._partition(broker_id, at)
        return partition is not None and not partition.is_leader


class _Held:
    """Holds the messages for which `which` is true, until they are released."""

    def __init__(self, network: SimNetwork, which: Callable[[Message], bool]) -> None:
        self.messages: list[Message] = []
        self._network = network
        self._which = which
        self._end: Callable[[], None] | None = network.hold(self._holds)

    def _holds(self, message: Message) -> bool:
        is_held = self._which(message)
        if is_held:
            self.messages.append(message)
        return is_held

    def release(self) -> None:
        """Stop holding messages, and deliver the held ones."""
        if self._end is not None:
            self._end()
            self._end = None
        for message in self.messages:
            self._network.release(message)
        self.messages.clear()


def _is_answer(message: Message, sender: int, receiver: int) -> bool:
    ends = message.sender_id, message.receiver
    return not message.is_request and message.name == "Fetch" and ends == (sender, receiver)


def _parts(message: Message, state: LeaderAndIsr) -> bool:
    """Return whether the response says that logs of the partition diverge."""
    return any(
        (topic_id, number) == (state.topic_id.raw, state.topic_partition.partition)
        and answer.diverging_epoch.end_offset >= 0
        for topic_id, number, answer in fetch_answers(message.body)
    )
