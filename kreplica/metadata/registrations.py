"""The registered brokers, topics and partitions of the cluster, as immutable values.

They are built from metadata records and converted back to them; `merge` applies a change. The rules are those
of Kafka's registrations (KIP-500, KIP-704, KIP-858, KIP-966). `_replace` makes a changed copy, as for every
NamedTuple: creating a frozen dataclass of a dozen fields takes ten times as long, and there are hundreds of
thousands of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kreplica.common.errors import InvalidRecord
from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.message import TaggedField
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.records import (
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    Endpoint,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    SupportedFeature,
    TopicRecord,
)
from kreplica.metadata.serde import ApiMessageAndVersion, in_lowest_version

# Special directory ids (KIP-858): of a replica without a recorded directory, of one that is not assigned yet,
# and of one whose directory failed.
MIGRATING_DIRECTORY = Uuid.ZERO
UNASSIGNED_DIRECTORY = Uuid(bytes(15) + b"\x01")
LOST_DIRECTORY = Uuid(bytes(15) + b"\x02")

NO_RECOVERY_CHANGE = -1
RECOVERY_STATES = {int(state): state for state in LeaderRecoveryState}
# Where a broker without a listener is, which is reached within its process.
NOWHERE = ("", -1)
# The version of an object that came with a snapshot which does not contain versions, such as Kafka's.
UNKNOWN_VERSION = -1


class BrokerRegistration(NamedTuple):
    """A broker: its endpoints, and whether it may lead. `epoch` is the offset of its registration."""

    broker_id: int
    epoch: int
    incarnation_id: Uuid
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[SupportedFeature, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    directories: tuple[Uuid, ...] = ()
    cordoned_directories: tuple[Uuid, ...] | None = None
    is_migrating_zk_broker: bool = False
    unknown_tagged_fields: tuple[TaggedField, ...] = ()

    def address(self, listener: str = "") -> tuple[str, int] | None:
        """Return the address of the listener with that name, or None; "" is the first listener.

        A broker that has no listener at all is NOWHERE.
        """
        for each in self.endpoints:
            if listener in ("", each.name):
                return each.host, each.port
        return None if self.endpoints else NOWHERE

    @classmethod
    def of(cls, record: RegisterBrokerRecord) -> BrokerRegistration:
        """Return the registration that a record describes."""
        return cls(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=record.end_points,
            features=record.features,
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            directories=record.log_dirs,
            cordoned_directories=record.cordoned_log_dirs,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            unknown_tagged_fields=record.unknown_tagged_fields,
        )

    def merge(self, change: BrokerRegistrationChangeRecord) -> BrokerRegistration:
        """Return the registration after the change. Raises InvalidRecord for an invalid change."""
        if change.fenced not in (-1, 0, 1) or change.in_controlled_shutdown not in (0, 1):
            raise InvalidRecord(
                f"broker {self.broker_id}: invalid change: fenced={change.fenced}, "
                f"in_controlled_shutdown={change.in_controlled_shutdown}"
            )
        cordoned = change.cordoned_log_dirs
        return self._replace(
            fenced=self.fenced if not change.fenced else change.fenced > 0,
            in_controlled_shutdown=self.in_controlled_shutdown or change.in_controlled_shutdown > 0,
            directories=change.log_dirs or self.directories,
            cordoned_directories=self.cordoned_directories if cordoned is None else cordoned,
        )

    def to_record(self) -> ApiMessageAndVersion[RegisterBrokerRecord]:
        """Return the record that registers it as it is, in the lowest version that has all its fields."""
        record = RegisterBrokerRecord(
            broker_id=self.broker_id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=self.endpoints,
            features=self.features,
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=self.directories,
            cordoned_log_dirs=self.cordoned_directories,
            unknown_tagged_fields=self.unknown_tagged_fields,
        )
        return in_lowest_version(record)


class PartitionRegistration(NamedTuple):
    """A partition: its replicas, in-sync replicas and leader.

    Broker ids in the order of assignment. `directories`: one for each of `replicas`. `elr`: replicas outside
    the ISR that have all committed records nevertheless; `last_known_elr`: the last leader, if both ISR and
    ELR are empty (KIP-966). `leader_epoch` increases when a leader is named, `partition_epoch` with every
    change. `version`: the offset of the last record that changed it, which is the same on every node.
    """

    replicas: tuple[int, ...]
    directories: tuple[Uuid, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    leader: int
    leader_recovery_state: LeaderRecoveryState
    leader_epoch: int
    partition_epoch: int
    unknown_tagged_fields: tuple[TaggedField, ...] = ()
    version: int = UNKNOWN_VERSION

    @classmethod
    def of(cls, record: PartitionRecord, version: int = UNKNOWN_VERSION) -> PartitionRegistration:
        """Return the partition that a record describes. Raises InvalidRecord if it contradicts itself."""
        return cls(
            record.replicas,
            _directories_of(record.replicas, record.directories),
            record.isr,
            record.removing_replicas,
            record.adding_replicas,
            record.eligible_leader_replicas or (),
            record.last_known_elr or (),
            record.leader,
            _recovery_state(record.leader_recovery_state),
            record.leader_epoch,
            record.partition_epoch,
            record.unknown_tagged_fields,
            version,
        )

    @property
    def is_reassigning(self) -> bool:
        """Whether replicas are being added or removed (KIP-455)."""
        return bool(self.adding_replicas or self.removing_replicas)

    def directory(self, broker_id: int) -> Uuid:
        """Return the directory of a replica; UNASSIGNED_DIRECTORY if the broker has no replica."""
        for replica, directory in zip(self.replicas, self.directories, strict=True):
            if replica == broker_id:
                return directory
        return UNASSIGNED_DIRECTORY

    def merge(self, change: PartitionChangeRecord, version: int = UNKNOWN_VERSION) -> PartitionRegistration:
        """Return the partition after the change, which the record at offset `version` makes.

        Fields without a change stay. Naming a leader, even the same one, raises the leader epoch; the
        partition epoch always increases. Raises InvalidRecord if the change contradicts itself or the
        partition: new replicas need the same number of directories.
        """
        replicas = self.replicas if change.replicas is None else change.replicas
        directories = self.directories if change.directories is None else change.directories
        is_named = change.leader != NO_LEADER_CHANGE
        state = change.leader_recovery_state
        elr, last_known_elr = change.eligible_leader_replicas, change.last_known_elr
        return PartitionRegistration(
            replicas,
            _directories_of(replicas, directories),
            self.isr if change.isr is None else change.isr,
            self.removing_replicas if change.removing_replicas is None else change.removing_replicas,
            self.adding_replicas if change.adding_replicas is None else change.adding_replicas,
            self.elr if elr is None else elr,
            self.last_known_elr if last_known_elr is None else last_known_elr,
            change.leader if is_named else self.leader,
            self.leader_recovery_state if state == NO_RECOVERY_CHANGE else _recovery_state(state),
            self.leader_epoch + is_named,
            self.partition_epoch + 1,
            self.unknown_tagged_fields,
            version,
        )

    def change_to(
        self, new: PartitionRegistration, topic_id: Uuid, partition: int
    ) -> PartitionChangeRecord | None:
        """Return the record that changes this partition to `new`, or None if they are equal.

        It names the leader if that differs, or if `new` has a higher leader epoch. The epochs of `new` are
        otherwise ignored: `merge` counts them.
        """
        names_leader = new.leader != self.leader or new.leader_epoch > self.leader_epoch
        if not names_leader and new[:_LEADER] == self[:_LEADER] and new[_RECOVERY] == self[_RECOVERY]:
            return None
        return PartitionChangeRecord(
            partition_id=partition,
            topic_id=topic_id,
            isr=_changed(self.isr, new.isr),
            leader=new.leader if names_leader else NO_LEADER_CHANGE,
            replicas=_changed(self.replicas, new.replicas),
            removing_replicas=_changed(self.removing_replicas, new.removing_replicas),
            adding_replicas=_changed(self.adding_replicas, new.adding_replicas),
            leader_recovery_state=NO_RECOVERY_CHANGE
            if new.leader_recovery_state == self.leader_recovery_state
            else int(new.leader_recovery_state),
            directories=None
            if new.directories == self.directories and len(new.replicas) == len(self.replicas)
            else new.directories,
            eligible_leader_replicas=_changed(self.elr, new.elr),
            last_known_elr=_changed(self.last_known_elr, new.last_known_elr),
        )

    def to_record(self, topic_id: Uuid, partition: int) -> ApiMessageAndVersion[PartitionRecord]:
        """Return the record that describes it, in the lowest version that has all its fields."""
        has_directories = any(each != MIGRATING_DIRECTORY for each in self.directories)
        record = PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=self.replicas,
            isr=self.isr,
            removing_replicas=self.removing_replicas,
            adding_replicas=self.adding_replicas,
            leader=self.leader,
            leader_recovery_state=int(self.leader_recovery_state),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=self.directories if has_directories else (),
            eligible_leader_replicas=self.elr or None,
            last_known_elr=self.last_known_elr or None,
            unknown_tagged_fields=self.unknown_tagged_fields,
        )
        return in_lowest_version(record)

    def leader_and_isr(self, topic_partition: TopicPartition, topic_id: Uuid) -> LeaderAndIsr:
        """Return the partition as sent to its replicas."""
        return LeaderAndIsr(
            topic_partition=topic_partition,
            topic_id=topic_id,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            isr=self.isr,
            partition_epoch=self.partition_epoch,
            replicas=self.replicas,
            adding_replicas=self.adding_replicas,
            removing_replicas=self.removing_replicas,
            elr=self.elr,
            leader_recovery_state=self.leader_recovery_state,
        )


# A change replaces the fields before `leader` as they are.
_LEADER = PartitionRegistration._fields.index("leader")
_RECOVERY = PartitionRegistration._fields.index("leader_recovery_state")


class TopicRegistration(NamedTuple):
    """A topic and its partitions by number; immutable. `version`: the offset of its TopicRecord."""

    name: str
    topic_id: Uuid
    partitions: Mapping[int, PartitionRegistration]
    unknown_tagged_fields: tuple[TaggedField, ...] = ()
    version: int = UNKNOWN_VERSION

    def to_record(self) -> ApiMessageAndVersion[TopicRecord]:
        """Return the record that creates it, without its partitions."""
        record = TopicRecord(
            name=self.name, topic_id=self.topic_id, unknown_tagged_fields=self.unknown_tagged_fields
        )
        return ApiMessageAndVersion(record, 0)


def _changed(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if before == after else after


def _directories_of(replicas: tuple[int, ...], directories: tuple[Uuid, ...]) -> tuple[Uuid, ...]:
    """Return the directory of each replica; records of version 0 have none."""
    if not directories:
        return (MIGRATING_DIRECTORY,) * len(replicas)
    if len(directories) != len(replicas):
        raise InvalidRecord(f"{len(replicas)} replicas, but {len(directories)} directories")
    return directories


def _recovery_state(number: int) -> LeaderRecoveryState:
    state = RECOVERY_STATES.get(number)
    if state is None:
        raise InvalidRecord(f"leader recovery state {number} is unknown")
    return state
