"""A C program opens, appends, reads and closes by kreplica.h; what it wrote is a log like any other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kreplica.arrow.c_flags import c_flags

import kreplica
from tests.conformance.expectation import FIXTURES
from tests.support.transaction_history import HistoryWriter
from tests.tidy.tree import ROOT

HERE = Path(__file__).parent
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-O1")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    try:
        flags = c_flags()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if compiler is None:
        pytest.skip("no C compiler is on the path")
    target = tmp_path_factory.mktemp("program") / "program"
    source = str(HERE / "program.c")
    subprocess.run([compiler, *WARNINGS, source, *flags, "-o", str(target)], check=True)
    return target


def run(program: Path, *arguments: str | Path, python: str = sys.executable) -> list[str]:
    environment = {**os.environ, "KREPLICA_PYTHON": python, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(program), *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("how", ["write", "write-synced"])
def test_what_c_appends_python_reads(program: Path, tmp_path: Path, how: str) -> None:
    first = run(program, how, tmp_path / "t-0")
    second = run(program, how, tmp_path / "t-0")
    assert [line.split()[0] for line in (*first, *second)] == [str(n) for n in range(10)]
    assert first[:3] == ["0 1000 'key' 'value'", "1 3000 null ''", "2 2000 '' null"]
    with kreplica.Log.open(tmp_path / "t-0") as log:
        assert log.recovery.clean
        records = list(log.read())
        assert log.append([b"from Python"]).base_offset == 10
    assert [(each.key, each.value) for each in records] == [
        *((b"key", b"value"), (None, b""), (b"", None), (None, None), (b"key", b"value")),
    ] * 2
    assert records[0].timestamp == 1000
    assert records[3].timestamp > 1_600_000_000_000
    assert run(program, "dump", tmp_path / "t-0", "10")[1].endswith(" null 'from Python'")
    verify = subprocess.run([sys.executable, "-m", "kreplica", "verify", str(tmp_path / "t-0")], check=False)
    assert verify.returncode == 0


@pytest.mark.parametrize("seed", range(3))
def test_records_of_open_and_aborted_transactions_are_left_out(
    program: Path, tmp_path: Path, seed: int
) -> None:
    writer = HistoryWriter(tmp_path / "t-0", seed)
    writer.write(60)
    writer.log.close()
    history = writer.history()
    for how, wanted in (("dump", history.records), ("dump-committed", history.committed)):
        _, *lines = run(program, how, tmp_path / "t-0")
        found = [line.split() for line in lines if len(line.split()) == 4]
        assert [(int(each[0]), each[3].strip("'").encode()) for each in found] == wanted, how


def test_what_a_program_left_when_it_died(program: Path, tmp_path: Path) -> None:
    run(program, "die", tmp_path / "t-0")
    assert run(program, "write", tmp_path / "t-0")[0].startswith("1 1000")
    assert run(program, "dump", tmp_path / "t-0")[1] == "0 7 'k' 'before it died'"


@pytest.mark.parametrize("name", ["codec-zstd-0", "compacted-0", "trimmed-0"])
def test_logs_of_kafkas(program: Path, name: str) -> None:
    directory = FIXTURES / "clean" / "logs" / name
    with kreplica.Log.open(directory, read_only=True) as log:
        start = log.log_start_offset
        expected = [(each.offset, each.timestamp) for each in log.read(isolation="high_watermark")]
    opened, *lines = subprocess_lines(program, directory, start)
    assert opened == b"open: 0 "
    found = [line.split(b" ", 2)[:2] for line in lines]
    assert [(int(offset), int(time)) for offset, time in found] == expected


def subprocess_lines(program: Path, directory: Path, start: int) -> list[bytes]:
    environment = {**os.environ, "KREPLICA_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [str(program), "dump", str(directory), str(start)]
    # Values may be any bytes.
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout.splitlines()


def test_threads_share_a_log(program: Path, tmp_path: Path) -> None:
    run(program, "threads", tmp_path / "t-0")
    with kreplica.Log.open(tmp_path / "t-0", read_only=True) as log:
        assert [each.value for each in log.read()] == [b"value"] * 200


def test_rot_is_named(program: Path, tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for n in range(3):
            log.append([b"%d" % n])
    file = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[len(data) // 3 * 2 - 1] ^= 1
    file.write_bytes(data)
    opened, first, error = run(program, "dump", tmp_path / "t-0")
    assert opened == "open: 0 "
    assert first.startswith("0 ")
    assert error.startswith("error 7 DamagedLog: t-0: damaged records, offsets 1 to 1")


def test_bad_input_has_a_code_and_a_text(program: Path, tmp_path: Path) -> None:
    run(program, "write", tmp_path / "t-0")
    expected = {
        "nothing to read": "5 InvalidFile: ",
        "no directory": "1 kreplica_open: a null directory",
        "unknown flag": "1 kreplica_open: ",
        "locked": "4 LogDirLocked: ",
        "no bytes": "1 kreplica_append: a size below -1, or a null pointer to bytes",
        "negative size": "1 kreplica_append: a size below -1",
        "too large": "8 MessageTooLarge: ",
        "bad timestamp": "12 ValueError: ",
        "no records": "1 kreplica_append: the log or the records are null",
        "behind the end": "6 OffsetOutOfRange: t-0: offset 1000000",
        "below the start": "6 OffsetOutOfRange: t-0: offset -1",
        "no place": "1 kreplica_read: ",
        "read only": "10 ReadOnlyLog: ",
    }
    found = dict(line.split(": ", 1) for line in run(program, "refused", tmp_path / "t-0", tmp_path / "none"))
    assert {name: found[name][: len(text)] for name, text in expected.items()} == expected
    assert found.keys() == expected.keys()
    with kreplica.Log.open(tmp_path / "t-0", read_only=True) as log:
        assert log.log_end_offset == 5


def test_an_interpreter_without_the_package(program: Path, tmp_path: Path) -> None:
    environment = {"KREPLICA_PYTHON": sys.base_prefix + "/bin/python3", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(program), "dump", str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("open: 2 ModuleNotFoundError: No module named 'kreplica'")
