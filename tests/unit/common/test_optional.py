"""A package that is missing is named, with the command that installs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import kreplica
from kreplica import arrow, spark
from kreplica.common.optional import require_package


def test_a_missing_package_is_named() -> None:
    require_package("json")
    with pytest.raises(ModuleNotFoundError, match=r"needs nowhere, .*: pip install nowhere$") as raised:
        require_package("nowhere")
    assert raised.value.name == "nowhere"


@pytest.mark.parametrize(
    ("package", "command", "calls"),
    [
        (
            "pyarrow",
            "'kreplica\\[arrow\\]'",
            ["to_arrow", "to_pandas", "to_polars", "arrow_batches", "__arrow_c_stream__"],
        ),
        ("numpy", "'kreplica\\[arrow\\]'", ["to_numpy"]),
        ("polars", "polars", ["to_polars"]),
        ("pandas", "pandas", ["to_pandas"]),
    ],
)
def test_calls_that_need_one_say_so(
    package: str, command: str, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a"])
        monkeypatch.setitem(sys.modules, package, None)
        for call in calls:
            with pytest.raises(ModuleNotFoundError, match=f"this needs {package}, .*: pip install {command}"):
                getattr(log, call)()


def test_spark_is_needed_for_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    no_session: Any = None
    with pytest.raises(ModuleNotFoundError, match=r"needs pyspark, .*: pip install 'kreplica\[spark\]'"):
        spark.register(no_session)


def test_a_scan_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'kreplica\[arrow\]'"):
            log.append_arrow(object())  # type: ignore[arg-type]
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'kreplica\[arrow\]'"):
            arrow.scan(tmp_path)
