"""Where the library's log messages go: the formats of `kreplica serve`, and `enable_logging` for programs.

All loggers are below "kreplica", by the layer that logs: kreplica.log, kreplica.replica, kreplica.raft,
kreplica.controller, kreplica.coordinator, kreplica.broker, kreplica.client, kreplica.cluster,
kreplica.runtime and kreplica.spark. Two cut across the layers: kreplica.audit (who was refused and who
changed what, as JSON) and kreplica.state.change (new leaders and ISRs).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

ROOT = "kreplica"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class JsonFormatter(logging.Formatter):
    """Formats a line as one object: time (ISO 8601, UTC), node, level, logger, message, and error if there is
    one. Without a node it has none."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = {"node": node} if node else {}

    def format(self, record: logging.LogRecord) -> str:
        fact: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            **self._node,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fact["error"] = self.formatException(record.exc_info)
        return json.dumps(fact, ensure_ascii=False)


def text_formatter(node: str = "") -> logging.Formatter:
    """Return a formatter of lines for people: time, node, level, logger, message."""
    return logging.Formatter(f"%(asctime)s {node + ' ' if node else ''}%(levelname)s %(name)s: %(message)s")


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that `enable_logging` adds, recognised by its class at the next call."""


def enable_logging(level: str | int = "INFO", *, json: bool = False, stream: TextIO | None = None) -> None:
    """Print the library's log messages of at least `level` to `stream`, by default standard error.

    `json`: one object a line, as `kreplica serve --log-format json`. A later call replaces the former one's
    choices; other handlers stay, and messages no longer reach those of the root logger. Programs that set up
    logging themselves need not call it: the logger is "kreplica". `level`: a name, or a number of `logging`.
    Raises ValueError for an unknown level.
    """
    name = logging.getLevelName(level) if isinstance(level, int) else str(level).upper()
    if name not in LEVELS:
        raise ValueError(f"level {level!r} is not one of {', '.join(LEVELS)}")
    logger = logging.getLogger(ROOT)
    for each in [each for each in logger.handlers if isinstance(each, _Handler)]:
        logger.removeHandler(each)
    handler = _Handler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if json else text_formatter())
    logger.addHandler(handler)
    logger.setLevel(name)
    logger.propagate = False
