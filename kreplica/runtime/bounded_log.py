"""BoundedLog: a rate-limited logger for events that peers cause, such as invalid requests.

In each time span the first lines are logged as they come. Further lines are counted by kind and summed up in
one line at the end of the span, so that a misbehaving client cannot fill the disk. It belongs to an event
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

# Maximum lines per span, in seconds, not counting the summary.
LINES, SPAN_S = 10, 10.0


class BoundedLog:
    """Logs a bounded number of lines.

    `what`: the subject of the summary, as in "more connections were closed".
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, logger: logging.Logger, what: str, *, span_s: float = SPAN_S
    ) -> None:
        self._loop = loop
        self._logger = logger
        self._what = what
        self._span_s = span_s
        self._lines = 0
        self._kept_back: Counter[str] = Counter()
        self._end: asyncio.TimerHandle | None = None

    def log(
        self,
        kind: str,
        text: str,
        *arguments: object,
        level: int = logging.INFO,
        error: BaseException | None = None,
    ) -> None:
        """Log the line, or count it as one of its kind. `error`: the error whose traceback is logged."""
        if self._end is None:
            self._end = self._loop.call_later(self._span_s, self._begin_anew)
        if self._lines < LINES:
            self._lines += 1
            self._logger.log(level, text, *arguments, exc_info=error)
        else:
            self._kept_back[kind] += 1

    def close(self) -> None:
        """Log the summary; nothing may be logged afterwards."""
        if self._end is not None:
            self._end.cancel()
        self._sum_up()

    def _begin_anew(self) -> None:
        self._end = None
        self._lines = 0
        self._sum_up()

    def _sum_up(self) -> None:
        kept_back, self._kept_back = self._kept_back, Counter()
        if kept_back:
            kinds = ", ".join(f"{count} x {kind}" for kind, count in kept_back.most_common())
            self._logger.info("%d %s: %s", kept_back.total(), self._what, kinds)
