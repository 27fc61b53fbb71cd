"""kreplica sim: what it prints, and its exit codes."""

from __future__ import annotations

import json
import logging

import pytest
from typer.testing import CliRunner

from kreplica.cli import sim
from kreplica.cli.app import app
from tests.mutants.mutants import switched_on


def run(*arguments):
    return CliRunner().invoke(app, ["sim", *arguments])


@pytest.mark.parametrize("driver", ["nodes", "brokers", "quorum"])
def test_the_same_seed_gives_the_same_event_hash(driver):
    results = [run("--driver", driver, "--seed", "3", "--events", "300", "--json") for _ in range(2)]
    assert [each.exit_code for each in results] == [0, 0]
    first, again = (json.loads(each.stdout) for each in results)
    assert first == again
    assert first["events"] >= 300
    assert first["violations"] == []
    assert first["counts"]


@pytest.mark.parametrize("driver", ["nodes", "brokers", "quorum"])
def test_seeds_are_run_one_after_the_other_for_minutes(driver):
    ran = run("--driver", driver, "--seed", "3", "--seeds", "2", "--minutes", "0.005", "--json")
    assert ran.exit_code == 0
    facts = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [fact["seed"] for fact in facts] == [3, 4]
    assert all(fact["virtual_ms"] >= 300 for fact in facts)


def test_a_violation_is_printed_with_a_readable_run():
    # From a seed on whose run has acknowledged something before it fails.
    with switched_on("show_the_uncommitted"):
        result = run("--seed", "3", "--seeds", "50", "--events", "600", "--reduce", "1")
    assert result.exit_code == 1
    assert "violated: ConsistentRead" in result.stdout
    # What was read had to be asked for, however short the run has become.
    assert ": read topic-" in result.stdout
    seed = result.stdout.rsplit("--seed ", 1)[1].strip()
    with switched_on("show_the_uncommitted"):
        fact = json.loads(run("--seed", seed, "--events", "600", "--reduce", "0", "--json").stdout)
    assert fact["violations"][0]["invariant"] == "ConsistentRead"
    assert "violated" in fact["transcript"][-1]


def test_a_run_without_violation_is_one_line():
    ran = run("--seed", "3", "--events", "300")
    assert ran.exit_code == 0
    assert "seed 3, nodes:" in ran.stdout
    assert "no violation" in ran.stdout


def test_what_breaks_a_run_otherwise_is_exit_code_2(monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(sim, "run_seed", fail)
    assert run("--seed", "3").exit_code == 2
    assert run("--driver", "nonsense").exit_code == 2


def test_a_run_is_quiet_and_what_comes_after_it_is_not():
    logger = logging.getLogger("kreplica")
    before = logger.level
    assert run("--driver", "brokers", "--seed", "1", "--events", "200").exit_code == 0
    assert logger.level == before
