"""Problem: a finding of a verification."""

from __future__ import annotations

from dataclasses import dataclass

# The kind of a range that a repair took out of the log and that is still missing.
QUARANTINED = "Quarantined"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in the file at `path`.

    `kind`: a stable name for programs; for a bad batch, the name of its error. `offset`: the offset of the
    record or batch. `position`: the byte in the file.
    """

    path: str
    kind: str
    text: str
    offset: int | None = None
    position: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether a repair has dealt with the problem, so that it needs no action."""
        return self.kind == QUARANTINED
