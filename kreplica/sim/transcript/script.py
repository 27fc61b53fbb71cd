"""A transcript's text: blocks of command lines, and under a line `----` what they print.

    # A comment, which stays where it is.
    produce m1
    status
    ----
    m1: pending
    broker  role    ...

A block ends at an empty line or at the end of the text; one that prints nothing has no `----`. To replay a
text is to write it anew with what its commands print now: it holds if that is the same text. So a script is
checked by comparing, and brought up to date by keeping the new one. No state; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

DIVIDER = "----"
COMMENT = "#"

# Runs one command line: the lines that it prints.
RunCommand = Callable[[str], Sequence[str]]


class ScriptError(ValueError):
    """A script that cannot be run: an unknown command, a missing argument. Names the line's number."""


def first_command(text: str) -> str:
    """The first word of the first command line, which says what the script is of; "" where there is none."""
    lines = (line.strip() for line in text.splitlines())
    return next((line.split()[0] for line in lines if line and not line.startswith(COMMENT)), "")


def replay(text: str, run: RunCommand) -> str:
    """The text with the output of its commands as `run` gives it. Raises ScriptError."""
    made: list[str] = []
    commands: list[tuple[int, str]] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].rstrip()
        at += 1
        if line == DIVIDER:
            # What was printed when the script was written; it is made anew.
            while at < len(lines) and lines[at].strip():
                at += 1
        elif line:
            if not line.startswith(COMMENT):
                commands.append((at, line))
            made.append(line)
            continue
        if commands:
            made += _output(commands, run)
            commands = []
        if line != DIVIDER:
            made.append(line)
    made += _output(commands, run)
    return "\n".join(made).rstrip("\n") + "\n"


def _output(commands: Sequence[tuple[int, str]], run: RunCommand) -> list[str]:
    printed: list[str] = []
    for number, command in commands:
        try:
            printed += run(command)
        except ScriptError as error:
            raise ScriptError(f"line {number}, {command!r}: {error}") from None
        except Exception as error:
            error.add_note(f"in line {number} of the script: {command}")
            raise
    assert all(line.strip() for line in printed), f"an empty line would end the output: {printed}"
    return [DIVIDER, *(line.rstrip() for line in printed)] if printed else []
