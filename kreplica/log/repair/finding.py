"""What a repair reports: one thing that is wrong, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

# What becomes of a finding. The first ones are done by a repair, the last ones cannot be.
REBUILD = "rebuild"
QUARANTINE = "quarantine"
CUT = "cut"
TAKE = "take from peer"
CORRECT = "correct"
REMOVE = "remove"
NOTHING = "known"
BLOCKED = "cannot repair"


@dataclass(slots=True)
class Finding:
    """One thing that was found in the file at `path`.

    `kind`: as `verify` names it. `action`: one of the words above. `text`: more of it, for people. [`offset`,
    `next_offset`) are the offsets it is about, [`position`, `end_position`) the bytes. `done`: whether it was
    done.
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
        """Whether there is still something wrong."""
        return not self.done and self.action != NOTHING
