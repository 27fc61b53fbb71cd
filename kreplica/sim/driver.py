"""RandomDriver: a cluster under load and faults, all drawn from one seed, with every invariant checked.

It is also the controller's will: it fences brokers that are gone, elects leaders among those in sync, rarely
one that is not, and hands its decisions out, to each broker after a delay of its own. Power is cut only from
brokers whose loss the in-sync replicas can bear, so that no acknowledged value may be lost. At the end
everything is healed, and the replicas must become equal. Thread rule: one thread.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kreplica.common.config import LogConfig
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim import client
from kreplica.sim.broker_factory import LOG_CONFIG, broker_factory
from kreplica.sim.cluster import SimCluster
from kreplica.sim.invariants.checker import INVARIANTS, InvariantChecker
from kreplica.sim.invariants.invariant import Invariant
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import LinkConditions
from kreplica.sim.scheduler import NANOSECONDS_PER_MS

CONDITIONS = LinkConditions(delay_us=(100, 4_000), loss=0.005)
REPLICA_CONFIG = ReplicaConfig(
    replica_lag_time_max_ms=400,
    replica_fetch_wait_max_ms=50,
    replica_fetch_backoff_ms=50,
    replica_socket_timeout_ms=300,
    replica_high_watermark_checkpoint_interval_ms=200,
)
SESSION_TIMEOUT_MS = 200
PRODUCE_TIMEOUT_MS = 500


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run is like. Faults come every `fault_every_ms` on average, client operations
    `operation_every_ms`."""

    brokers: int = 3
    partitions: int = 1
    min_insync_replicas: int = 2
    operation_every_ms: int = 4
    fault_every_ms: int = 50
    unclean: float = 0.1


