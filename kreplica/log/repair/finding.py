"""Finding: a problem that a repair reports, with its action."""

from __future__ import annotations

from dataclasses import dataclass

# The actions. A repair performs all but the last two.
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
