"""What is published: versions agree in all places, and a build without a compiler says what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import kreplica
from tests.tidy.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_that_of_the_package() -> None:
    assert version("kreplica") == kreplica.__version__
    assert f"## {kreplica.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_wheels_are_built_for_the_versions_of_python_that_are_promised() -> None:
    promised = {
        each.rpartition(" ")[2].replace(".", "")
        for each in PROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", each)
    }
    built = {each.removeprefix("cp").removesuffix("-*") for each in PROJECT["tool"]["cibuildwheel"]["build"]}
    assert built == promised
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text()
    assert {"ubuntu-latest", "ubuntu-24.04-arm", "macos-latest"} <= set(re.findall(r"[\w.-]+", workflow))


def test_a_container_starts_by_a_program() -> None:
    assert os.access(ROOT / "docker-entrypoint.sh", os.X_OK)
    assert "USER kreplica" in (ROOT / "Dockerfile").read_text()


def test_a_build_without_a_compiler_names_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-temp", str(tmp_path), "--force"]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "CC": "no-such-cc"}
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("kreplica: cannot compile with 'no-such-cc': install a C")
