"""The demo's parts: what it counts, what it draws, how it ends, and its writing with a kill in the middle."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import kreplica
from bench.demo import __main__ as command
from bench.demo import flights, picture
from bench.demo.course import PARTITIONS, TOPIC, Course, Killed, create_topic, write_flights
from bench.demo.producing import Acknowledgements, Silence
from bench.demo.sums import (
    FEWEST_DEPARTURES,
    Route,
    RouteSums,
    Sums,
    added,
    by_carrier,
    by_month,
    differences,
    worst_routes,
)
from bench.demo.telling import Teller, carrier_table, isr_table
from bench.demo.watching import Event, IsrChange, Offsets, PartitionState
from tests.support.made_flights import CSV, made_flights
from tests.support.node_processes import NodeProcesses

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
ROUTES = st.builds(Route, st.sampled_from("AB"), st.integers(1, 2), st.just("EWR"), st.sampled_from("XYZ"))
SUMS = st.builds(Sums, st.integers(30, 40), st.integers(0, 30), st.integers(-1000, 1000))


def quiet() -> Teller:
    return Teller(Console(file=io.StringIO()))


def said(teller: Teller) -> str:
    file = teller.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def sentences(teller: Teller) -> str:
    """What it said, wherever its lines end."""
    return " ".join(said(teller).split())


# ---- the table --------------------------------------------------------------------------------------


def test_a_table_as_the_package_has_it() -> None:
    table = flights.numbered(flights.read_csv(io.BytesIO(CSV)))
    first, second, third = (json.loads(value) for _, value in flights.messages(table))
    assert [key for key, _ in flights.messages(table)] == [b"N14228", None, b"N619AA"]
    assert (first["number"], first["dep_delay"], first["time_hour"]) == (0, 2, "2013-01-01T10:00:00Z")
    assert (second["number"], second["dep_delay"], second["tailnum"]) == (1, None, None)
    assert (third["number"], third["dep_delay"], third["origin"]) == (2, -3, "JFK")


def test_route_sums_are_those_of_the_rows() -> None:
    table = made_flights(500)
    expected: dict[Route, Counter[str]] = {}
    for row in table.to_pylist():
        counted = expected.setdefault(Route(*(row[name] for name in Route._fields)), Counter())
        counted["flights"] += 1
        counted["departures"] += row["dep_delay"] is not None
        counted["minutes"] += row["dep_delay"] or 0
    found = flights.route_sums(table)
    assert found == {
        route: Sums(each["flights"], each["departures"], each["minutes"]) for route, each in expected.items()
    }
    assert added(found.values()).flights == added(by_carrier(found).values()).flights == 500
    assert sum(each.flights for each in by_month(found, "JFK").values()) == sum(
        row["origin"] == "JFK" for row in table.to_pylist()
    )


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no-such-package-of-flights")
    with pytest.raises(
        flights.NoFlights,
        match=r"the package no-such-package-of-flights with flights.csv.zip is not installed",
    ):
        flights.load()


# ---- what is counted --------------------------------------------------------------------------------


@given(st.dictionaries(ROUTES, SUMS))
def test_the_worst_route_has_the_greatest_mean(sums: RouteSums) -> None:
    worst = worst_routes(sums)
    for (carrier, month), route in worst.items():
        assert (route.carrier, route.month) == (carrier, month)
        others = [
            each
            for each in sums
            if each[:2] == (carrier, month) and sums[each].departures >= FEWEST_DEPARTURES
        ]
        means = {each: Fraction(sums[each].minutes, sums[each].departures) for each in others}
        assert route == min(means, key=lambda each: (-means[each], each))
    counted = {route[:2] for route, each in sums.items() if each.departures >= FEWEST_DEPARTURES}
    assert worst.keys() == counted


def test_each_difference_is_named() -> None:
    route, other = Route("UA", 1, "EWR", "IAH"), Route("AA", 2, "JFK", "MIA")
    table = {route: Sums(2, 2, 5)}
    assert differences(dict(table), table) == []
    found = {route: Sums(2, 2, 6), other: Sums(1, 0, 0)}
    assert differences(found, table) == [
        "AA 2 JFK MIA: Sums(flights=1, departures=0, minutes=0) where the table has None",
        "UA 1 EWR IAH: Sums(flights=2, departures=2, minutes=6) where the table has "
        "Sums(flights=2, departures=2, minutes=5)",
    ]


def test_silences_and_offsets() -> None:
    acknowledged = Acknowledgements(2)
    for partition, offset, seconds in ((0, 0, 1.0), (1, 0, 1.1), (0, 1, 1.2), (1, 1, 1.5)):
        acknowledged.add(partition, offset, seconds)
    assert acknowledged.is_exact
    assert [round(each.seconds, 6) for each in acknowledged.silences] == [0.2, 0.4]
    acknowledged.forget_silences()
    acknowledged.add(0, 3, 2.2)
    assert acknowledged.silences[0] == Silence(1.2, pytest.approx(1.0))
    assert not acknowledged.is_exact
    assert acknowledged.count == 5
    acknowledged.sent_nothing()
    acknowledged.add(0, 4, 9.0)
    assert acknowledged.silences[0].seconds == pytest.approx(1.0)


# ---- what is shown ----------------------------------------------------------------------------------


def test_picture(tmp_path: Path) -> None:
    isr = (1, 2, 3)
    course = Course(
        offsets=[Offsets(t, dict.fromkeys(isr, (t, t + 1)), (t, t)) for t in range(10)],
        isr_history=[
            IsrChange(0.1, (PartitionState(3, isr), PartitionState(1, isr))),
            IsrChange(5.4, (PartitionState(2, (1, 2)), PartitionState(-1, (1, 2)))),
        ],
        events=[Event(5.0, "kill -9 of node 3")],
        ends=(10, 10),
        is_exact=True,
        killed=Killed(3, (0,), 5.0),
        silence=Silence(5.0, 0.4),
        acknowledged={(0, 99): 5, (1, 103): 7},
        seconds=9.0,
    )
    path = tmp_path / "flights.png"
    picture.draw(path, course, flights.route_sums(made_flights(300)))
    assert path.read_bytes().startswith(PNG)
    teller = quiet()
    teller.console.print(isr_table(course.isr_history, course.events))
    assert "1 2 3*" in said(teller)
    assert said(teller).index("kill -9 of node 3") < said(teller).index("1 2* ")


def test_carriers_that_differ_are_shown() -> None:
    table = flights.route_sums(made_flights(300))
    found = {
        route: sums._replace(minutes=sums.minutes + (route.carrier == "UA")) for route, sums in table.items()
    }
    for shown, same in ((table, "yes"), (found, "no")):
        teller = quiet()
        teller.console.print(carrier_table(shown, worst_routes(shown), table, {"UA": "United"}))
        lines = said(teller).splitlines()
        assert same in next(line for line in lines if "United" in line)
        assert same in next(line for line in lines if "│ all " in line)


def test_without_a_terminal_progress_is_printed_in_lines() -> None:
    teller = quiet()
    with teller.bar(100) as show:
        for count in (0, 5, 10, 11, 19, 50, 100):
            show(count)
    assert [line.split()[2] for line in said(teller).splitlines()] == ["10", "50", "100"]


# ---- how it ends ------------------------------------------------------------------------------------


class OfOneCheck:
    """In the demo's place: one check more, which holds or not."""

    holds = True

    def __init__(self, _table: pyarrow.Table, directory: Path, _: Path, teller: Teller, _rate: float) -> None:
        self._teller = teller
        directory.mkdir(parents=True)

    def run(self) -> bool:
        self._teller.check("something else", True)
        self._teller.check("this", self.holds)
        self._teller.sum_up()
        return self._teller.all_held


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    holds: bool,
    code: int,
) -> None:
    monkeypatch.setattr(command, "load", lambda: made_flights(10))
    monkeypatch.setattr(command, "Demo", OfOneCheck)
    monkeypatch.setattr(OfOneCheck, "holds", holds)
    assert command.main(["--directory", str(tmp_path)]) == code
    assert ("held   this" if holds else "FAILED this") in capsys.readouterr().out
    assert (tmp_path / "data").exists() is not holds


