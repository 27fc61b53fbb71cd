"""The commands of scripts: all are in the manual, and wrong ones are refused with what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.sim.transcript.node_commands import NODE_COMMANDS, NodesTranscript
from kreplica.sim.transcript.quorum_commands import QUORUM_COMMANDS, QuorumTranscript
from kreplica.sim.transcript.runner import COMMANDS, ScriptError, Transcript
from kreplica.sim.transcript.simulated import simulated_cluster

MANUAL = Path(__file__).parents[4] / "docs" / "SIMULATOR.md"


def table_of(commands):
    lines = ["| command | what it does |", "|---|---|"]
    for command in commands.values():
        usage = " or ".join(f"`{way}`" for way in command.usage.split(" | ")).replace("|", "\\|")
        lines.append(f"| {usage} | {command.help} |")
    return lines


@pytest.mark.parametrize(
    "commands", [COMMANDS, NODE_COMMANDS, QUORUM_COMMANDS], ids=["brokers", "nodes", "quorum"]
)
def test_the_manual_lists_the_language(commands):
    missing = [line for line in table_of(commands) if line not in MANUAL.read_text().splitlines()]
    assert missing == []


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["dance"], "no command 'dance'"),
        (["start 1"], "begins with its brokers"),
        (["brokers x"], "a broker is a number, not 'x'"),
        (["brokers 1", "brokers 2"], "exist already"),
        (["brokers 1", "produce m"], "no topic yet"),
        (["brokers 1", "topic t 1", "status u-0"], "no partition u-0"),
        (["brokers 1", "topic t 1", "status now"], "not understood: now"),
        (["brokers 1", "topic t 1", "status x=y"], "not understood: x=y"),
        (["brokers 1", "topic t 1", "lead"], "the leader is missing"),
        (["brokers 1", "deliver fetch"], "no message is held like fetch"),
        (["brokers 1", "drop fetch"], "no message is held like fetch"),
        (["brokers 1", "release fetch"], "no such hold; there are: none"),
        (["brokers 1", "hold fetch", "hold fetch"], "held already"),
        (["brokers 1", "fetch 1"], "hold fetch first"),
        (["brokers 1", "fetch"], "a broker is missing"),
        (["brokers 1", "disk 1 purple"], "full, broken or well, not 'purple'"),
        (["brokers 1", "isr reject NONSENSE"], "no error 'nonsense'"),
        (["brokers 1", "isr reject FENCED_LEADER_EPOCH"], "no request waits"),
        (["brokers 1", "isr maybe"], "hold, accept or reject, not 'maybe'"),
        (["brokers 1", "start 1"], "1 runs"),
        (["brokers 1", "kill 1", "kill 1"], "1 does not run"),
        (["brokers 1", "kill 7"], "there is no broker 7"),
        (["brokers 1 2", "topic t 1,2,3"], "there is no broker 3"),
    ],
)
def test_what_is_wrong_is_said(lines, match):
    transcript = Transcript(simulated_cluster)
    for line in lines[:-1]:
        transcript.run(line)
    with pytest.raises(ScriptError, match=match):
        transcript.run(lines[-1])


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["isr hold"], "no command 'isr'"),
        (["start 1"], "begins with its"),
        (["topic t 1"], "begins with its nodes"),
        (["nodes"], "how many brokers is missing"),
        (["nodes 1 now"], "not understood: now"),
        (["nodes 1", "nodes 1"], "exist already"),
        (["nodes 1", "kill 7"], "there is no broker 7"),
        (["nodes 1", "status t-0"], "there is no partition t-0"),
        (["nodes 1", "kill controller", "kill controller"], "there is no active controller"),
        (["nodes 1", "topic t 1", "kill 1", "clock +20000", "produce m"], "t-0 has no leader"),
    ],
)
def test_what_is_wrong_in_a_script_of_nodes_is_said(lines, match):
    transcript = NodesTranscript()
    for line in lines[:-1]:
        transcript.run(line)
    with pytest.raises(ScriptError, match=match):
        transcript.run(lines[-1])


def test_a_script_of_nodes_prints_what_the_controllers_do():
    transcript = NodesTranscript()
    transcript.run("nodes 2 controllers=3")
    assert transcript.run("topic t 2,1") == [
        "controller: t-0: leader 2 in epoch 0, ISR 1,2 (partition epoch 0)"
    ]
    assert transcript.run("topic t 2,1") == ["refused: TopicAlreadyExists"]
    active = transcript.node_of("controller")
    assert f"{active}  leader    1      {active}" in transcript.run("quorum")
    lines = [*transcript.run("kill controller"), *transcript.run("clock +5000")]
    assert f"{transcript.node_of('controller')} is the active controller, in epoch 2" in lines
    assert f"{active}  down" in transcript.run("quorum")
    assert transcript.run("config t retention.ms=1") == []
    moved = "".join([*transcript.run("reassign 1,2"), *transcript.run("elect")])
    assert "leader 1 in epoch 1" in moved
    assert "leader 2 in epoch 2" in "".join(transcript.run("stop 1"))
    assert transcript.run("partition") == ["t-0: leader 2 in epoch 2, ISR 2 (partition epoch 3)"]


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["produce m"], "no command 'produce'"),
        (["kill 1"], "begins with its"),
        (["status"], "begins with its voters"),
        (["voters 1", "voters 1"], "exist already"),
        (["voters 3", "kill 1", "append a"], "there is no leader"),
        (["voters 3", "wipe 1"], "1 runs"),
        (["voters 3", "ask-vote 1 epoch=1"], "a broker is a number, not ''"),
    ],
)
def test_what_is_wrong_in_a_script_of_a_quorum_is_said(lines, match):
    transcript = QuorumTranscript()
    for line in lines[:-1]:
        transcript.run(line)
    with pytest.raises(ScriptError, match=match):
        transcript.run(lines[-1])
