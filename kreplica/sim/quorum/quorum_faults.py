"""QuorumFaults: the faults of the machines of a quorum and of their network, one at a time.

All randomness comes from the driver's Random; faults are counted. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from kreplica.common.future import Future
from kreplica.sim.network import LinkConditions
from kreplica.sim.quorum.sim_quorum import SimQuorum

CALM = LinkConditions(delay_us=(100, 2_000))


class QuorumFaults:
    """`forget(node_id)` is called before a node ends, because its pending appends may be committed or not.

    `replace_disk()` is called as one of the faults.
    """

    def __init__(
        self,
        quorum: SimQuorum,
        random: random.Random,
        counts: Counter[str],
        forget: Callable[[int], None],
        replace_disk: Callable[[], None],
    ) -> None:
        self.quorum = quorum
        self._random = random
        self._counts = counts
        self._forget = forget
        self._all = (
            *(self._kill, self._kill, self._power_cut, self._power_cut, self._restart, self._restart),
            *(self._restart, self._split, self._cut_one_way, self._heal_network, self._heal_network),
            *(self._pause, self.resume, self.resume, self._worsen_network, self._jump_date),
            *(self._slow_disk, self._shut_down, self._lose_connections, replace_disk, replace_disk),
        )

    def strike(self) -> None:
        """Inject one random fault."""
        self._random.choice(self._all)()

    def _one(self, node_ids: list[int]) -> int | None:
        return self._random.choice(node_ids) if node_ids else None

    # ---- machines -----------------------------------------------------------------------------------------

    def _kill(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self._forget(node_id)
            self.quorum.kill(node_id, hint=self._random.random() < 0.5)
            self._counts["killed"] += 1

    def _power_cut(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self._forget(node_id)
            chance = self._random if self._random.random() < 0.7 else None
            self.quorum.machines[node_id].power_cut(chance)
            self._counts["power cuts"] += 1

    def _restart(self) -> None:
        dead = [i for i, machine in self.quorum.machines.items() if not machine.is_alive]
        node_id = self._one(dead)
        if node_id is not None:
            self.quorum.start(node_id)

    def _pause(self) -> None:
        running = [i for i in self.quorum.alive if not self.quorum.machines[i].is_paused]
        node_id = self._one(running)
        if node_id is not None:
            self.quorum.machines[node_id].pause()
            self._counts["paused"] += 1

    def resume(self) -> None:
        """Resume all paused nodes."""
        for machine in self.quorum.machines.values():
            if machine.is_alive and machine.is_paused:
                machine.resume()

    def _jump_date(self) -> None:
        machine = self._random.choice(list(self.quorum.machines.values()))
        machine.clock.jump_date(self._random.choice((-3_600_000, -50, 50, 3_600_000)))
        self._counts["dates changed"] += 1

    def _slow_disk(self) -> None:
        machine = self._random.choice(list(self.quorum.machines.values()))
        machine.flush_us = self._random.choice((0, 500, 20_000))
        self._counts["slow disks"] += 1

    def _shut_down(self) -> None:
        """Shut a node down cleanly: it hands over, then stops."""
        node_id = self._one([i for i in self.quorum.alive if not self.quorum.machines[i].is_paused])
        if node_id is None:
            return
        machine, life = self.quorum.machines[node_id], self.quorum.machines[node_id].life
        self._counts["shutdowns"] += 1

        def stop(_: Future[None]) -> None:
            # In an event of its own, not within the client's step.
            self.quorum.scheduler.add("fault", "stopped", partial(self._stop, node_id), incarnation=life)

        machine.program.client.shutdown(300).add_done_callback(stop)

    def _stop(self, node_id: int) -> None:
        self._forget(node_id)
        self.quorum.machines[node_id].stop()

    # ---- the network --------------------------------------------------------------------------------------

    def _split(self) -> None:
        """Split the nodes into two parts that cannot reach each other."""
        ids = list(self.quorum.machines)
        self._random.shuffle(ids)
        border = self._random.randrange(1, len(ids)) if len(ids) > 1 else 0
        for one in ids[:border]:
            for other in ids[border:]:
                self.quorum.network.cut(one, other)
        self._counts["partitions"] += border > 0

    def _cut_one_way(self) -> None:
        if len(self.quorum.machines) > 1:
            sender, receiver = self._random.sample(list(self.quorum.machines), 2)
            self.quorum.network.cut(sender, receiver, both_ways=False)
            self._counts["one-way cuts"] += 1

    def end(self) -> None:
        """End all faults, and start every node."""
        self.quorum.network.set_conditions(CALM)
        self.resume()
        for machine in self.quorum.machines.values():
            machine.flush_us = 0
        self.quorum.start()

    def _heal_network(self) -> None:
        self.quorum.network.heal_all()

    def _worsen_network(self) -> None:
        self.quorum.network.set_conditions(
            LinkConditions(
                delay_us=(100, self._random.choice((2_000, 20_000, 120_000))),
                loss=self._random.choice((0.0, 0.02, 0.2)),
                duplication=self._random.choice((0.0, 0.05, 0.3)),
                in_order=self._random.random() < 0.5,
            )
        )

    def _lose_connections(self) -> None:
        node_id = self._one(self.quorum.alive)
        if node_id is not None:
            self.quorum.network.disconnect(node_id)
            for other in self.quorum.alive:
                self.quorum.client(other).connection_lost(node_id)
            self._counts["connections lost"] += 1
