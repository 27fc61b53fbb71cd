"""What a comparison of two replicas reports. Plain values; anybody may share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kreplica.log.checkpoint import EpochEntry


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one replica stood when it was compared; `log_end_offset` is exclusive.

    A log whose recovery stopped at a damage ends where its last batch ends, wherever the damage lies.
    """

    directory: str
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    size: int


@dataclass(frozen=True, slots=True)
class Place:
    """The batch that one side has at a divergence, and the byte in the file where it begins."""

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
    """The first offset at which two replicas do not have the same.

    `kind`: "batch" (their bytes differ), "leader_epoch" (nothing else differs), "missing" (one side has
    nothing there; its place is None), "record" (records of the same offset differ; `offset` is theirs).
    `leader_epoch` is the greater one of the batches that are there.
    """

    kind: str
    offset: int
    leader_epoch: int
    left: Place | None
    right: Place | None


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes of one side ("left" or "right") that rotted: the offsets [first_offset, next_offset) in
    [position, end_position) of the file. `next_offset` is None where nothing valid follows."""

    side: str
    first_offset: int
    next_offset: int | None
    path: str
    position: int
    end_position: int
    reason: str


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """What the leader epochs of both say (KIP-101, KIP-279).

    `agreed`: the greatest epoch that both know, and the offset where the shorter of the two ends: how far a
    follower would keep its log by epochs alone; None where they share no epoch. `left` and `right`: the
    entries where the histories differ first within the offsets that both have; both None if they do not.
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

    The offsets [first_offset, end_offset) are those that both have; they agree up to `agreed_offset`, which
    is written in `agreed_epoch` (-1: no batch agrees), but for what was `lost`. `compared_bytes` are those of
    batches equal byte for byte, `compared_records` were compared one by one. `only_left` and `only_right`
    count the records whose offset the other side does not have (compaction took them), `first_only_left` and
    `first_only_right` are the first of these offsets; only a comparison by records can tell.
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
        """Whether nothing differs on the offsets that both have, and nothing of them is lost."""
        return self.divergence is None and not self.lost and not self.epochs.differs

    @property
    def outcome(self) -> str:
        """In a word or two: "differ", "damaged", "epochs differ", "nothing in common" or "agree"."""
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
        """The fields, as they go into JSON."""
        epochs = self.epochs
        entries = {"agreed": epochs.agreed, "left": epochs.left, "right": epochs.right}
        facts = {name: None if entry is None else entry._asdict() for name, entry in entries.items()}
        return {**asdict(self), "epochs": facts}


def agrees(fact: Mapping[str, Any]) -> bool:
    """Whether nothing differs in what `compare_pair` tells; what only one side has is no difference."""
    return fact["outcome"] in ("agree", "nothing in common", "only left", "only right")
