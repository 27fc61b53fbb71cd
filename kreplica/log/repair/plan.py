"""Plan the repair of a partition, without changing anything.

`verify` finds the problems. The segments with problems, those before them, and the last one are then surveyed
byte by byte. A bad range is quarantined if an intact batch follows it, or if it lies below the offsets that
were safe. The rest of the last segment is a tail, which recovery truncates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from kreplica._core.log_state import LogStanding
from kreplica.common.dataclass import dataclass, field, replace
from kreplica.common.errors import KafkaStorageError, KreplicaError
from kreplica.common.types import INT32_MAX
from kreplica.log.checkpoint import LEADER_EPOCH_CHECKPOINT, EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.damage import CUT_SHORT
from kreplica.log.file_names import (
    LOG_SUFFIX,
    SETTINGS_FILE,
    SNAPSHOT_SUFFIX,
    STATE_FILE,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_file_name,
)
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.quarantine import Quarantine, file_stem
from kreplica.log.repair.rewrite import Edit, Piece
from kreplica.log.repair.survey import (
    BadRange,
    SegmentSurvey,
    Whole,
    epochs_to_correct,
    open_segment,
    relocated,
    survey,
)
from kreplica.log.state_file import read_state
from kreplica.log.verify.checks import Problem
from kreplica.log.verify.directory import small_files
from kreplica.log.verify.partition import PartitionVerifier, may_be_missing
from kreplica.record.batch_header import LEADER_EPOCH
from kreplica.record.made_batches import empty_batch

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

# The actions. A repair performs all but the last two.
REBUILD = "rebuild"
QUARANTINE = "quarantine"
CUT = "cut"
TAKE = "take from peer"
CORRECT = "correct"
REMOVE = "remove"
NOTHING = "known"
BLOCKED = "cannot repair"
# Problems with the offset or epoch of an intact batch; the survey decides about them.
_PLACEMENT = ("OffsetRegression", "OffsetOverflow", "EpochRegression", "EpochMismatch", "MissingOffsets")
# If one of these is found, nothing in the partition is changed.
_BLOCKING = ("ForeignSegment", "Unreadable", "PeerDisagrees")


@dataclass(slots=True)
class Finding:
    """One problem in the file at `path`.

    `kind`: the kind of the problem, as in `verify`. `action`: one of the constants above. `text`: a
    description. [`offset`, `next_offset`): the affected offsets. [`position`, `end_position`): the affected
    bytes. `done`: whether the action was performed.
    """

    path: str
    kind: str
    action: str
    text: str
    offset: int | None = None
    next_offset: int | None = None
    position: int | None = None
    end_position: int | None = None
    done: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the problem remains."""
        return not self.done and self.action != NOTHING