class RandomDriver:
    """One run. `counts` tells what has happened in it."""

    def __init__(
        self,
        seed: int,
        workload: Workload | None = None,
        invariants: Sequence[type[Invariant]] = INVARIANTS,
    ) -> None:
        self.workload = workload or Workload()
        self.counts: Counter[str] = Counter()
        self.cluster = SimCluster(broker_factory(REPLICA_CONFIG), seed=seed, conditions=CONDITIONS)
        self.checker = InvariantChecker(self.cluster, invariants)
        self.controller = self.cluster.controller
        self.controller.on_change = self._isr_changed
        self._random = self.cluster.random
        self._values = 0
        self._positions: Counter[TopicPartition] = Counter()
        self._stopping = False
        self._begin()

    def run(self, events: int = 2_000) -> None:
        """Let so many events happen, then heal, and see that all becomes well. Raises InvariantViolated."""
        scheduler = self.cluster.scheduler
        self._later(self.workload.operation_every_ms, "client", "operation", self._operate)
        self._later(self.workload.fault_every_ms, "fault", "fault", self._fault)
        while scheduler.events < events:
            if scheduler.step() is None:
                raise AssertionError("nothing is left to happen")
        self._heal()
        if not scheduler.run_until(self._is_well, limit_ms=20_000):
            facts = "; ".join(str(view) for view in self.checker.view.partitions.values())
            error = InvariantViolated("Liveness", f"20 s after all faults: {facts}")
            error.add_note(f"seed {self.cluster.seed}")
            raise error
        self._compare()

    # ---- beginning and end --------------------------------------------------------------------------------

    def _begin(self) -> None:
        workload, cluster = self.workload, self.cluster
        ids = list(range(1, workload.brokers + 1))
        for broker_id in ids:
            cluster.add_broker(broker_id)
            cluster.start(broker_id)
        config: LogConfig = LOG_CONFIG.replace({"min.insync.replicas": workload.min_insync_replicas})
        self.controller.add_topic("t", config)
        for broker_id in ids:
            cluster.program(broker_id).log_manager.set_config("t", config)
        for index in range(workload.partitions):
            first = index % len(ids)
            state = self.controller.create(TopicPartition("t", index), ids[first:] + ids[:first])
            self._hand_out(state)
        self.checker.check()

    def _heal(self) -> None:
        self._stopping = True
        self.cluster.network.set_conditions(LinkConditions(delay_us=(100, 1_000)))
        for broker_id, broker in self.cluster.brokers.items():
            broker.flush_us = 0
            # Who waits for an answer that was lost learns it now, not after its timeout.
            self.cluster.network.disconnect(broker_id)
            if broker.is_alive and broker.is_paused:
                broker.resume()
            if not broker.is_alive:
                self._start(broker_id)
            elif broker_id in self.controller.fenced:
                self._unfence(broker_id, broker.life)

    def _is_well(self) -> bool:
        for view in self.checker.view.partitions.values():
            leader, decided = view.leader, view.decided
            if leader is None or decided is None or len(decided.isr) < len(decided.replicas):
                return False
            ends = {replica.log_end for replica in view.replicas.values()}
            marks = {replica.high_watermark for replica in view.replicas.values()}
            if ends != marks or len(ends) > 1:
                return False
        return True

    def _compare(self) -> None:
        for view in self.checker.view.partitions.values():
            self.counts["truncations"] += sum(replica.truncations for replica in view.replicas.values())
            logs = {broker_id: replica.log for broker_id, replica in view.replicas.items()}
            contents = {
                broker_id: [bytes(batch) for batch in log.batches(log.log_start_offset)]
                for broker_id, log in logs.items()
            }
            first, *others = contents.values()
            if any(other != first for other in others):
                raise InvariantViolated("Equal", f"the replicas are not byte-equal at the end; {view}")

    # ---- clients ------------------------------------------------------------------------------------------

    def _later(self, mean_ms: int, kind: str, summary: str, action: Callable[[], None]) -> None:
        delay_ms = self._random.expovariate(1 / mean_ms)
        self.cluster.scheduler.add(kind, summary, action, delay_ns=int(delay_ms * NANOSECONDS_PER_MS))

    def _operate(self) -> None:
        if self._stopping:
            return
        self._later(self.workload.operation_every_ms, "client", "operation", self._operate)
        partition = self._random.choice(list(self.controller.partitions))
        if self._random.random() < 0.7:
            self._produce(partition)
        else:
            self._consume(partition)

    def _produce(self, partition: TopicPartition) -> None:
        # A client may not have heard of the present leader.
        believed = self.controller.partitions[partition].leader
        receiver = self._random.choice((believed, believed, believed, 1 + self._random.randrange(3)))
        if receiver == NO_LEADER:
            return
        values = []
        for _ in range(1 + self._random.randrange(3)):
            self._values += 1
            values.append(b"%d" % self._values)
        acks = self._random.choice((-1, -1, -1, 1))
        request = client.ProduceRequest(partition, values, acks, PRODUCE_TIMEOUT_MS)
        epoch = self.checker.view.partitions[partition].unclean_epoch
        answer = self.cluster.send(receiver, request, timeout_ms=2 * PRODUCE_TIMEOUT_MS)
        answer.add_done_callback(self.checker.watched(partial(self._produced, request, epoch)))

    def _produced(self, request: client.ProduceRequest, unclean_epoch: int, answer: Future[Any]) -> None:
        outcome = client.produced(answer)
        self.counts["refused" if outcome.error else "acked"] += 1
        view = self.checker.view.partitions[request.topic_partition]
        # What a leader acknowledged before it heard of an unclean election may be void.
        if outcome.error is None and request.acks == -1 and view.unclean_epoch == unclean_epoch:
            self.checker.view.acknowledged(request.topic_partition, outcome.base_offset, request.values)

    def _consume(self, partition: TopicPartition) -> None:
        state = self.controller.partitions[partition]
        if state.leader == NO_LEADER:
            return
        offset = self._positions[partition]
        request = client.fetch_request(state.topic_id, partition.partition, offset)
        epoch = self.checker.view.partitions[partition].unclean_epoch
        answer = self.cluster.send(state.leader, request, timeout_ms=PRODUCE_TIMEOUT_MS)
        answer.add_done_callback(self.checker.watched(partial(self._consumed, partition, offset, epoch)))

    def _consumed(
        self, partition: TopicPartition, offset: int, unclean_epoch: int, answer: Future[Any]
    ) -> None:
        got = client.consumed(answer, offset)
        view = self.checker.view.partitions[partition]
        if got.error is not None or view.unclean_epoch != unclean_epoch:
            self._positions[partition] = 0
        elif got.records:
            self.counts["read"] += len(got.records)
            self.checker.view.consumed(partition, got.records)
            # Now and then somebody reads from the beginning again.
            again = self._random.random() < 0.1
            self._positions[partition] = 0 if again else got.records[-1][0] + 1

    # ---- faults -------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if self._stopping:
            return
        self._later(self.workload.fault_every_ms, "fault", "fault", self._fault)
        broker_id = 1 + self._random.randrange(self.workload.brokers)
        broker = self.cluster.brokers[broker_id]
        if not broker.is_alive or broker.is_paused:
            return
        faults = (
            self._kill,
            self._power_cut,
            self._pause,
            self._cut,
            self._jump_date,
            self._slow_down,
            self._move,
        )
        self._random.choice(faults)(broker_id)

    def _kill(self, broker_id: int) -> None:
        self.counts["kills"] += 1
        self.cluster.kill(broker_id)
        self._gone(broker_id)

    def _power_cut(self, broker_id: int) -> None:
        for state in self.controller.partitions.values():
            others = [each for each in state.isr if each != broker_id]
            if broker_id in state.isr and len(others) < self.workload.min_insync_replicas - 1:
                return
        self.counts["power cuts"] += 1
        self.cluster.power_cut(broker_id, self._random)
        # It must not lead, or count, before it has fetched again what it lost (KIP-966).
        self._fence(broker_id)
        self._restart_later(broker_id)

    def _pause(self, broker_id: int) -> None:
        self.counts["pauses"] += 1
        broker = self.cluster.brokers[broker_id]
        life = broker.life
        broker.pause()
        self._gone(broker_id, restart=False)
        self._later(300, "fault", f"resume {broker_id}", partial(self._resume, broker_id, life))

    def _resume(self, broker_id: int, life: Any) -> None:
        broker = self.cluster.brokers[broker_id]
        if broker.life is life and broker.is_paused:
            broker.resume()
            self._unfence(broker_id, life)

    def _cut(self, broker_id: int) -> None:
        other = 1 + self._random.randrange(self.workload.brokers)
        if other == broker_id:
            return
        self.counts["partitions"] += 1
        network = self.cluster.network
        network.cut(broker_id, other, both_ways=self._random.random() < 0.5)
        self._later(300, "fault", f"heal {broker_id} {other}", partial(network.heal, broker_id, other))

    def _jump_date(self, broker_id: int) -> None:
        self.counts["date jumps"] += 1
        self.cluster.jump_date(broker_id, self._random.randrange(20_000) - 10_000)

    def _slow_down(self, broker_id: int) -> None:
        self.counts["slow disks"] += 1
        self.cluster.brokers[broker_id].flush_us = self._random.choice((0, 1_000, 20_000))

    def _move(self, _: int) -> None:
        """Let another replica in sync lead, as a preferred election would."""
        partition = self._random.choice(list(self.controller.partitions))
        state = self.controller.partitions[partition]
        candidates = [each for each in state.isr if each != state.leader and self._may_lead(each)]
        if candidates:
            self._elect(state, self._random.choice(candidates), state.isr)

    # ---- the controller's will ----------------------------------------------------------------------------

    def _gone(self, broker_id: int, *, restart: bool = True) -> None:
        life = self.cluster.brokers[broker_id].life
        self._later(
            SESSION_TIMEOUT_MS,
            "fault",
            f"session of {broker_id} ends",
            partial(self._expire, broker_id, life),
        )
        if restart:
            self._restart_later(broker_id)

    def _restart_later(self, broker_id: int) -> None:
        self._later(300, "fault", f"start {broker_id}", partial(self._start, broker_id))

    def _expire(self, broker_id: int, life: Any) -> None:
        broker = self.cluster.brokers[broker_id]
        if broker.life is life and (broker.is_paused or not broker.is_alive) and not self._stopping:
            self._fence(broker_id)

    def _may_lead(self, broker_id: int) -> bool:
        return self.cluster.brokers[broker_id].is_alive and broker_id not in self.controller.fenced

    def _fence(self, broker_id: int) -> None:
        self.controller.fenced.add(broker_id)
        for state in list(self.controller.partitions.values()):
            isr = tuple(each for each in state.isr if each != broker_id)
            if state.leader == broker_id:
                candidates = [each for each in state.replicas if each in isr and self._may_lead(each)]
                if candidates:
                    self._elect(state, candidates[0], isr)
                else:
                    self._elect(state, NO_LEADER, isr or state.isr)
            elif broker_id in state.isr and isr:
                self._hand_out(self.controller.decide(state.topic_partition, isr=isr))

    def _unfence(self, broker_id: int, life: Any) -> None:
        broker = self.cluster.brokers[broker_id]
        if broker.life is not life or not broker.is_alive:
            return
        self.controller.fenced.discard(broker_id)
        for state in list(self.controller.partitions.values()):
            if state.leader == NO_LEADER:
                self._elect_among_the_living(state)
        for state in self.controller.partitions.values():
            self._hand_out_to(broker_id, state)

    def _start(self, broker_id: int) -> None:
        if self.cluster.brokers[broker_id].is_alive:
            return
        self.counts["starts"] += 1
        self.cluster.start(broker_id)
        self._unfence(broker_id, self.cluster.brokers[broker_id].life)

    def _elect_among_the_living(self, state: LeaderAndIsr) -> None:
        candidates = [each for each in state.replicas if self._may_lead(each)]
        in_sync = [each for each in candidates if each in state.isr]
        if in_sync:
            self._elect(state, in_sync[0], tuple(each for each in state.isr if self._may_lead(each)))
        elif candidates and (self._stopping or self._random.random() < self.workload.unclean):
            self.counts["unclean elections"] += 1
            self._elect(state, candidates[0], (candidates[0],), unclean=True)

    def _elect(
        self, state: LeaderAndIsr, leader: int, isr: tuple[int, ...], *, unclean: bool = False
    ) -> None:
        self.counts["elections"] += 1
        self._hand_out(self.controller.elect(state.topic_partition, leader, isr, unclean=unclean))

    def _isr_changed(self, state: LeaderAndIsr) -> None:
        self.counts["ISR changes"] += 1
        # Everybody hears of it in time, as from a metadata log; the leader, too, whose answer may be lost.
        self._hand_out(state)

    def _hand_out(self, state: LeaderAndIsr) -> None:
        for broker_id in state.replicas:
            self._hand_out_to(broker_id, state)

    def _hand_out_to(self, broker_id: int, state: LeaderAndIsr) -> None:
        broker = self.cluster.brokers[broker_id]
        if not broker.is_alive:
            return
        delay_ns = self._random.randrange(20 * NANOSECONDS_PER_MS)
        told = dataclasses.replace(state, is_new=False)
        self.cluster.scheduler.add(
            "decision",
            f"{state.topic_partition} leader {state.leader} epoch {state.leader_epoch}",
            partial(self._tell, broker.program, told),
            delay_ns=delay_ns,
            incarnation=broker.life,
        )

    def _tell(self, program: Any, state: LeaderAndIsr) -> None:
        results = program.become_leader_or_follower([state], self.controller.epoch)
        for error in results.values():
            if error is not None:
                raise error
