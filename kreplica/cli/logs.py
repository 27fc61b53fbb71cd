"""Logging of a serving process: to standard error, as text or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


def set_up(log_format: str, level: str, node: str) -> None:
    """Log from now on as "text" or "json", with `node` in each line. Replaces earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(node) if log_format == "json" else _text(node))
    root = logging.getLogger()
    for each in list(root.handlers):
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(level.upper())


def _text(node: str) -> logging.Formatter:
    return logging.Formatter(f"%(asctime)s {node} %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    """Formats a line as one object: time (ISO 8601, UTC), node, level, logger, message, and error if there is
    one."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        fact: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "node": self._node,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fact["error"] = self.formatException(record.exc_info)
        return json.dumps(fact, ensure_ascii=False)
