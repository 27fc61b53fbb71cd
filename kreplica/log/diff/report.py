"""The report of a comparison of two replicas. Thread rule: immutable values, any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kreplica.common.dataclass import dataclass
from kreplica.log.checkpoint import EpochEntry


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one replica when it was compared. `log_end_offset` is exclusive.

    A log whose recovery stopped at damage ends behind its last batch, even if that follows the damage.
    """

    directory: str
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    size: int


@dataclass(frozen=True, slots=True)
class Place:
    """The batch of one side at a divergence, and its position in the file."""

    path: str
    position: int
    base_offset: int
    last_offset: int
    records: int
    leader_epoch: int
    size: int
    crc: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first offset at which two replicas differ.

    `kind`: "batch" (the bytes differ), "leader_epoch" (only the epochs differ), "missing" (one side has no
    batch there; its place is None), or "record" (the records at `offset` differ).
    `leader_epoch`: the greater epoch of the batches that exist.
    """

    kind: str
    offset: int
    leader_epoch: int
    left: Place | None
    right: Place | None


@dataclass(frozen=True, slots=True)
class LostRange:
    """A damaged range of one side ("left" or "right").

    It covers the offsets [first_offset, next_offset), in the bytes [position, end_position) of the file.
    `next_offset` is None if nothing valid follows.
    """

    side: str
    first_offset: int
    next_offset: int | None
    path: str
    position: int
    end_position: int
    reason: str


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The comparison of both leader epoch histories (KIP-101, KIP-279).

    `agreed`: the greatest epoch that both know, and the smaller of its two end offsets. A follower would keep
    its log up to there. None without a common epoch.
    `left`, `right`: the first differing entries among the common offsets; both None if all are equal.
    """

    agreed: EpochEntry | None
    left: EpochEntry | None
    right: EpochEntry | None

    @property
    def differs(self) -> bool:
        return self.left is not None or self.right is not None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome for one partition.

    Both sides have the offsets [first_offset, end_offset). Apart from `lost` ranges they agree up to
    `agreed_offset`. `agreed_epoch`: the leader epoch of the last batch that agrees, or -1.
    `compared_bytes`: the bytes of equal batches. `compared_records`: the records compared one by one.
    `only_left`, `only_right`: the number of records whose offset the other side has compacted away; only a
    comparison by record counts them. `first_only_left`, `first_only_right`: the first of these offsets.
    """

    left: Standing
    right: Standing
    first_offset: int
    end_offset: int
    agreed_offset: int
    agreed_epoch: int
    compared_bytes: int
    compared_records: int
    only_left: int
    only_right: int
    first_only_left: int | None
    first_only_right: int | None
    divergence: Divergence | None
    epochs: EpochHistory
    lost: tuple[LostRange, ...]

    @property
    def agrees(self) -> bool:
        """Whether the common offsets are equal and none of them is lost."""
        return self.divergence is None and not self.lost and not self.epochs.differs

    @property
    def outcome(self) -> str:
        """The outcome: "differ", "damaged", "epochs differ", "nothing in common" or "agree"."""
        if self.divergence is not None:
            return "differ"
        if self.lost:
            return "damaged"
        if self.epochs.differs:
            return "epochs differ"
        if self.first_offset < self.end_offset:
            return "agree"
        # Logs that are empty at the same offset are equal.
        ends = {(side.log_start_offset, side.log_end_offset) for side in (self.left, self.right)}
        return "agree" if len(ends) == 1 else "nothing in common"

    def as_fact(self) -> dict[str, Any]:
        """Return the fields as they go into JSON."""
        epochs = self.epochs
        entries = {"agreed": epochs.agreed, "left": epochs.left, "right": epochs.right}
        facts = {name: None if entry is None else entry._asdict() for name, entry in entries.items()}
        return {**asdict(self), "epochs": facts}


def agrees(fact: Mapping[str, Any]) -> bool:
    """Return whether a result of `compare_pair` has no difference. A one-sided partition is no difference."""
    return fact["outcome"] in ("agree", "nothing in common", "only left", "only right")
