"""The commands of scripts: all are in the manual, and wrong ones are refused with what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.sim.transcript.runner import COMMANDS, Transcript
from kreplica.sim.transcript.script import ScriptError
from kreplica.sim.transcript.simulated import MODULES, simulated_cluster

MANUAL = Path(__file__).parents[4] / "docs" / "SIMULATOR.md"


def table_of_commands():
    lines = ["| command | what it does |", "|---|---|"]
    for command in COMMANDS.values():
        usage = " or ".join(f"`{way}`" for way in command.usage.split(" | ")).replace("|", "\\|")
        lines.append(f"| {usage} | {command.help} |")
    return lines


def test_the_manual_lists_the_language():
    assert MODULES
    missing = [line for line in table_of_commands() if line not in MANUAL.read_text().splitlines()]
    assert missing == []


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["dance"], "no command 'dance'"),
        (["start 1"], "begins with its brokers"),
        (["brokers x"], "a broker is a number, not 'x'"),
        (["brokers 1", "brokers 2"], "there already"),
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
    ],
)
def test_what_is_wrong_is_said(lines, match):
    transcript = Transcript(simulated_cluster)
    for line in lines[:-1]:
        transcript.run(line)
    with pytest.raises(ScriptError, match=match):
        transcript.run(lines[-1])
