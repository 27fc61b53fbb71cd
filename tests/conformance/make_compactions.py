"""Let Kafka's cleaner go through scripted logs, and keep what it found and what it made of it.

`python -m tests.conformance.make_compactions` renews tests/data/kafka-4.3/compactions, in seconds.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.conformance.compaction_scripts import Script, draw
from tests.conformance.compactions import COMPACTIONS, Compaction, files_of, save
from tests.conformance.kafka_logs import SLOT_BYTES, KafkaLogs
from tests.conformance.kafka_peer import missing

# Between them: every codec, LogAppendTime, transactions, tombstones and markers past their horizon, rounds
# that end where the map is full, and a compaction lag.
SEEDS = (0, 5, 7, 13, 18, 23, 35)


def visits(kafka: KafkaLogs, script: Script, log: Path) -> list[Compaction]:
    """Append what the script says to `log`, a new one, and let the cleaner come after each of its rounds."""
    compact = {**script.settings, "cleanup.policy": "compact"}
    found: list[Compaction] = []
    checkpoint = None
    for each in script.rounds:
        answers = kafka.append(log, each.batches, now_ms=each.now_ms, settings=script.settings)
        assert not any(isinstance(answer, str) for answer in answers), answers
        before = files_of(log)
        rounds = kafka.clean(log, now_ms=each.now_ms, settings=compact, map_bytes=SLOT_BYTES * script.slots)
        after = files_of(log)
        read = kafka.read(log, now_ms=each.now_ms, settings=script.settings)
        settings, slots = script.settings, script.slots
        found.append(Compaction(settings, slots, each.now_ms, checkpoint, before, rounds, after, read))
        checkpoint = rounds[-1][2] if rounds else checkpoint
    return found


def main() -> int:
    """Renew the committed ones; 1 with the reason where Kafka is not to be had."""
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    shutil.rmtree(COMPACTIONS, ignore_errors=True)
    COMPACTIONS.mkdir(parents=True)
    with KafkaLogs() as kafka, tempfile.TemporaryDirectory() as scratch:
        for seed in SEEDS:
            file = COMPACTIONS / f"script-{seed}.jsonl.gz"
            save(file, visits(kafka, draw(seed), Path(scratch) / str(seed) / "t-0"))
            print(f"{file.name}: {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