def test_exit_code_without_the_flights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no-such-package-of-flights")
    assert command.main(["--directory", str(tmp_path)]) == 1
    assert "run: pip install no-such-package-of-flights" in capsys.readouterr().err


def test_a_signal_ends_it() -> None:
    script = (
        "import os, signal, sys; from bench.demo import __main__ as command\n"
        "command.end_by_signals()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "finally:\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (128 + 15, "SIGTERM: stopping the nodes and Spark\n")


# ---- the writing ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_flights_through_a_kill(tmp_path: Path) -> None:
    total = 2000
    table, teller = made_flights(total), quiet()
    began: list[tuple[int, ...]] = []
    done: list[str] = []
    with NodeProcesses(tmp_path) as nodes:
        create_topic(nodes.bootstrap)
        course = write_flights(
            nodes,
            table,
            teller,
            rate=1000,
            begin_stream=lambda ends: began.append(tuple(ends)),
            is_streaming=lambda: bool(began),
            done=lambda: done.append("done"),
        )
        directory = nodes.node_directory(course.killed.node)
        assert [nodes.stop(node) for node in nodes.ids] == [0, 0, 0]
    assert course.is_exact
    assert sum(course.ends) == total
    assert course.is_out(course.killed.node)
    assert course.is_whole
    assert (len(began), sum(began[0]), done) == (1, total // 4, ["done"])
    assert "kill -9 of node" in sentences(teller)
    assert "ms without an ack since the kill" in sentences(teller)
    found = []
    for partition in range(PARTITIONS):
        with kreplica.Log.open(directory / f"{TOPIC}-{partition}", read_only=True) as log:
            found += [json.loads(record.value) for record in log.read(start=0)]
    found.sort(key=lambda flight: flight["number"])
    assert found == [json.loads(value) for _, value in flights.messages(table)]
