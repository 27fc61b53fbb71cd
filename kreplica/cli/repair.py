"""`kreplica repair`: find problems in a log's files, and with `--apply` repair them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from kreplica.cli.output import print_json, print_table, progress, say
from kreplica.log.repair import Finding, is_partition, repair
from kreplica.log.repair.plan import BLOCKED
from kreplica.log.verify import total_bytes
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

COLUMNS = ("path", "kind", "offset", "next_offset", "position", "end_position", "action", "text", "done")


def run(path: str, peer: str | None, apply: bool, as_json: bool) -> int:
    """Check the log or log directory at `path`, and repair it if `apply`; returns the exit code."""
    storage = FileStorage()
    findings: list[Finding] = []
    with progress("repair", total_bytes(storage, path)) as advance:
        for finding in repair(storage, SystemClock(), path, apply_changes=apply, peer=peer, progress=advance):
            findings.append(finding)
            if as_json:
                print_json(asdict(finding))
    left = sum(finding.is_open for finding in findings)
    if not as_json:
        if findings:
            print_table("Findings", COLUMNS, map(asdict, findings))
        say(_summary(findings, left, apply))
    return 1 if left else 0


def _summary(findings: list[Finding], left: int, apply: bool) -> str:
    if not findings:
        return "nothing to repair"
    if apply:
        done = sum(finding.done for finding in findings)
        return f"{done} repaired, {left} left" if done or left else "nothing to repair"
    if not left:
        return "nothing to repair"
    blocked = sum(finding.action == BLOCKED for finding in findings)
    if blocked:
        return f"{left} problems, {blocked} of them cannot be repaired; nothing was changed"
    return f"{left} to repair; nothing was changed: repeat with --apply"


def is_log(path: Path) -> bool:
    """Whether it is the directory of a partition, or contains such directories."""
    if not path.is_dir():
        return False
    names = sorted(below.name for below in path.iterdir())
    return (
        "meta.properties" in names
        or is_partition(names)
        or any(
            below.is_dir() and is_partition([file.name for file in below.iterdir()])
            for below in path.iterdir()
        )
    )
