"""Apply a repair plan to one partition, in steps that never make the log worse.

First, flush all files and record that in the log's state. From then on, recovery treats all bad bytes as rot,
so a crash during the repair loses nothing. Then tear the first transaction index that may become wrong,
rewrite the segments one by one, and remove unreadable files. Finally, recovery rebuilds indexes, epochs
and producer state. The caller holds the locks of a writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica.common.config import LogConfig
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition
from kreplica.log import log_loader
from kreplica.log.checkpoint import LEADER_EPOCH_CHECKPOINT, LeaderEpochCheckpointFile
from kreplica.log.damage import DamageFile, Damages
from kreplica.log.file_names import LOG_SUFFIX, TXN_INDEX_SUFFIX, file_name, parse_file_name
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.log_loader import OpenOptions
from kreplica.log.repair.plan import BLOCKED, CUT, Finding, PartitionPlan, make_plan
from kreplica.log.repair.rewrite import add, rewrite
from kreplica.log.state_file import publish_state
from kreplica.log.transaction_index import TORN
from kreplica.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from kreplica.common.ports import Clock, Storage

# A boot id that no machine has, so that recovery ignores file lengths, which are about to change.
NO_BOOT = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The checkpointed offsets of a partition. `high_watermark` is None for a log without a node."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int | None = None


def apply(
    storage: Storage, clock: Clock, partition: TopicPartition, plan: PartitionPlan, known: Checkpointed
) -> None:
    """Apply the plan, and mark its findings as done. Raises KafkaStorageError.

    Problems that remain afterwards are added to the findings.
    """
    if plan.is_blocked or not (plan.edits or plan.remove or plan.reopens or plan.scan_from is not None):
        return
    directory = plan.directory
    _flush_all(storage, directory)
    if plan.standing is not None:
        # The whole log is flushed, and no length of a file is known.
        standing = plan.standing._replace(
            boot_id=NO_BOOT, log_end_offset=plan.end, valid_length=0, flush_offset=plan.end
        )
        publish_state(storage, directory, standing)
    if plan.edits or plan.files:
        _distrust_transactions(storage, directory, min([*plan.edits, *plan.files]))
    for base_offset, edits in sorted(plan.edits.items()):
        if edits:
            rewrite(storage, directory, base_offset, edits)
    for _, piece in sorted(plan.files.items()):
        add(storage, directory, piece)
    # The remembered damage has been dealt with.
    DamageFile(storage, directory).write(Damages())
    for path in plan.remove:
        storage.remove(path)
    storage.sync_directory(directory)
    try:
        cut = _reopen(storage, clock, partition, plan, known)
    except KreplicaError as error:
        plan.findings.append(Finding(directory, type(error).__name__, BLOCKED, str(error)))
        return
    for finding in plan.findings:
        if finding.action != BLOCKED:
            finding.done = True
    for kept_in in cut:
        text = f"cut by recovery, kept in {kept_in}"
        if not any(f.action == CUT for f in plan.findings):
            plan.findings.append(Finding(directory, "TornTail", CUT, text, done=True))
    _look_again(storage, plan)


def _flush_all(storage: Storage, directory: str) -> None:
    for name in storage.list_directory(directory):
        found = parse_file_name(name)
        if found is not None and found[1] == LOG_SUFFIX:
            storage.sync_file(f"{directory}/{name}")
    storage.sync_directory(directory)


def _distrust_transactions(storage: Storage, directory: str, base_offset: int) -> None:
    """Tear the transaction index of the segment: opening the log reads it from there on, also after a crash.

    The indexes and producer snapshots that are there may lack the batches that are put back.
    """
    storage.write_file_atomically(f"{directory}/{file_name(base_offset, TXN_INDEX_SUFFIX)}", TORN)


def _reopen(
    storage: Storage, clock: Clock, partition: TopicPartition, plan: PartitionPlan, known: Checkpointed
) -> list[str]:
    """Run recovery to rebuild the rest; return the files in which it kept truncated tails."""
    standing, high_watermark = plan.standing, known.high_watermark
    if high_watermark is not None and standing is not None:
        high_watermark = max(high_watermark, standing.high_watermark)
    options = OpenOptions(
        recovery_point=plan.end,
        high_watermark=high_watermark or 0,
        is_only_replica=high_watermark is None,
        log_start_offset=known.log_start_offset,
        scan_from=plan.scan_from,
    )
    # A log that Kafka compacted has legitimate gaps between its segments.
    config = LogConfig(cleanup_policy=("compact",) if plan.is_compacted else ("delete",))
    log = log_loader.load(plan.directory, partition, config, storage, clock, options)
    damage = log.damage
    log.close()
    recovered = log.recovered
    if damage is not None:
        text = f"recovery still finds it: {damage.reason}"
        where = (damage.first_offset, damage.next_offset, damage.position, damage.end_position)
        plan.findings.append(Finding(damage.path, "Rot", BLOCKED, text, *where))
    elif plan.epochs and f"{plan.directory}/{LEADER_EPOCH_CHECKPOINT}" not in plan.remove:
        _keep_epochs(storage, plan, log)
    return [cut.kept_in for cut in recovered.cut]


def _keep_epochs(storage: Storage, plan: PartitionPlan, log: UnifiedLog) -> None:
    """Restore the valid epoch checkpoint: the batches do not reveal an epoch whose first batch is lost."""
    assert plan.epochs is not None
    kept = LeaderEpochFileCache(LeaderEpochCheckpointFile(storage, plan.directory), plan.epochs)
    kept.truncate_from_start(log.log_start_offset)
    kept.truncate_from_end(log.log_end_offset)
    latest = kept.latest_epoch
    kept.assign_all(e for e in log.epochs.entries if latest is None or e.epoch > latest)
    if kept.entries != log.epochs.entries:
        kept.dirty = True
        kept.flush()


def _look_again(storage: Storage, plan: PartitionPlan) -> None:
    """Check the repaired partition again, and add the problems that remain to the findings."""
    again = make_plan(storage, plan.directory, recovery_point=plan.end)
    reported = {(f.path, f.kind) for f in plan.findings if f.action == BLOCKED}
    for finding in again.findings:
        if finding.is_open and (finding.path, finding.kind) not in reported:
            finding.action, finding.text = BLOCKED, f"still there: {finding.text}"
            plan.findings.append(finding)