@dataclass(slots=True)
class Lost:
    """Lost offsets of the log, which a peer may have, and the edit that turns them into a gap.

    `is_at_end`: whether they are at the end of the segment at `base_offset`.
    `notes`: the files of an earlier quarantine.
    """

    base_offset: int
    edit: Edit
    first_offset: int
    next_offset: int
    is_at_end: bool
    finding: Finding
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class PartitionPlan:
    """The plan for one partition, with its findings.

    `edits`: the edits by base offset of the segment. `files`: new segment files by base offset.
    `remove`: paths to remove. `scan_from`: the offset from which recovery must scan the log, or None if
    nothing needs rebuilding. `end`: the log end.
    """

    directory: str
    findings: list[Finding] = field(default_factory=list)
    edits: dict[int, list[Edit]] = field(default_factory=dict)
    files: dict[int, Piece] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    scan_from: int | None = None
    reopens: bool = False
    end: int = 0
    is_compacted: bool = False
    epochs: list[EpochEntry] | None = None
    standing: LogStanding | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether no repair could make the log writable, so that none is started."""
        return any(f.action == BLOCKED and f.kind in _BLOCKING for f in self.findings)

    def rebuild(self, offset: int) -> None:
        self.scan_from = offset if self.scan_from is None else min(self.scan_from, offset)


def make_plan(
    storage: Storage,
    directory: str,
    *,
    recovery_point: int = 0,
    progress: Callable[[int], None] | None = None,
) -> PartitionPlan:
    """Plan the repair of the partition in `directory`. `recovery_point`: from its node's checkpoint.

    Raises KafkaStorageError if the directory cannot be read.
    """
    return _Planner(storage, directory, recovery_point, progress).make()


class _Planner:
    def __init__(
        self,
        storage: Storage,
        directory: str,
        recovery_point: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._recovery_point = recovery_point
        self._verifier = PartitionVerifier(storage, directory, progress)
        self._names = storage.list_directory(directory)
        self._bases: list[int] = []
        self.plan = PartitionPlan(directory)
        self._damaged: list[Problem] = []  # problems with batches
        self._surveys: dict[int, SegmentSurvey] = {}
        self._floor = -1  # the least leader epoch possible in the current segment
        self._corrected_epochs: dict[Whole, int] = {}

    def make(self) -> PartitionPlan:
        plan = self.plan
        plan.standing = read_state(self._storage, self._directory)
        plan.epochs = self._read_epochs()
        problems = list(self._verifier.problems())
        self._bases = self._verifier.all_bases
        problems += small_files(self._storage, self._directory, self._names)
        plan.is_compacted = self._verifier.has_gaps
        plan.end = max(self._verifier.next_offset, self._promised())
        for problem in problems:
            self._sort_out(problem)
        if self._damaged or self._ends_beyond_promise():
            self._survey_segments()
            if not plan.is_blocked:
                self._plan_segments()
        return plan

    # ---- where the log stood ------------------------------------------------------------------------------

    def _read_epochs(self) -> list[EpochEntry] | None:
        if LEADER_EPOCH_CHECKPOINT not in self._names:
            return []
        try:
            return LeaderEpochCheckpointFile(self._storage, self._directory).read()
        except KreplicaError:
            return None

    def _is_current(self) -> bool:
        """Return whether the published state covers all appends, because no power cut has happened since."""
        standing = self.plan.standing
        return standing is not None and (standing.clean or standing.boot_id == self._storage.boot_id())

    def _promised(self) -> int:
        """Return the offset below which everything was safe, so that bad bytes there must have rotted."""
        standing = self.plan.standing
        if standing is None:
            return self._recovery_point
        return standing.log_end_offset if self._is_current() else standing.flush_offset

    def _ends_beyond_promise(self) -> bool:
        return self._known_end() is not None and self._verifier.next_offset > self._promised()

    def _known_end(self) -> int | None:
        """Return the known end offset of the last segment if its file still has the published length."""
        standing = self.plan.standing
        if standing is None or not self._is_current() or not self._bases:
            return None
        path = self._path(self._bases[-1])
        is_same = standing.active_base_offset == self._bases[-1]
        return (
            standing.log_end_offset if is_same and self._storage.size(path) == standing.valid_length else None
        )

    # ---- problems found by verify -------------------------------------------------------------------------

    def _sort_out(self, problem: Problem) -> None:
        plan, name = self.plan, problem.path.rpartition("/")[2]
        found = _file_at(problem.path)
        if problem.is_known:
            self._add(problem, NOTHING)
        elif found is None:
            self._of_the_partition(problem, name)
        elif found[1] == LOG_SUFFIX:
            self._damaged.append(problem)
        elif found[1] == SNAPSHOT_SUFFIX:
            self._add(problem, REBUILD)
            plan.remove.append(problem.path)
            plan.reopens = True
        elif problem.kind == "IndexWithoutSegment":
            self._add(problem, REMOVE)
            plan.remove.append(problem.path)
        else:
            self._add(problem, REBUILD)
            plan.rebuild(found[0])
            if found[1] == TXN_INDEX_SUFFIX:
                plan.remove.append(problem.path)

    def _of_the_partition(self, problem: Problem, name: str) -> None:
        if name == LEADER_EPOCH_CHECKPOINT:
            self._add(problem, REBUILD)
            self.plan.remove.append(problem.path)
            self.plan.rebuild(0)
        elif name == STATE_FILE:
            # Either the state is unreadable, and opening the log rewrites it; or bytes of the log are
            # missing.
            if problem.kind == "OffsetBeyondLog":
                self._damaged.append(problem)
            else:
                self._add(problem, REBUILD)
                self.plan.remove.append(problem.path)
                self.plan.reopens = True
        elif name == SETTINGS_FILE:
            self._add(problem, REMOVE, "the log has Kafka's defaults until it is opened with settings again")
            self.plan.remove.append(problem.path)
            self.plan.reopens = True
        else:
            self._add(problem, BLOCKED, "its content is nowhere else")

    def _add(self, problem: Problem, action: str, text: str = "") -> None:
        words = f"{problem.text}; {text}" if text else problem.text
        if any(
            f.path == problem.path and f.action == action and f.action == REBUILD for f in self.plan.findings
        ):
            return  # once for each file
        self.plan.findings.append(
            Finding(problem.path, problem.kind, action, words, problem.offset, None, problem.position)
        )

    # ---- segments -----------------------------------------------------------------------------------------

    def _survey_segments(self) -> None:
        wanted = {self._bases[-1]} if self._bases else set()
        for problem in self._damaged:
            found = _file_at(problem.path)
            if found is not None and found[0] in self._bases:
                at = self._bases.index(found[0])
                wanted |= set(self._bases[max(0, at - 1) : at + 1])
        while wanted:
            base = wanted.pop()
            at = self._bases.index(base)
            stop = self._bases[at + 1] if at + 1 < len(self._bases) else self._known_end()
            path = self._path(base)
            try:
                segment = open_segment(self._storage, path, base)
                try:
                    self._surveys[base] = survey(segment, stop)
                finally:
                    segment.close()
            except KafkaStorageError as error:
                self._block(path, "Unreadable", str(error))
                continue
            found_here = self._surveys[base]
            if found_here.is_foreign:
                self._block(path, "ForeignSegment", "its batches belong to a segment of another name")
            if not found_here.good or found_here.good[0].position > 0:
                # The previous segment determines the leader epoch.
                wanted |= set(self._bases[max(0, at - 1) : at]) - self._surveys.keys()
        self._surveys = dict(sorted(self._surveys.items()))

    def _block(self, path: str, kind: str, text: str) -> None:
        self.plan.findings.append(Finding(path, kind, BLOCKED, text))

    def _plan_segments(self) -> None:
        plan = self.plan
        last = self._bases[-1]
        plan.end = max(self._surveys[last].next_offset, self._promised())
        corrections = self._corrections()
        missing = self._missing_after()
        for base, found in self._surveys.items():
            edits = list(corrections.get(base, []))
            for bad in self._bad_ranges(found, missing.get(base)):
                edits += self._edit(found, bad, is_last=base == last)
            self._floor = max([self._floor, *map(self._epoch_of, found.good)])
            if edits:
                plan.edits[base] = sorted(edits, key=lambda edit: (edit.position, edit.end_position))
                plan.rebuild(base)
        self._tell_of_the_rest()

    def _missing_after(self) -> dict[int, int]:
        """Return, for segments that end too early, where the next one begins or the log is known to end."""
        missing: dict[int, int] = {}
        if any(problem.kind == "OffsetRegression" for problem in self._damaged):
            # Wrong offsets may have misled verify about gaps.
            self.plan.is_compacted = any(found.has_gaps for found in self._surveys.values())
        standing, was_compacted = self.plan.standing, self.plan.is_compacted
        for base, following in pairwise(self._bases):
            found = self._surveys.get(base)
            if found is None or self._verifier.explains_gap(base, was_compacted=was_compacted):
                continue
            if may_be_missing(standing, found.next_offset, following):
                missing[base] = following
        last = self._bases[-1]
        if self._surveys[last].next_offset < self._promised():
            missing[last] = self._promised()
        return missing

    def _bad_ranges(self, found: SegmentSurvey, missing_to: int | None) -> Iterator[BadRange]:
        yield from found.bad
        at_end = found.bad and found.bad[-1].end_position == found.size
        if missing_to is not None and not at_end:
            yield BadRange(found.size, found.size, found.next_offset, missing_to, CUT_SHORT, False)

    def _edit(self, found: SegmentSurvey, bad: BadRange, *, is_last: bool) -> list[Edit]:
        following, path = bad.next_offset, self._path(found.base_offset)
        if is_last and bad.end_position == found.size:
            promised = self._promised()
            if bad.first_offset >= promised:
                if not bad.only_zeros:
                    text = f"{bad.reason}: recovery cuts it, and keeps its bytes aside"
                    self._found(path, "TornTail", CUT, text, bad, None)
                elif self._is_current() and self.plan.standing is not None and self.plan.standing.clean:
                    self._found(path, "ZeroedRange", CUT, "zeros behind a log that was closed", bad, None)
                self.plan.reopens = self.plan.reopens or not bad.only_zeros or self._was_clean()
                return []
            following = promised
        assert following is not None
        if bad.first_offset >= following and bad.only_zeros:
            self._found(path, "ZeroedRange", CUT, "zeros, and no offset is missing", bad, following)
            return [Edit(bad.position, bad.end_position, b"")]
        return self._quarantine(found, bad, following)

    def _was_clean(self) -> bool:
        return self.plan.standing is not None and self.plan.standing.clean

    def _quarantine(self, found: SegmentSurvey, bad: BadRange, following: int) -> list[Edit]:
        path, first = self._path(found.base_offset), min(bad.first_offset, following)
        if moved := relocated(found, bad, following):
            return [self._relocate(path, whole, offset) for whole, offset in moved]
        if following - 1 - found.base_offset > INT32_MAX:
            self._found(path, "MissingOffsets", BLOCKED, "more offsets than a segment holds", bad, following)
            return []
        before = next((w for w in reversed(found.good) if w.end_position <= bad.position), None)
        after = next((w for w in found.good if w.position >= bad.end_position), None)
        epoch = self._epoch_at(first, before, after)
        filler = empty_batch(first, following - 1, epoch) if first < following else b""
        quarantine = Quarantine(
            found.base_offset, bad.position, bad.end_position, first, following, bad.reason, None
        )
        if bad.end_position > bad.position:
            quarantine = replace(quarantine, kept_in=file_stem(quarantine, 0))
        text = f"{bad.reason}: offsets {first} to {following - 1} become a known gap"
        if first == following:
            text = f"{bad.reason}: no offset is missing"
        self._found(path, "Rot", QUARANTINE, text, bad, following)
        edit = Edit(bad.position, bad.end_position, filler, quarantine)
        if first < following:
            is_at_end, finding = bad.end_position == found.size, self.plan.findings[-1]
            self.plan.lost.append(Lost(found.base_offset, edit, first, following, is_at_end, finding))
        return [edit]

    def _relocate(self, path: str, whole: Whole, offset: int) -> Edit:
        text = f"its base offset {whole.base_offset} is off by one byte of it, and becomes {offset}"
        self._corrects(path, "OffsetRegression", text, whole, offset)
        return Edit(whole.position, whole.position + 8, offset.to_bytes(8, "big"))

    def _epoch_at(self, offset: int, before: Whole | None, after: Whole | None) -> int:
        least = self._epoch_of(before) if before else self._floor
        most = self._epoch_of(after) if after else INT32_MAX
        known = self._checkpointed(offset)
        if known is not None and least <= known <= most:
            return known
        return least if least >= 0 or after is None else self._epoch_of(after)

    def _epoch_of(self, whole: Whole) -> int:
        """Return the leader epoch that the batch has after the repair."""
        return self._corrected_epochs.get(whole, whole.leader_epoch)

    def _checkpointed(self, offset: int) -> int | None:
        if not self.plan.epochs:
            return None
        checkpoint = LeaderEpochCheckpointFile(self._storage, self._directory)
        return LeaderEpochFileCache(checkpoint, self.plan.epochs).epoch_for_offset(offset)

    def _found(
        self, path: str, kind: str, action: str, text: str, bad: BadRange, following: int | None
    ) -> None:
        self.plan.findings.append(
            Finding(path, kind, action, text, bad.first_offset, following, bad.position, bad.end_position)
        )

    def _corrects(self, path: str, kind: str, text: str, whole: Whole, offset: int) -> None:
        following, place = offset + whole.offset_count, (whole.position, whole.end_position)
        self.plan.findings.append(Finding(path, kind, CORRECT, text, offset, following, *place))

    # ---- leader epochs ------------------------------------------------------------------------------------

    def _corrections(self) -> dict[int, list[Edit]]:
        """Plan edits for intact batches with an impossible leader epoch."""
        owners = [(base, whole) for base, found in self._surveys.items() for whole in found.good]
        wholes = [whole for _, whole in owners]
        expected = {w.base_offset: e for w in wholes if (e := self._checkpointed(w.base_offset)) is not None}
        standing, wrong = self.plan.standing, self._corrected_epochs
        wrong.update(epochs_to_correct(wholes, -1, expected))
        if standing is not None and self._is_current():
            for whole in wholes:
                right = expected.get(whole.base_offset)
                if whole not in wrong and whole.leader_epoch > standing.leader_epoch and right is not None:
                    wrong[whole] = right
        made: dict[int, list[Edit]] = {}
        for base, whole in owners:
            if whole in wrong:
                self._correct(base, whole, wrong[whole], made)
            elif (
                whole.leader_epoch >= 0
                and expected.get(whole.base_offset, whole.leader_epoch) != whole.leader_epoch
            ):
                self._rebuild_epochs()
        return made

    def _correct(self, base: int, whole: Whole, epoch: int, made: dict[int, list[Edit]]) -> None:
        start, stop = whole.position + LEADER_EPOCH.start, whole.position + LEADER_EPOCH.stop
        made.setdefault(base, []).append(Edit(start, stop, epoch.to_bytes(4, "big", signed=True)))
        text = f"its leader epoch {whole.leader_epoch} goes against those around it, and becomes {epoch}"
        self._corrects(self._path(base), "EpochRegression", text, whole, whole.base_offset)

    def _rebuild_epochs(self) -> None:
        path = f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}"
        if path not in self.plan.remove:
            self.plan.remove.append(path)
            self.plan.rebuild(0)
            text = "the batches have other leader epochs"
            self.plan.findings.append(Finding(path, "EpochMismatch", REBUILD, text))

    def _tell_of_the_rest(self) -> None:
        """Report batches with a valid CRC and bad records: they were written that way and cannot be
        repaired."""
        for problem in self._damaged:
            found = _file_at(problem.path)
            surveyed = self._surveys.get(found[0]) if found else None
            if surveyed is None or problem.kind in _PLACEMENT:
                continue
            if any(whole.position == problem.position for whole in surveyed.good):
                self._add(problem, BLOCKED, "its CRC fits: it was written so")

    def _path(self, base: int) -> str:
        return self._verifier.path_of(base, LOG_SUFFIX)


def _file_at(path: str) -> tuple[int, str] | None:
    """Return base offset and suffix of a segment's file, also of one that an interrupted replacement left."""
    return parse_file_name(path.rpartition("/")[2].removesuffix(SWAP_SUFFIX))
