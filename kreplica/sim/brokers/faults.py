"""Faults: the faults of a random run, drawn from its seed, and their repair after a while.

Brokers are killed or lose power, one or all. They stall; their disks become slow or full, or fail; bits rot.
Links are cut, in one direction or both, or become slow. Dates jump, and leaders change for no reason. Thread
rule: one thread.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from kreplica.common.errors import KreplicaError
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.sim.brokers.leader_changes import CONDITIONS, ControllersWill, LateAnswers, LeaderChanges
from kreplica.sim.cluster import SimCluster
from kreplica.sim.faults import DiskFaults, RotFaults
from kreplica.sim.network import LinkConditions

CALM = LinkConditions(delay_us=(100, 1_000))
SESSION_TIMEOUT_MS = 80
REPAIR_MS = 150
RESTART_MS = 10
RETRY_MS = 30
# The time after the faults until an operator looks at what does not recover without help.
OPERATOR_MS = 1_500


class Faults:
    """The faults of `cluster`; `will` notifies the controller. `weights`: how often each kind is drawn.

    `straggling`: the chance that a message takes long.
    """

    def __init__(
        self,
        cluster: SimCluster,
        will: ControllersWill,
        counts: Counter[str],
        random: Random,
        weights: Mapping[str, int],
        straggling: float = 0.0,
    ) -> None:
        self._conditions = dataclasses.replace(CONDITIONS, straggling=straggling)
        self.is_calm = True
        self._cluster = cluster
        self._controller = cluster.controller
        self._will = will
        self._counts = counts
        self._random = random
        self._disks = DiskFaults(cluster, counts, random)
        self._bits = RotFaults(cluster.brokers, lambda _: cluster.brokers, counts, random)
        self._leaders = LeaderChanges(cluster, will, counts, random, self._later, self._restart)
        self._answers = LateAnswers(cluster, counts, random, self._leaders.elect)
        self._kinds: dict[str, Callable[[int], None]] = {
            "kill": self._kill,
            "power cut": self._power_cut,
            "power cut of all": self._power_cut_all,
            "quick restart": self._restart,
            "pause": self._pause,
            "cut": self._cut,
            "slow link": self._slow_link,
            "slow answers": self._slow_answers,
            "date jump": self._jump_date,
            "slow disk": self._slow_disk,
            "full disk": self._fill_disk,
            "broken disk": self._break_disk,
            "passing disk error": self._fail_once,
            "rot": self._rot,
            "isolation": self._isolate,
            "move": self._leaders.move,
            "elections in turns": self._leaders.take_turns,
            "late word": self._leaders.tell_late,
            "slow controller": self._leaders.hold_requests,
            "config change": self._configure,
            "retention": self._retain,
            "late divergence": self._answers.strike,
            "failing flush": self._fail_a_flush,
        }
        self._drawn = list(weights), list(weights.values())

    def begin(self) -> None:
        """Start the faults."""
        self.is_calm = self._will.is_calm = False
        self._cluster.network.set_conditions(self._conditions)

    def strike(self) -> None:
        """Inject one fault, on a random broker."""
        broker_id = self._any_broker()
        broker = self._cluster.brokers[broker_id]
        if not broker.is_alive or broker.is_paused:
            return
        kinds, weights = self._drawn
        self._kinds[self._random.choices(kinds, weights)[0]](broker_id)

    def heal(self) -> None:
        """Stop the faults, and repair everything now."""
        self.is_calm = self._will.is_calm = True
        self._cluster.network.set_conditions(CALM)
        for broker_id, broker in self._cluster.brokers.items():
            broker.flush_us = 0
            # Callers waiting for a lost answer are notified now, not after their timeout.
            self._cluster.network.disconnect(broker_id)
            self._disks.make_room(broker_id)
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
        self._bits.look()
        delay_ns = OPERATOR_MS * NANOSECONDS_PER_MS
        self._cluster.scheduler.add("fault", "an operator looks", self._look_for_loss, delay_ns=delay_ns)

    def healed(self) -> None:
        """Start over after the cluster has recovered."""
        self._bits.forget_healed()

    def _is_offline(self, broker_id: int) -> bool:
        program = self._cluster.program(broker_id)
        return self._disks.is_failing(broker_id) or bool(program.log_manager.offline_directories)

    # ---- brokers ------------------------------------------------------------------------------------------

    def _kill(self, broker_id: int) -> None:
        if self._disks.is_failing(broker_id):
            # A process started afterwards would read from memory what the disk has lost.
            self._power_cut(broker_id)
            return
        self._counts["kills"] += 1
        self._cluster.kill(broker_id)
        self._gone(broker_id)

    def _power_cut(self, broker_id: int) -> None:
        self._counts["power cuts"] += 1
        self._cluster.power_cut(broker_id, self._random)
        storage = self._cluster.brokers[broker_id].storage
        self._counts["lost pages"] += storage.lost_pages
        self._counts["torn pages"] += storage.torn_pages
        # It must not lead or count before it has fetched again what it lost (KIP-966).
        self._will.fence(broker_id)
        self._later(REPAIR_MS, f"start {broker_id}", partial(self._start, broker_id))

    def _restart(self, broker_id: int) -> None:
        """Kill the broker, with or without its unflushed data, and restart it at once."""
        if not self._cluster.brokers[broker_id].is_alive:
            return
        self._counts["quick restarts"] += 1
        self._random.choice((self._kill, self._power_cut))(broker_id)
        self._later(RESTART_MS, f"start {broker_id}", partial(self._start, broker_id))

    def _power_cut_all(self, _: int) -> None:
        self._counts["outages of all"] += 1
        for broker_id, broker in self._cluster.brokers.items():
            if broker.is_alive:
                self._power_cut(broker_id)

    def _pause(self, broker_id: int) -> None:
        self._counts["pauses"] += 1
        broker = self._cluster.brokers[broker_id]
        broker.pause()
        self._gone(broker_id, restart=False)
        self._later(REPAIR_MS, f"resume {broker_id}", partial(self._resume, broker_id, broker.life))

    def _resume(self, broker_id: int, life: Any) -> None:
        broker = self._cluster.brokers[broker_id]
        if broker.life is life and broker.is_paused:
            broker.resume()
            self._will.unfence(broker_id, life)

    def _gone(self, broker_id: int, *, restart: bool = True) -> None:
        life = self._cluster.brokers[broker_id].life
        expire = partial(self._expire, broker_id, life)
        self._later(SESSION_TIMEOUT_MS, f"session of {broker_id} ends", expire)
        if restart:
            self._later(REPAIR_MS, f"start {broker_id}", partial(self._start, broker_id))

    def _expire(self, broker_id: int, life: Any) -> None:
        broker = self._cluster.brokers[broker_id]
        if broker.life is life and (broker.is_paused or not broker.is_alive):
            self._will.fence(broker_id)

    def _start(self, broker_id: int) -> None:
        broker = self._cluster.brokers[broker_id]
        if broker.is_alive:
            return
        if broker_id not in self._controller.fenced:
            # Its session has not ended, but its next life registers in another epoch, so the old one is over.
            self._will.fence(broker_id)
        self._disks.replace(broker_id)
        try:
            self._cluster.start(broker_id)
        except KreplicaError:
            if not broker.storage.full:
                raise
            # Its directory is still full, and the recovered log's checkpoints have no room.
            self._counts["starts without room"] += 1
            self._later(RETRY_MS, f"start {broker_id}", partial(self._start, broker_id))
            return
        for log in broker.program.log_manager.logs():
            self._counts["recoveries stopped by rot"] += log.stopped_at is not None
        self._will.unfence(broker_id, broker.life)

    # ---- disks --------------------------------------------------------------------------------------------

    def _slow_disk(self, broker_id: int) -> None:
        self._counts["slow disks"] += 1
        self._cluster.brokers[broker_id].flush_us = self._random.choice((0, 1_000, 20_000))

    def _fill_disk(self, broker_id: int) -> None:
        self._disks.fill(broker_id)
        self._later(REPAIR_MS, f"room for {broker_id}", partial(self._disks.make_room, broker_id))

    def _break_disk(self, broker_id: int) -> None:
        """Break the disk. The broker continues without the log directory until the machine is taken down."""
        self._disks.fail(broker_id)
        life = self._cluster.brokers[broker_id].life
        self._later(REPAIR_MS, f"another disk for {broker_id}", partial(self._take_down, broker_id, life))

    def _fail_once(self, broker_id: int) -> None:
        """Make the disk fail for a moment, which is enough to take its directory offline."""
        self._disks.fail_once(broker_id)
        self._replace_disk_later(broker_id)

    def _fail_a_flush(self, broker_id: int) -> None:
        self._disks.fail_a_flush(broker_id)
        if self._disks.is_failing(broker_id):
            self._replace_disk_later(broker_id)

    def _replace_disk_later(self, broker_id: int) -> None:
        life = self._cluster.brokers[broker_id].life
        self._later(REPAIR_MS, f"another disk for {broker_id}", partial(self._take_down, broker_id, life))

    def _take_down(self, broker_id: int, life: Any) -> None:
        broker = self._cluster.brokers[broker_id]
        if broker.life is life and broker.is_alive and not self.is_calm:
            self._counts["offline directories"] += len(broker.program.log_manager.offline_directories)
            self._kill(broker_id)

    def _rot(self, broker_id: int) -> None:
        if not self._disks.is_failing(broker_id):
            self._bits.rot(broker_id)

    # ---- links and dates ----------------------------------------------------------------------------------

    def _cut(self, broker_id: int) -> None:
        other = self._any_broker()
        if other == broker_id:
            return
        self._leaders.cut(broker_id, other, 300)

    def _slow_link(self, broker_id: int) -> None:
        """Slow a follower's link: its requests and responses take long, and arrive in any order."""
        self._counts["slow links"] += 1
        network = self._cluster.network
        others = [each for each in self._cluster.brokers if each != broker_id]
        for other in others:
            for way in ((broker_id, other), (other, broker_id)):
                network.change_link(*way, delay_us=(1_000, 80_000), in_order=False)
                self._later(200, f"quicken {way}", partial(self._quicken, way))

    def _slow_answers(self, broker_id: int) -> None:
        others = [each for each in self._cluster.brokers if each != broker_id]
        self._leaders.slow_down(broker_id, self._random.choice(others))

    def _quicken(self, way: tuple[int, int]) -> None:
        if not self.is_calm:
            self._cluster.network.change_link(*way, delay_us=CONDITIONS.delay_us, in_order=True)

    def _jump_date(self, broker_id: int) -> None:
        self._counts["date jumps"] += 1
        self._cluster.jump_date(broker_id, self._random.randrange(20_000) - 10_000)

    # ---- administrators -----------------------------------------------------------------------------------

    def _isolate(self, broker_id: int) -> None:
        """Cut a broker off from the others until it is out of all ISRs.

        Often the others then go down, so that it is the only broker left.
        """
        others = [each for each in self._cluster.brokers if each != broker_id]
        network = self._cluster.network
        for other in others:
            network.cut(broker_id, other)
            self._later(400, f"heal {broker_id} {other}", partial(network.heal, broker_id, other))
        if self._random.randrange(2):
            self._later(300, f"all but {broker_id} go down", partial(self._kill_others, broker_id))

    def _kill_others(self, broker_id: int) -> None:
        if self.is_calm:
            return
        for other, broker in self._cluster.brokers.items():
            if other != broker_id and broker.is_alive:
                self._kill(other)

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

    def _look_for_loss(self) -> None:
        """Act as an operator, who has to choose where rot destroyed what no replica can provide.

        A log whose recovery stopped at the rot cannot lead. If it is alone in the ISR, another replica is
        elected uncleanly. If the leader runs, and is the only one that had not deleted the range (after an
        unclean election), its records are deleted up to there.
        """
        for state in list(self._controller.partitions.values()):
            at = state.topic_partition
            others = [each for each in state.replicas if each != state.leader and self._will.may_lead(each)]
            if self._bits.cannot_lead(state) and others:
                self._counts["elections past rot"] += 1
                leader = max(others, key=lambda each: self._bits.end_of(each, at))
                self._will.elect(state, leader, (leader,), unclean=True)
            elif (offset := self._bits.lost_before(state)) >= 0:
                self._counts["deletions past rot"] += 1
                self._cluster.program(state.leader).replica_manager.delete_records({at: offset})

    def _retain(self, broker_id: int) -> None:
        """Apply the topics' retention on the broker."""
        self._counts["retention rounds"] += 1
        self._cluster.program(broker_id).log_manager.delete_old_segments()

    # ---- internals ----------------------------------------------------------------------------------------

    def _any_broker(self) -> int:
        return 1 + self._random.randrange(len(self._cluster.brokers))

    def _later(self, mean_ms: int, summary: str, action: Callable[[], None]) -> None:
        delay_ms = self._random.expovariate(1 / mean_ms)
        self._cluster.scheduler.add("fault", summary, action, delay_ns=int(delay_ms * NANOSECONDS_PER_MS))
