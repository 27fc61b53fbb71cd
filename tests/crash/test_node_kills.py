"""Nothing acknowledged is lost when nodes are killed and paused; KREPLICA_NODE_KILLS runs more faults."""

from __future__ import annotations

import os
from pathlib import Path

from tests.crash.node_kills import NodeKills

# Each kind of fault once; `make kills` runs many.
FAULTS = int(os.environ.get("KREPLICA_NODE_KILLS", "7"))
SEED = int(os.environ.get("KREPLICA_FIRST_SEED", "1"))
LONGEST_PAUSE_S = float(os.environ.get("KREPLICA_LONGEST_PAUSE_S", "3"))


def test_kills_and_pauses(tmp_path: Path) -> None:
    run = NodeKills(tmp_path, SEED, pause_s=(0.5, LONGEST_PAUSE_S))
    anomalies = run.run(FAULTS)
    print("\n".join(run.report))
    assert run.recorder.acknowledged > 100 * FAULTS
    assert anomalies == []
