"""StateChangeLogger: what the controller did to which partition and replica, for a person to read.

Each line begins with the controller and its epoch. The newest lines are kept, as columns of what they are
made of: they become text when somebody asks, since ten thousand partitions may change at once. They also go
to the logger `kreplica.state.change`: transitions at level DEBUG, failures at INFO. What an open batch did
is told once the batch is in the metadata log; of one that was given up only its failures and its end are.
The logger gets one line for all failures of a batch: when no broker lives, every partition has one. It
belongs to the controller's loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LOGGER = logging.getLogger("kreplica.state.change")
KEPT_LINES = 20_000
# A partition that nobody can lead is tried again with each broker that comes or goes: no news for a console.
FAILURE = logging.INFO


class Lines(NamedTuple):
    """Lines of one kind: a %-format, and a column for each of its places, all of one length."""

    epoch: int
    level: int
    form: str
    columns: tuple[Sequence[object], ...]


class StateChangeLogger:
    """`epoch`: that of the controller, set when it takes over."""

    def __init__(self, controller_id: int, kept_lines: int = KEPT_LINES) -> None:
        self.epoch = -1
        self._controller_id = controller_id
        self._kept_lines = kept_lines
        self._kept: deque[Lines] = deque()
        self._count = 0
        self._pending: list[Lines] = []

    def trace(self, form: str, *columns: Sequence[object]) -> None:
        """Transitions, which are told with the batch that they belong to."""
        if columns[0]:
            self._pending.append(Lines(self.epoch, logging.DEBUG, form, columns))

    def failure(self, form: str, *values: object) -> None:
        """A transition that failed; it is told whatever becomes of the batch."""
        self._pending.append(Lines(self.epoch, FAILURE, form, tuple([value] for value in values)))

    def commit(self) -> None:
        """The batch is in the log: tell what it did."""
        told, self._pending = self._pending, []
        self._tell(told)

    def give_up(self, reason: BaseException) -> None:
        """The batch came to nothing: tell its failures. One that had no state changes tells nothing: somebody
        was refused, and is told so.
        """
        given_up, self._pending = self._pending, []
        if not given_up:
            return
        count = sum(len(lines.columns[0]) for lines in given_up if lines.level == logging.DEBUG)
        self._tell([lines for lines in given_up if lines.level == FAILURE])
        self.failure("gave up %d state changes: %r", count, reason)
        self.commit()

    def lines(self) -> list[str]:
        """The newest lines, the oldest of them first."""
        return [line for kept in self._kept for line in self._text(kept)]

    def _tell(self, told: list[Lines]) -> None:
        failed = [lines for lines in told if lines.level == FAILURE]
        for lines in told:
            self._kept.append(lines)
            self._count += len(lines.columns[0])
            if lines.level != FAILURE and LOGGER.isEnabledFor(lines.level):
                for line in self._text(lines):
                    LOGGER.log(lines.level, "%s", line)
        if failed:
            more = f" (and {len(failed) - 1} more failures)" if len(failed) > 1 else ""
            LOGGER.log(FAILURE, "%s%s", next(self._text(failed[0])), more)
        while self._count > self._kept_lines and len(self._kept) > 1:
            self._count -= len(self._kept.popleft().columns[0])

    def _text(self, lines: Lines) -> Iterator[str]:
        start = f"Controller {self._controller_id} epoch {lines.epoch} "
        for values in zip(*lines.columns, strict=True):
            yield start + lines.form % values
