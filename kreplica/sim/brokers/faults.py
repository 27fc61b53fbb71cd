"""BrokerFaults: the faults of a random run of brokers, with a scripted controller that they also disturb.

Besides the faults that all clusters have: leaders change for no reason, decisions and answers arrive late, a
broker is the only one left, a disk fails for a moment. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

from kreplica.common.dataclass import replace
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.log.file_names import LOG_SUFFIX
from kreplica.sim.brokers.leader_changes import CONDITIONS, ControllersWill, LateAnswers, LeaderChanges
from kreplica.sim.cluster import SimCluster
from kreplica.sim.faults import CHANGES, FLUSHES, PassingFault, ReplicaFaults

SESSION_TIMEOUT_MS = 80
RESTART_MS = 10


class BrokerFaults(ReplicaFaults):
    """The faults of `cluster`; `will` notifies the controller. `straggling`: the chance that a message takes
    long."""

    CONDITIONS = CONDITIONS
    REPAIR_MS = 150
    RETRY_MS = 30
    SLOW_FLUSHES_US = (0, 1_000, 20_000)
    DATE_JUMPS_MS = range(-10_000, 10_000)
    _cluster: SimCluster

    def __init__(
        self,
        cluster: SimCluster,
        will: ControllersWill,
        counts: Counter[str],
        random: Random,
        weights: Mapping[str, int],
        straggling: float = 0.0,
    ) -> None:
        self._controller = cluster.controller
        super().__init__(
            cluster,
            counts,
            random,
            weights,
            lambda _: list(cluster.brokers),
            self._controller.partitions.values,
        )
        self._straggling = straggling
        self._will = will
        self._leaders = LeaderChanges(cluster, will, counts, random, self, self._restart)
        self._answers = LateAnswers(cluster, counts, random, self._leaders.elect)
        self.kinds |= {
            "quick restart": self._restart,
            "cut": self._cut,
            "slow link": self._slow_link,
            "slow answers": self._slow_answers,
            "passing disk error": self._fail_once,
            "rot": self._rot,
            "isolation": self._isolate,
            "move": self._leaders.move,
            "elections in turns": self._leaders.take_turns,
            "late word": self._leaders.notify_late,
            "slow controller": self._leaders.hold_requests,
            "config change": self._configure,
            "late divergence": self._answers.strike,
            "failing flush": self._fail_a_flush,
        }
        self._names, self._often = list(weights), list(weights.values())

    def begin(self) -> None:
        self.is_calm = self._will.is_calm = False
        conditions = replace(CONDITIONS, straggling=self._straggling)
        self._cluster.network.set_conditions(conditions)

    def heal(self) -> None:
        self.is_calm = self._will.is_calm = True
        self._cluster.network.set_conditions(self.CALM)
        for broker_id, broker in self._cluster.brokers.items():
            broker.flush_us = 0
            # Callers waiting for a lost answer are notified now, not after their timeout.
            self._cluster.network.disconnect(broker_id)
            self._make_room(broker_id)
            if broker.is_alive and broker.is_paused:
                broker.resume()
            if broker.is_alive and self._is_offline(broker_id):
                self._kill(broker_id)
            if not broker.is_alive:
                self._start(broker_id)
            elif broker_id in self._controller.fenced:
                self._will.unfence(broker_id, broker.life)
        self._leaders.heal()
        self._answers.heal()
        self._expect_an_operator()

    def _is_offline(self, broker_id: int) -> bool:
        program = self._cluster.program(broker_id)
        return broker_id in self.failing or bool(program.log_manager.offline_directories)

    def _drawn(self) -> str:
        return self._random.choices(self._names, self._often)[0]

    # ---- life cycle ---------------------------------------------------------------------------------------

    def _start(self, node_id: int) -> None:
        if not self._cluster.brokers[node_id].is_alive and node_id not in self._controller.fenced:
            # Its session has not ended, but its next life registers in another epoch, so the old one is over.
            self._will.fence(node_id)
        super()._start(node_id)

    def _started(self, node_id: int) -> None:
        broker = self._cluster.brokers[node_id]
        for log in broker.program.log_manager.logs():
            self._counts["recoveries stopped by rot"] += log.stopped_at is not None
        self._will.unfence(node_id, broker.life)

    def _gone(self, node_id: int) -> None:
        expire = partial(self._expire, node_id, self._cluster.brokers[node_id].life)
        self.later(SESSION_TIMEOUT_MS, f"session of {node_id} ends", expire)

    def _expire(self, broker_id: int, life: object) -> None:
        broker = self._cluster.brokers[broker_id]
        if broker.life is life and (broker.is_paused or not broker.is_alive):
            self._will.fence(broker_id)

    def _lost_power(self, node_id: int) -> None:
        # It must not lead or count before it has fetched again what it lost (KIP-966).
        self._will.fence(node_id)

    def _resume(self, node_id: int, life: object) -> None:
        broker = self._cluster.brokers[node_id]
        if broker.life is life and broker.is_paused:
            broker.resume()
            self._will.unfence(node_id, life)

    def _restart(self, broker_id: int) -> None:
        """Kill the broker, with or without its unflushed data, and restart it at once."""
        if not self._cluster.brokers[broker_id].is_alive:
            return
        self._counts["quick restarts"] += 1
        self._random.choice((self._kill, self._power_cut))(broker_id)
        self.later(RESTART_MS, f"start {broker_id}", partial(self._start, broker_id))

    # ---- disks --------------------------------------------------------------------------------------------

    def _fail_once(self, broker_id: int) -> None:
        """Make the disk refuse one or two changes or flushes, of any file or of one log's.

        It then works again, but its directory is offline.
        """
        self._counts["passing disk errors"] += 1
        refused = self._random.choice((CHANGES, FLUSHES, (*CHANGES, *FLUSHES)))
        logs = [f"/{log.topic_partition}/" for log in self._cluster.program(broker_id).log_manager.logs()]
        where = self._random.choice(("/", *sorted(logs)))
        times = 1 + self._random.randrange(2)
        self._fail(broker_id, PassingFault(refused, where, times))

    def _fail_a_flush(self, broker_id: int) -> None:
        """Make the disk refuse to flush a segment of a log that is flushed before appends are acknowledged.

        The disk then works again. Pages it lost stay lost, except those written next.
        """
        logs = [log for log in self._cluster.program(broker_id).log_manager.logs() if _is_flushed(log)]
        if logs and broker_id not in self.failing:
            self._counts["flushes that failed"] += 1
            where = f"/{self._random.choice(logs).topic_partition}/"
            self._fail(broker_id, PassingFault(FLUSHES, where, 1, LOG_SUFFIX))
        elif broker_id in self.failing:
            self._replace_later(broker_id)

    def _replace_disk(self, node_id: int, life: object) -> None:
        broker = self._cluster.brokers[node_id]
        if broker.life is life and broker.is_alive and not self.is_calm:
            self._counts["offline directories"] += len(broker.program.log_manager.offline_directories)
            self._power_cut(node_id)

    def _rot(self, broker_id: int) -> None:
        if broker_id not in self.failing:
            self._bits.rot(broker_id)

    # ---- links --------------------------------------------------------------------------------------------

    def _cut(self, broker_id: int) -> None:
        other = self._random.choice(self._ids)
        if other != broker_id:
            self.cut_link(broker_id, other, 300)

    def _slow_link(self, broker_id: int) -> None:
        self._slow_links(broker_id, self._others(broker_id))

    def _slow_answers(self, broker_id: int) -> None:
        self._leaders.slow_down(broker_id, self._random.choice(self._others(broker_id)))

    def _isolate(self, broker_id: int) -> None:
        """Cut a broker off from the others until it is out of all ISRs.

        Often the others then go down, so that it is the only broker left.
        """
        self._cut_off(broker_id, self._others(broker_id), 400)
        if self._random.randrange(2):
            self.later(300, f"all but {broker_id} go down", partial(self._kill_others, broker_id))

    def _kill_others(self, broker_id: int) -> None:
        if self.is_calm:
            return
        for other, broker in self._cluster.brokers.items():
            if other != broker_id and broker.is_alive:
                self._kill(other)

    # ---- administrators -----------------------------------------------------------------------------------

    def _configure(self, _: int) -> None:
        """Change min.insync.replicas."""
        self._counts["config changes"] += 1
        name = self._random.choice(list(self._controller.topics))
        topic = self._controller.topics[name]
        config = topic.config.replace({"min.insync.replicas": self._random.choice((1, 2, 2, 3))})
        self._controller.topics[name] = topic._replace(config=config)
        for broker in self._cluster.brokers.values():
            if broker.is_alive:
                broker.program.log_manager.configs.change({name: config})

    def _elect_past_rot(self, state: LeaderAndIsr) -> None:
        others = [each for each in state.replicas if each != state.leader and self._will.may_lead(each)]
        if others:
            self._counts["elections past rot"] += 1
            leader = max(others, key=lambda each: self._bits.end_of(each, state.topic_partition))
            self._will.elect(state, leader, (leader,), unclean=True)


def _is_flushed(log: Any) -> bool:
    return bool(log.config.durability != "page_cache")
