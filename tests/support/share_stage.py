"""A share coordinator under a virtual clock, over a log in memory that can be cut."""

from __future__ import annotations

from kreplica._core.records import batches
from kreplica.common.errors import KreplicaError
from kreplica.common.share_state import SharePartitionKey, ShareState
from kreplica.common.types import Uuid
from kreplica.coordinator.share_coordinator import ShareCoordinator
from kreplica.coordinator.share_coordinator_config import ShareCoordinatorConfig
from kreplica.coordinator.share_records import decode_key, decode_value
from tests.support.group_stage import MemoryLog
from tests.support.virtual import VirtualMachine

TOPIC = Uuid(bytes(range(16)))
KEY, OTHER = SharePartitionKey("g", TOPIC, 0), SharePartitionKey("g", TOPIC, 1)
CONFIG = ShareCoordinatorConfig(
    share_coordinator_snapshot_update_records_per_snapshot=5,
    share_coordinator_state_topic_prune_interval_ms=1_000,
    share_coordinator_cold_partition_snapshot_interval_ms=1_000,
)


class PrunedMemoryLog(MemoryLog):
    """A MemoryLog whose records can be deleted."""

    def delete_records(self, partition, leader_epoch, before_offset):
        assert (partition, leader_epoch) == (0, self.leader_epoch)
        assert before_offset <= self.end
        self.batches = [
            each for each in self.batches if next(iter(batches(each))).next_offset > before_offset
        ]


class ShareStage(VirtualMachine):
    """A coordinator of the one partition of its topic; `missing`: topics that do not exist."""

    def __init__(self, log=None):
        super().__init__()
        self.log = PrunedMemoryLog() if log is None else log
        self.partitions = 1
        self.missing = set()
        self.coordinator = ShareCoordinator(
            CONFIG,
            self.log,
            partition_count=lambda: self.partitions,
            exists=lambda topic_id, partition: topic_id not in self.missing and partition < 10,
            clock=self.clock,
            loop=self.loop,
        )
        self.coordinator.startup()
        self.coordinator.elect(0, self.log.leader_epoch)
        self.pass_time(100)

    def begin(self, name, *arguments):
        future = getattr(self.coordinator, name)(*arguments)
        self.settle()
        return future

    def do(self, name, *arguments):
        """Return the result of a request, or its error."""
        future = self.begin(name, *arguments)
        error = future.exception(0)
        assert error is None or isinstance(error, KreplicaError)
        return future.result(0) if error is None else error

    @property
    def shard(self):
        [shard] = self.coordinator.shards
        return shard

    def kinds(self):
        """The records of the log: (type of the key, value)."""
        found = []
        for each in self.log.raw_records():
            key = decode_key(each.key)
            found.append((type(key).__name__, None if each.value is None else decode_value(key, each.value)))
        return found

    def fail_over(self):
        """Return a coordinator that has loaded the same log, in the next leader epoch."""
        self.log.leader_epoch += 1
        self.log.held = self.log.error = None
        return ShareStage(self.log)


def change(start_offset, *found, state_epoch=2, leader_epoch=3, count=0):
    return ShareState(state_epoch, leader_epoch, start_offset, found, count)
