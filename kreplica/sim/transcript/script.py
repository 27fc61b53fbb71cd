"""The text of a transcript: blocks of command lines, each followed by `----` and what the lines print.

    # A comment, which is kept.
    produce m1
    status
    ----
    m1: pending
    broker  role    ...

A block ends at an empty line or at the end of the text; a block that prints nothing has no `----`. A replay
produces the text anew with the current output. The script passes if the text is the same. So checking a
script is a comparison, and updating it means keeping the new text. No state; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

DIVIDER = "----"
COMMENT = "#"

# Runs a command line and returns the lines that it prints.
RunCommand = Callable[[str], Sequence[str]]


class ScriptError(ValueError):
    """The script cannot be run: an unknown command, a missing argument. The message has the line's number."""


def first_command(text: str) -> str:
    """Return the first word of the first command line, which is the kind of script, else ""."""
    lines = (line.strip() for line in text.splitlines())
    return next((line.split()[0] for line in lines if line and not line.startswith(COMMENT)), "")


def replay(text: str, run: RunCommand) -> str:
    """Return the text with the output that `run` returns for its commands. Raises ScriptError."""
    made: list[str] = []
    commands: list[tuple[int, str]] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].rstrip()
        at += 1
        if line == DIVIDER:
            # Skip the previous output, which is produced anew.
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
