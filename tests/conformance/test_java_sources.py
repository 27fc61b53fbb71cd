"""The Java half of the Spark connector compiles with javac, which is stricter than Janino."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kreplica.spark import jvm_reader

pytestmark = pytest.mark.conformance


@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac here; Janino compiles all the same")
def test_the_sources_are_good_java(tmp_path: Path) -> None:
    """Janino forgives much. It infers no types, so the sources name none and cast instead."""
    jars = os.pathsep.join(map(str, jvm_reader.spark_jars()))
    lint = "-Xlint:all,-rawtypes,-unchecked,-cast,-options,-path,-classfile"
    command = ["javac", lint, "-Werror", "-source", "8", "-target", "8", "-cp", jars, "-d", str(tmp_path)]
    ran = subprocess.run([*command, *map(str, jvm_reader.sources())], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
