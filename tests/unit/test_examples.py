"""The programs in examples/ run, and print what they promise; the one with Spark is in tests/spark."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

# The example that is a test itself: what it defines is collected here.
from examples.test_orders_with_faults import (  # noqa: F401
    orders,
    test_a_slow_network_only_takes_longer,
    test_an_order_is_placed_while_a_follower_is_cut_off,
    test_orders_survive_the_death_of_their_leader,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Programs that other tests run: in this file, in tests/spark and in tests/conformance.
ELSEWHERE = {"test_orders_with_faults", "spark_job", "streams_on_kreplica"}
PRINTED = {
    "event_sourcing": """\
cannot withdraw 500: the balance is 70
balance now: 70
balance after the first event: 100
""",
    "outbox": """\
the relay dies before it has noted what it sent
1 ordered a lamp
2 ordered a chair
""",
    "work_queue": """\
done: 20 of 20
given up: [b'broken']
""",
    "cdc_to_duckdb": """\
applied: 2
applied: 2
[('1', 'Ada', 70)]
""",
    "polars_report": """\
s0 1000 19.5 24
s1 1000 19.5 24
s2 1000 19.5 24
""",
}


def run(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the program as Python's command line does, and return what it printed."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", PRINTED)
def test_the_program_prints_what_it_should(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, capsys) == PRINTED[name]


def test_each_invoice_is_committed_once(capsys: pytest.CaptureFixture[str]) -> None:
    died, counts, *invoices = run("exactly_once", capsys).splitlines()
    assert died == "died at order 3"
    appended = re.fullmatch(r"appended: (\d+) committed: 5", counts)
    assert appended is not None
    assert int(appended[1]) > 5
    assert invoices == [f"invoice for order {number}" for number in range(5)]


def test_the_bug_is_found_and_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    found, again, strict = run("find_a_bug", capsys).splitlines()
    assert re.fullmatch(r"seed \d+ loses orders \[\d.*\] with acks=1", found)
    assert again == "again: True"
    assert strict == "with acks=all it loses: []"


def test_every_program_is_run_and_listed() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {*PRINTED, "exactly_once", "find_a_bug", *ELSEWHERE}
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == names
