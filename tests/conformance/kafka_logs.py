"""Kafka's UnifiedLog and Cleaner on directories of ours: the Python end of java/Compaction.java.

    with KafkaLogs() as kafka:
        kafka.append(log, [{"records": [[now_ms, "key", "value"]]}, {"roll": True}], now_ms=now_ms)
        kafka.clean(log, now_ms=now_ms, settings={"cleanup.policy": "compact"})
        kafka.dump(log)

One JVM serves all; each call opens the log and closes it again. Settings have Kafka's names. Bytes are text,
a character each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.java_program import JavaConversation
from tests.conformance.kafka_peer import HERE, PeerError

SOURCES = (HERE / "java" / "Compaction.java", HERE / "java" / "Dump.java")
SLOT_BYTES = 24  # of an offset map: 16 of a key's hash, 8 of its offset

Settings = Mapping[str, object]


def topic_settings(settings: Settings, **more: object) -> dict[str, object]:
    """A topic's settings as Kafka takes them from tests: segments may be smaller than 1 MiB. `more` has
    underscores for dots."""
    all_settings = {**settings, **{name.replace("_", "."): value for name, value in more.items()}}
    small = {"segment.bytes": "internal.segment.bytes"}
    return {small.get(name, name): value for name, value in all_settings.items()}


class KafkaLogs(JavaConversation):
    """A JVM that runs java/Compaction.java."""

    def __init__(self) -> None:
        super().__init__("Compaction", sources=SOURCES)

    def append(
        self,
        log: Path,
        batches: Sequence[Mapping[str, object]],
        *,
        now_ms: int,
        settings: Settings | None = None,
        clean: bool = True,
        killed: bool = False,
    ) -> list[Any]:
        """What became of each batch: [first offset, last offset], or the name of what Kafka threw.

        `clean`: whether the log was closed before; `killed`: it is not closed behind the last batch.
        """
        log.mkdir(parents=True, exist_ok=True)
        more = {"batches": list(batches), "killed": killed}
        return self._ask("append", log, settings, now=now_ms, clean=clean, **more)

    def clean(
        self,
        log: Path,
        *,
        now_ms: int,
        settings: Settings | None = None,
        rounds: int = 100,
        map_bytes: int = 1 << 20,
        snapshots: Path | None = None,
    ) -> list[list[int]]:
        """Clean the log as a broker's cleaner would now; return for each round its first dirty offset, the
        first uncleanable one, and the offset that it reached.

        The checkpoint is in the parent directory. `snapshots` takes copies of the log, one in each of its
        folders, from within the cleaning.
        """
        more = {"rounds": rounds, "map_bytes": map_bytes}
        if snapshots is not None:
            more["snapshots"] = str(snapshots)
        return self._ask("clean", log, settings, now=now_ms, **more)

    def dump(self, log: Path) -> list[dict[str, Any]]:
        """Each segment with all its batches, their records, and its aborted transactions."""
        return self._ask("dump", log, None)

    def read(
        self, log: Path, *, now_ms: int, settings: Settings | None = None, clean: bool = True
    ) -> dict[str, Any]:
        """Offsets, records in both isolation levels, and producers, of the log as Kafka opens it."""
        return self._ask("read", log, settings, now=now_ms, clean=clean)

    def _ask(self, do: str, log: Path, settings: Settings | None, **more: object) -> Any:
        command = {"do": do, "log": str(log), "settings": topic_settings(settings or {}), **more}
        self.write_line(json.dumps(command))
        line = self.read_line()
        answer = json.loads(line) if line else {"error": "it ended"}
        if isinstance(answer, dict) and "error" in answer:
            said = self.log.read_text()[-4000:].strip()
            raise PeerError(f"{do} of {log}: {answer['error']}\n{said}")
        return answer
