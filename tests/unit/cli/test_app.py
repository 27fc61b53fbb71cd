"""The frame of the command line: help, version, exit codes, and what is not imported before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kreplica import cli
from kreplica.cli.app import app
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


def test_help_imports_no_engine() -> None:
    listing = "import sys, {}; print(*(name for name in sys.modules if name.startswith('kreplica')))"

    def loaded_by(module: str) -> set[str]:
        command = [sys.executable, "-c", listing.format(module)]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    frame = {"kreplica.cli", "kreplica.cli.app"}
    assert loaded_by("kreplica.cli.app") - loaded_by("kreplica") <= frame


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
