"""StateChangeLogger: a readable history of what the controller did to each partition and replica.

Each line begins with the controller and its epoch. The newest lines are kept, as columns of values. They
become text only when they are read, since ten thousand partitions may change at once. They also go to the
logger `kreplica.state.change`: transitions at level DEBUG, failures at INFO. The transitions of a batch are
logged once it is in the metadata log. Of a batch that was dropped, only its failures and its end are logged.
The logger gets one line for all failures of a batch, since every partition fails when no broker is alive.
Owned by the controller's loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LOGGER = logging.getLogger("kreplica.state.change")
KEPT_LINES = 20_000
# A partition that cannot get a leader is retried whenever a broker comes or goes, so this is no warning.
FAILURE = logging.INFO


class Lines(NamedTuple):
    """Lines of one kind: a %-format and one column for each of its values, all of the same length."""

    epoch: int
    level: int
    form: str
    columns: tuple[Sequence[object], ...]


class StateChangeLogger:
    """The newest changes of states, and the log lines about them.

    `epoch`: the controller's epoch, set when it takes over.
    """

    def __init__(self, controller_id: int, kept_lines: int = KEPT_LINES) -> None:
        self.epoch = -1
        self._controller_id = controller_id
        self._kept_lines = kept_lines
        self._kept: deque[Lines] = deque()
        self._count = 0
        self._pending: list[Lines] = []

    def trace(self, form: str, *columns: Sequence[object]) -> None:
        """Add transitions. They are logged when their batch is committed."""
        if columns[0]:
            self._pending.append(Lines(self.epoch, logging.DEBUG, form, columns))

    def failure(self, form: str, *values: object) -> None:
        """Add a transition that failed. It is logged even if the batch is dropped."""
        self._pending.append(Lines(self.epoch, FAILURE, form, tuple([value] for value in values)))

    def commit(self) -> None:
        """Log the batch, which is now in the metadata log."""
        pending, self._pending = self._pending, []
        self._write(pending)

    def give_up(self, reason: BaseException) -> None:
        """Log the failures of a batch that was dropped.

        A batch without state changes logs nothing: a request was rejected, and its sender gets the error.
        """
        given_up, self._pending = self._pending, []
        if not given_up:
            return
        count = sum(len(lines.columns[0]) for lines in given_up if lines.level == logging.DEBUG)
        self._write([lines for lines in given_up if lines.level == FAILURE])
        self.failure("gave up %d state changes: %r", count, reason)
        self.commit()

    def lines(self) -> list[str]:
        """Return the kept lines, the oldest first."""
        return [line for kept in self._kept for line in self._text(kept)]

    def _write(self, written: list[Lines]) -> None:
        failed = [lines for lines in written if lines.level == FAILURE]
        for lines in written:
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
