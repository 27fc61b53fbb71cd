"""Profiles: what `kreplica profile` keeps, and which commands use it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kreplica.cli import client_config, cluster
from kreplica.cli.app import app
from kreplica.common.errors import (
    DuplicateResource,
    InvalidConfig,
    InvalidFile,
    KafkaStorageError,
    ResourceNotFound,
)

LOGIN = """security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="alice" password="sesame";
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration directory, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("KREPLICA_BOOTSTRAP", raising=False)
    (tmp_path / "prod.properties").write_text(LOGIN)
    return tmp_path


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The servers and the user with which a command would connect."""
    found: list[tuple[str, str | None]] = []

    def info(bootstrap: str, _: bool) -> int:
        login = client_config.chosen().login
        found.append((bootstrap, None if login is None else login.user))
        return 0

    monkeypatch.setattr(cluster, "info", info)
    yield found
    client_config.use(None)


def run(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(app, arguments, env=environment)


def add(home: Path, name: str = "prod", *more: str) -> Any:
    config = str(home / "prod.properties")
    return run(
        "profile", "add", name, "--bootstrap-server", f"{name}:9092", "--command-config", config, *more
    )


def test_a_profile_is_kept_for_its_user_only(home: Path) -> None:
    assert "there are no profiles yet" in run("profile", "list").stdout
    assert add(home).exit_code == 0
    path = home / "config" / "kreplica" / "profiles.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "sesame" not in path.read_text()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    [fact] = [json.loads(line) for line in run("profile", "list", "--json").stdout.splitlines()]
    assert fact == {
        "name": "prod",
        "current": True,
        "bootstrap": "prod:9092",
        "command_config": str(home / "prod.properties"),
    }
    shown = run("profile", "show").stdout
    assert "prod:9092" in shown
    assert "sesame" not in shown


def test_commands_use_the_profile_unless_servers_are_named(home: Path, used: Any) -> None:
    add(home)
    for arguments, environment in (
        (("cluster", "info"), {}),
        (("--profile", "prod", "cluster", "info"), {}),
        (("cluster", "info"), {"KREPLICA_PROFILE": "prod"}),
        (("cluster", "info", "-b", "other:1"), {}),
        (("cluster", "info"), {"KREPLICA_BOOTSTRAP": "other:2"}),
    ):
        client_config.use(None)
        result = run(*arguments, **environment)
        assert result.exit_code == 0, (result.output, result.exception)
    assert used == [*[("prod:9092", "alice")] * 3, ("other:1", None), ("other:2", None)]


def test_what_the_command_line_says_comes_before_the_environment(home: Path, used: Any) -> None:
    add(home)
    other = home / "other.properties"
    other.write_text(LOGIN.replace("alice", "bob"))
    environment = {
        "KREPLICA_BOOTSTRAP": "other:2",
        "KREPLICA_PROFILE": "none",
        "KREPLICA_COMMAND_CONFIG": str(other),
    }
    for arguments in (
        ("--profile", "prod", "cluster", "info"),
        ("--profile", "prod", "--command-config", str(other), "cluster", "info"),
        ("--profile", "prod", "cluster", "info", "-b", "other:1"),
        ("cluster", "info"),
    ):
        client_config.use(None)
        result = run(*arguments, **environment)
        assert result.exit_code == 0, (result.output, result.exception)
    assert used == [("prod:9092", "alice"), ("prod:9092", "bob"), ("other:1", "bob"), ("other:2", "bob")]


@pytest.mark.usefixtures("home")
def test_a_profile_that_is_not_there_is_named() -> None:
    error = run("--profile", "prod", "cluster", "info", KREPLICA_BOOTSTRAP="other:2").exception
    assert isinstance(error, ResourceNotFound)
    assert "there is no profile 'prod': kreplica profile add prod -b" in str(error)


def test_another_profile_is_chosen_for_good_or_for_once(home: Path, used: Any) -> None:
    add(home)
    assert "commands use it" not in run("profile", "add", "test", "-b", "test:1,test:2").stdout
    for arguments in (
        ("--profile", "test", "cluster", "info"),
        ("cluster", "info"),
        ("profile", "use", "test"),
        ("cluster", "info"),
        ("--profile", "prod", "cluster", "info"),
        ("profile", "remove", "test"),
        ("cluster", "info"),
    ):
        client_config.use(None)
        assert run(*arguments).exit_code == 0
    test, prod = ("test:1,test:2", None), ("prod:9092", "alice")
    assert used == [test, prod, test, prod, ("127.0.0.1:9092", None)]


def test_a_file_given_by_hand_wins_over_that_of_the_profile(home: Path, used: Any) -> None:
    add(home)
    other = home / "other.properties"
    other.write_text(LOGIN.replace("alice", "bob"))
    run("--command-config", str(other), "cluster", "info")
    assert used == [("prod:9092", "bob")]


def test_a_file_that_is_gone_matters_to_connections_only(home: Path, used: Any) -> None:
    add(home)
    (home / "prod.properties").unlink()
    assert run("profile", "list").exit_code == 0
    assert isinstance(run("cluster", "info").exception, KafkaStorageError)
    assert run("cluster", "info", "-b", "other:1").exit_code == 0
    assert used == [("other:1", None)]


def test_help_is_the_same_with_a_profile(home: Path) -> None:
    add(home)
    shown = run("cluster", "info", "--help")
    assert (shown.exit_code, "KREPLICA_BOOTSTRAP" in shown.stdout) == (0, True)


def test_names_are_completed(home: Path) -> None:
    add(home)
    add(home, "preview")
    environment = {
        "_KREPLICA_COMPLETE": "complete_bash",
        "COMP_WORDS": "kreplica profile use pr",
        "COMP_CWORD": "3",
    }
    completed = CliRunner().invoke(app, prog_name="kreplica", env=environment)
    assert completed.stdout.split() == ["preview", "prod"]


def test_mistakes_are_refused(home: Path) -> None:
    add(home)
    assert isinstance(add(home).exception, DuplicateResource)
    assert add(home, "prod", "--replace").exit_code == 0
    assert isinstance(add(home, "a b").exception, InvalidConfig)
    unknown = run("profile", "use", "none").exception
    assert isinstance(unknown, ResourceNotFound)
    assert str(unknown) == "there is no profile 'none': there is 'prod'; `kreplica profile list` shows all"
    assert run("profile", "add", "x", "-b", "no-port").exit_code == 2
    (home / "prod.properties").write_text("security.protocol=SECRET\n")
    assert isinstance(add(home, "other").exception, InvalidConfig)
    add(home, "test")
    run("profile", "remove", "prod")
    unused = run("profile", "show").exception
    assert isinstance(unused, ResourceNotFound)
    assert "no profile is in use: kreplica profile use NAME" in str(unused)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"current":"","profiles":{}}',
        '{"version":1,"current":"","profiles":[]}',
        '{"version":1,"current":"","profiles":{"a":1}}',
        '{"version":1,"current":"","profiles":{"a":{"bootstrap":1}}}',
        '{"version":1,"current":"","profiles":{"a":{"bootstrap":"","command_config":1}}}',
    ],
)
def test_a_damaged_file_is_named(home: Path, text: str) -> None:
    add(home)
    path = home / "config" / "kreplica" / "profiles.json"
    path.write_text(text)
    error = run("profile", "list").exception
    assert isinstance(error, InvalidFile)
    assert str(path) in str(error)


def test_a_file_that_others_may_write_is_refused(home: Path) -> None:
    add(home)
    path = home / "config" / "kreplica" / "profiles.json"
    path.chmod(0o622)
    error = run("profile", "list").exception
    assert isinstance(error, InvalidFile)
    assert "chmod 600" in str(error)
