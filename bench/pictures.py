"""Pictures of the docs that come from runs of the code: `make pictures`.

docs/pictures/isr.png: a partition of three replicas in a simulated cluster, sampled while a follower is
paused and resumed, and the leader is killed and started again. The seed makes it the same picture every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

import kreplica
from kreplica.broker.node import Node
from kreplica.common.types import TopicPartition
from kreplica.log.unified_log import UnifiedLog

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "isr.png"
SEED = 7
TOPIC = "orders"
STEP_MS, APPEND_EVERY_MS = 5, 20
COLOURS = {1: "#c4472b", 2: "#4a6fa5", 3: "#7d8f69"}
# The times of the actions. The follower is the last of the assignment, the leader the first.
PAUSE_MS, RESUME_MS, KILL_MS, START_MS, END_MS = 500, 1_500, 2_500, 3_300, 4_500


@dataclass
class Sample:
    """The state at a moment."""

    ms: int
    leader: int | None
    isr: tuple[int, ...]
    high_watermark: int | None
    log_ends: dict[int, int]


def watched() -> tuple[list[Sample], tuple[int, int]]:
    """Run the simulation; return the samples and the ids of the paused and the killed node."""
    samples: list[Sample] = []
    with kreplica.Simulation(seed=SEED, brokers=3) as sim:
        sim.create_topic(TOPIC, config={"min.insync.replicas": 2})
        sim.append(TOPIC, [b"first"], partition=0).result()
        partition, began = sim.partition(TOPIC), sim.now_ms
        leader, follower = partition.replicas[0], partition.replicas[-1]
        faults = {
            PAUSE_MS: lambda: sim.pause(follower),
            RESUME_MS: lambda: sim.resume(follower),
            KILL_MS: lambda: sim.kill(leader),
            START_MS: lambda: sim.start(leader, wait=False),
        }
        for ms in range(0, END_MS, STEP_MS):
            if fault := faults.get(ms):
                fault()
            if ms % APPEND_EVERY_MS == 0:
                sim.append(TOPIC, [b"value"], partition=0)
            sim.run_for(began + ms + STEP_MS - sim.now_ms)
            samples.append(sample(sim, ms))
        sim.check()
    return samples, (follower, leader)


def sample(sim: kreplica.Simulation, ms: int) -> Sample:
    """Take a sample of the current state; a node that does not run has no values."""
    ends: dict[int, int] = {}
    view = sim.partition(TOPIC)
    watermark = None
    for node_id, state in sim.describe()["nodes"].items():
        log = log_of(sim.node(node_id)) if state["is_alive"] else None
        if log is not None:
            ends[node_id] = log.log_end_offset
            if node_id == view.leader:
                watermark = log.high_watermark
    return Sample(ms, view.leader, view.isr, watermark, ends)


def log_of(node: Node) -> UnifiedLog | None:
    """Return the partition's log on the node, None if it is not open."""
    is_up = node.is_open and node.broker is not None
    return node.broker.log_manager.get_log(TopicPartition(TOPIC, 0)) if is_up else None


def draw(samples: list[Sample], faults: tuple[int, int]) -> None:
    """Draw log ends and the high watermark over time, and below them the ISR."""
    picture, (above, below) = plt.subplots(
        2, 1, figsize=(9, 4.6), sharex=True, layout="constrained", height_ratios=(3, 1)
    )
    for node_id, colour in COLOURS.items():
        points = [(each.ms, each.log_ends[node_id]) for each in samples if node_id in each.log_ends]
        above.plot(
            *zip(*points, strict=True), ".", color=colour, markersize=2, label=f"log end of broker {node_id}"
        )
    marks = [(each.ms, each.high_watermark) for each in samples if each.high_watermark is not None]
    above.plot(
        *zip(*marks, strict=True),
        color="#c9c2b5",
        linewidth=5,
        zorder=0,
        label="high watermark of the leader",
    )
    follower, leader = faults
    events = {
        PAUSE_MS: f"broker {follower}\nis paused",
        RESUME_MS: "resumes",
        KILL_MS: f"leader {leader}\nis killed",
        START_MS: "starts again",
    }
    top = max(end for each in samples for end in each.log_ends.values())
    for ms, text in events.items():
        for axes in (above, below):
            axes.axvline(ms, color="grey", linewidth=0.8, linestyle=":")
        above.text(ms + 20, top, text, fontsize=8, va="top")
    above.set_ylabel("offset")
    above.legend(fontsize=8, frameon=False, loc="lower right", markerscale=4)
    for node_id, colour in COLOURS.items():
        for kind, height, is_shown in (("isr", 0.55, in_sync), ("leader", 0.9, leads)):
            spans = [(each.ms, STEP_MS) for each in samples if is_shown(each, node_id)]
            below.broken_barh(
                spans,
                (node_id - height / 2, height),
                color=colour,
                linewidth=0,
                alpha=0.35 if kind == "isr" else 1,
            )
    below.set_yticks(list(COLOURS), [f"broker {node_id}" for node_id in COLOURS], fontsize=8)
    below.set_xlabel("virtual milliseconds; pale: in sync, full: leads")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    picture.savefig(PICTURE, dpi=110)


def in_sync(moment: Sample, node_id: int) -> bool:
    return node_id in moment.isr


def leads(moment: Sample, node_id: int) -> bool:
    return moment.leader == node_id


if __name__ == "__main__":
    draw(*watched())
