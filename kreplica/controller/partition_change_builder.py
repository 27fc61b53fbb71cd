"""PartitionChangeBuilder: the change of one partition in an open batch, and its record.

It starts as a copy of the partition. One event may change it several times; the result is one record. The
eligible leader replicas (ELR, KIP-966) follow from each change of the ISR. If the new ISR is smaller than
min.insync.replicas, replicas that were in sync or eligible before still have all committed records. They are
computed from the state before the batch, since leaders and followers never see the states in between.

The leader epoch increases with each new leader, and when replicas are removed. The leader then forgets the
progress of the removed replicas, so that a replica that is removed and added again does not count as caught
up. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kreplica.common.leader_and_isr import NO_LEADER, LeaderRecoveryState
from kreplica.common.types import Uuid
from kreplica.metadata.records import MetadataRecord, PartitionChangeRecord
from kreplica.metadata.registrations import UNASSIGNED_DIRECTORY, PartitionRegistration
from kreplica.metadata.serde import ApiMessageAndVersion

DIRECTORIES_VERSION = 1
ELR_VERSION = 2


class PartitionChangeBuilder:
    """Collects the changes of one partition; it has the fields of a PartitionRegistration."""

    def __init__(self, base: PartitionRegistration) -> None:
        self.base: PartitionRegistration | None = base
        self.replicas = base.replicas
        self.directories = base.directories
        self.isr = base.isr
        self.removing_replicas = base.removing_replicas
        self.adding_replicas = base.adding_replicas
        self.elr = base.elr
        self.last_known_elr = base.last_known_elr
        self.leader = base.leader
        self.leader_recovery_state = base.leader_recovery_state
        self.names_leader = False
        self.unclean_shutdown: frozenset[int] = frozenset()

    @classmethod
    def of_new(cls, replicas: tuple[int, ...], directories: tuple[Uuid, ...]) -> PartitionChangeBuilder:
        """Return a new partition that has replicas but no leader."""
        recovered = LeaderRecoveryState.RECOVERED
        made = cls(
            PartitionRegistration(replicas, directories, (), (), (), (), (), NO_LEADER, recovered, -1, -1)
        )
        made.base = None
        return made

    # ---- changes ------------------------------------------------------------------------------------------

    def set_leader(self, leader: int) -> None:
        """Set the leader, or NO_LEADER."""
        if leader != self.leader:
            self.leader = leader
            self.names_leader = True

    def set_isr(
        self, isr: tuple[int, ...], *, min_isr: int | None, unclean_shutdown: Collection[int] = ()
    ) -> None:
        """Set the ISR and update the eligible leader replicas.

        `min_isr`: the topic's min.insync.replicas; None if no eligible leader replicas are kept. The last
        replica in sync then stays in the ISR even if it is down. `unclean_shutdown`: brokers that may have
        lost data and are therefore not eligible.
        """
        if unclean_shutdown:
            self.unclean_shutdown = self.unclean_shutdown.union(unclean_shutdown)
        base = self.base
        if min_isr is None or base is None:
            self.isr = isr or tuple(replica for replica in self.isr if replica in self.replicas)
            self.elr = self.last_known_elr = ()
            return
        self.isr = isr
        if len(isr) >= min(min_isr, len(self.replicas)):
            self.elr = self.last_known_elr = ()
            return
        replicas = self.replicas
        self.elr = tuple(
            replica
            for replica in base.isr + base.elr
            if replica not in isr and replica in replicas and replica not in self.unclean_shutdown
        )
        # If no replica surely has all records, the last leader is the next best (KIP-966).
        if isr:
            self.last_known_elr = ()
        elif base.leader in replicas:
            self.last_known_elr = (base.leader,)
        elif base.last_known_elr:
            # The leader that this event elected may be lost again in the same event.
            self.last_known_elr = tuple(replica for replica in base.last_known_elr if replica in replicas)
        else:
            # The partition had no leader, and no member of its ISR was up. The last member to leave has as
            # much.
            self.last_known_elr = tuple(replica for replica in base.isr if replica in replicas)[:1]

    def elect(self, leader: int, isr: tuple[int, ...], *, unclean: bool, min_isr: int | None) -> None:
        """Apply the result of an election. An unclean one clears the ELR: its members' records no longer
        count.
        """
        self.set_leader(leader)
        if isr != self.isr:
            self.set_isr(isr, min_isr=min_isr)
        if unclean:
            self.elr = self.last_known_elr = ()
            self.leader_recovery_state = LeaderRecoveryState.RECOVERING

    def set_assignment(
        self,
        replicas: tuple[int, ...],
        *,
        adding: tuple[int, ...] = (),
        removing: tuple[int, ...] = (),
        directories: Sequence[tuple[int, Uuid]] = (),
    ) -> None:
        """Set the replicas, in the order of assignment. `directories`: of new replicas, if known."""
        placed = {**dict(directories), **dict(zip(self.replicas, self.directories, strict=True))}
        if not set(self.replicas) <= set(replicas):
            self.names_leader = True
        self.directories = tuple(placed.get(replica, UNASSIGNED_DIRECTORY) for replica in replicas)
        self.replicas = replicas
        self.adding_replicas = adding
        self.removing_replicas = removing
        self.elr = tuple(replica for replica in self.elr if replica in replicas)
        self.last_known_elr = tuple(replica for replica in self.last_known_elr if replica in replicas)

    # ---- the record ---------------------------------------------------------------------------------------

    def registration(self) -> PartitionRegistration:
        """Return the partition with the change. The leader epoch is higher only if the change increases
        it.
        """
        base = self.base
        return PartitionRegistration(
            self.replicas,
            self.directories,
            self.isr,
            self.removing_replicas,
            self.adding_replicas,
            self.elr,
            self.last_known_elr,
            self.leader,
            self.leader_recovery_state,
            0 if base is None else base.leader_epoch + self.names_leader,
            0 if base is None else base.partition_epoch,
        )

    def build(self, topic_id: Uuid, partition: int) -> ApiMessageAndVersion[MetadataRecord] | None:
        """Return the record to append; None if nothing has changed."""
        base, new = self.base, self.registration()
        if base is None:
            return new.to_record(topic_id, partition)
        change = base.change_to(new, topic_id, partition)
        if change is None:
            return None
        return ApiMessageAndVersion(change, _version(change))


def _version(change: PartitionChangeRecord) -> int:
    if change.eligible_leader_replicas is not None or change.last_known_elr is not None:
        return ELR_VERSION
    return 0 if change.directories is None else DIRECTORIES_VERSION
