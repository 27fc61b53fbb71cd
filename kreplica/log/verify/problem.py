"""What a verification reports."""

from __future__ import annotations

from dataclasses import dataclass

# A range that a repair took out of the log, and that is still missing in it.
QUARANTINED = "Quarantined"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    `kind`: a name that programs may rely on; a wrong batch has that of its error. `offset`: of the record or
    batch that it is about. `position`: the byte in the file at `path`.
    """

    path: str
    kind: str
    text: str
    offset: int | None = None
    position: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether a repair has dealt with it: it is told, and nothing is to be done."""
        return self.kind == QUARANTINED
