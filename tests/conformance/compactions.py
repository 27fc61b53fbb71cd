"""Logs as they were before Kafka's cleaner came and what it made of them, in files: read here, without Java.

make_compactions writes them to tests/data/kafka-4.3/compactions: one file a script of compaction_scripts, one
line a visit of the cleaner.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COMPACTIONS = Path(__file__).parents[1] / "data" / "kafka-4.3" / "compactions"

META_PROPERTIES = "version=1\ncluster.id=a3JlcGxpY2EtY29uZm9ybQ\nnode.id=1\n"

Files = dict[str, bytes]


@dataclass(frozen=True)
class Compaction:
    """One visit of Kafka's cleaner.

    `before`: the log's files, closed in order; `checkpoint`: the offset it was clean up to, None where it
    never was cleaned; `now_ms`: when the cleaner came; `slots`: those of its offset map, which it fills to
    nine tenths; `rounds`: each round's first dirty offset, first uncleanable one, and the offset it came to;
    `after`: the files it left; `read`: what Kafka then reads of them (see java/Compaction.java).
    """

    settings: dict[str, object]
    slots: int
    now_ms: int
    checkpoint: int | None
    before: Files
    rounds: list[list[int]]
    after: Files
    read: dict[str, Any]


def save(file: Path, compactions: list[Compaction]) -> None:
    """Write the visits to one log, in order; a file of bytes becomes text of a character each."""
    lines = [asdict(each) for each in compactions]
    for line in lines:
        for files in (line["before"], line["after"]):
            files.update({name: data.decode("latin-1") for name, data in files.items()})
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def load(file: Path) -> list[Compaction]:
    """The visits that `save` wrote."""
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        visits = [json.loads(line) for line in lines]
    for visit in visits:
        for files in (visit["before"], visit["after"]):
            files.update({name: text.encode("latin-1") for name, text in files.items()})
    return [Compaction(**visit) for visit in visits]


def files_of(log: Path) -> Files:
    """The contents of a log's directory."""
    return {file.name: file.read_bytes() for file in sorted(log.iterdir())}


def write_files(log: Path, files: Mapping[str, bytes], *, flushed: int | None = None) -> Path:
    """A log's directory with these contents; `flushed`: what its node's log directory says is on disk."""
    log.mkdir(parents=True)
    for name, data in files.items():
        (log / name).write_bytes(data)
    if flushed is not None:
        name = log.name.replace("-", " ")
        (log.parent / "meta.properties").write_text(META_PROPERTIES)
        (log.parent / "recovery-point-offset-checkpoint").write_text(f"0\n1\n{name} {flushed}\n")
    return log
