"""A script is replayed by writing it anew; nothing but what commands print may change."""

from __future__ import annotations

import pytest

from kreplica.sim.transcript.runner import ScriptError, replay


def run(line):
    words = line.split()
    if words[0] == "say":
        return words[1:]
    if words[0] == "silent":
        return []
    raise ScriptError(f"there is no command {words[0]!r}")


SCRIPT = """\
# A comment.
silent

say one two
# Another, within the block.
say three
----
one
two
three

say four
----
four
"""


def test_a_script_that_holds_stays_as_it_is():
    assert replay(SCRIPT, run) == SCRIPT


def test_output_is_made_anew():
    assert (
        replay(SCRIPT.replace("two\n", "old\nolder\n", 1).replace("say one old\nolder", "say one two"), run)
        == SCRIPT
    )
    assert replay("say one\n\n\nsay two", run) == "say one\n----\none\n\n\nsay two\n----\ntwo\n"


def test_output_that_is_gone_goes_with_its_divider():
    assert replay("silent\n----\nonce\n\nsay one\n", run) == "silent\n\nsay one\n----\none\n"


def test_an_error_names_the_line():
    with pytest.raises(ScriptError, match="line 3, 'shout x': there is no command 'shout'"):
        replay("silent\n\nshout x\n", run)


def test_a_failure_is_noted_with_its_line():
    def broken(line):
        raise ValueError(line)

    with pytest.raises(ValueError) as caught:
        replay("# x\nsay one\n", broken)
    assert caught.value.__notes__ == ["in line 2 of the script: say one"]
