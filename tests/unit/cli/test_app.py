"""The frame of the command line: help, version, exit codes, and what is not imported before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from kreplica import cli
from kreplica.cli.app import app, help_page
from kreplica.common.errors import StorageIOError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kreplica", *arguments], capture_output=True, text=True, check=False
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.strip()
    shown = run("--help")
    assert shown.returncode == 0
    assert "Usage: kreplica" in shown.stdout
    assert "kreplica[spark]" in run("verify", "--help").stdout


def test_unknown_command_is_a_usage_error() -> None:
    refused = run("no-such-command")
    assert refused.returncode == 2
    assert "no-such-command" in refused.stderr


def test_an_error_of_ours_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise StorageIOError("reading x: Input/output error")

    monkeypatch.setattr(app, "registered_commands", [])
    app.command("fails")(fails)
    monkeypatch.setattr(sys, "argv", ["kreplica", "fails"])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1
    assert capsys.readouterr().err == "kreplica: reading x: Input/output error\n"


def commands_below(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield names
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_below(each, (*names, name))


COMMANDS = list(commands_below(typer.main.get_command(app)))


@pytest.mark.usefixtures("commands_are_built_once")
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_the_help_page_of_a_command_is_typers(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        app([*names, "--help"], prog_name="kreplica")
    assert help_page([*names, "--help"]) == help_page([*names, "-h"]) == capsys.readouterr().out.rstrip("\n")


@pytest.mark.usefixtures("commands_are_built_once")
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_lists_of_commands_have_whole_sentences(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = help_page([*names, "-h"])
    assert page is not None
    commands = page.partition("Commands:")[2].splitlines()
    assert not [line for line in commands if line.endswith("...")]


@pytest.mark.parametrize("arguments", [[], ["topic"], ["--version"], ["nothing", "-h"], ["topic", "-h", "x"]])
def test_other_arguments_ask_for_no_help_page(arguments: list[str]) -> None:
    assert help_page(arguments) is None


def test_help_is_short_and_names_no_type_for_a_flag() -> None:
    for arguments in (["-h"], ["consume", "-h"], ["topic", "create", "-h"], ["export", "--help"]):
        shown = run(*arguments)
        assert shown.returncode == 0
        assert "-h, --help" in shown.stdout
        assert "<bool>" not in shown.stdout


def test_completion_is_offered() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "kreplica"],
        env={
            **os.environ,
            "_KREPLICA_COMPLETE": "complete_bash",
            "COMP_WORDS": "kreplica ver",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout.split() == ["verify"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_standard_output_is_one_line_and_exit_code_1() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "kreplica", "--version"]
        refused = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr == "kreplica: No space left on device\n"
