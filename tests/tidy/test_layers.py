"""A file of kreplica/ imports only from the layers above its own in docs/ARCHITECTURE.md, or cimports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.tree import BESIDE, ROOT, Import, imports_of, module_of, source_files

# From the bottom of the building up. Those of one row are siblings and never import each other.
ROWS: list[set[str]] = [
    {"_core"},
    {"common"},
    {"record", "security"},
    {"metadata"},
    {"log"},
    {"replica", "raft", "controller", "coordinator", "client"},
    {"share"},
    {"broker"},
    {"runtime", "sim"},
    {"engine", "embedding"},
    {"cluster"},
    {"aio", "testing"},
    {"cli"},
    {"arrow"},
    {"spark"},
    {"__main__"},
]
# What runs the simulator for users; no other product code may need it.
SIMULATION = {
    Path("kreplica/cli/sim.py"),
    Path("kreplica/cluster/simulation.py"),
    Path("kreplica/testing/__init__.py"),
}
# Commands that run on Spark.
DOORS = {Path("kreplica/cli/spark.py"): "spark"}
# Built on what users have.
USERS_OF_THE_FACE = {"arrow", "spark"}
HEIGHT = {layer: height for height, row in enumerate(ROWS) for layer in row}


def layer_of(module: str) -> str | None:
    """The layer of a module of kreplica; None for the package itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "kreplica" and len(parts) > 1 else None


def violations(path: Path, text: str) -> list[str]:
    """A line for each import of the file that its layer may not have; kreplica/__init__.py may have all."""
    own = layer_of(module_of(path))
    if own is None:
        return []
    if own not in HEIGHT:
        return [f"{path}: {own} is no layer; docs/ARCHITECTURE.md and this test list them"]
    return [
        f"{path}:{found.line}: {own} imports {found.targets[-1]}"
        for found in imports_of(path, text)
        if not allowed(own, found) and not is_door(path, found)
    ]


def is_door(path: Path, found: Import) -> bool:
    return path in DOORS and all(layer_of(target) == DOORS[path] for target in found.targets[-1:])


def allowed(own: str, found: Import) -> bool:
    layers = {layer_of(target) for target in found.targets if target.split(".")[0] == "kreplica"}
    layers = {layer for layer in layers if layer in HEIGHT}
    if not layers:
        # The package's own face reaches everything, so nothing inside may lean on it.
        return found.module != "kreplica" or own in USERS_OF_THE_FACE
    return all(layer == own or HEIGHT[layer] < HEIGHT[own] for layer in layers)


def test_nothing_imports_upward() -> None:
    tops = ("kreplica", *BESIDE)
    sources = [path for top in tops for path in source_files(".py", ".pyi", ".pyx", ".pxd", under=top)]
    assert len(sources) > 20
    found = [line for path in sources for line in violations(path, (ROOT / path).read_text())]
    assert found == []


def test_only_what_simulates_imports_the_simulator() -> None:
    sources = [path for path in source_files(".py", ".pyx") if path.parts[1] != "sim"]
    importers = {
        path
        for path in sources
        for found in imports_of(path, (ROOT / path).read_text())
        if any(layer_of(target) == "sim" for target in found.targets)
    }
    assert importers == SIMULATION


def test_every_layer_is_there() -> None:
    top = {path.parts[1].removesuffix(".py") for path in source_files(".py", ".pyx") if len(path.parts) > 1}
    assert top - {"__init__", "__main__"} <= HEIGHT.keys()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("kreplica/common/x.py", "from kreplica.log import unified_log"),
        ("kreplica/common/x.py", "import kreplica.log.unified_log as u"),
        ("kreplica/common/x.py", "from kreplica import log"),
        ("kreplica/common/x.py", "from ..log import unified_log"),
        ("kreplica/common/x.py", "from .. import log"),
        ("kreplica/common/__init__.py", "from ..log import unified_log"),
        ("kreplica/common/x.py", "def f():\n    import kreplica.log"),
        ("kreplica/common/x.py", "if TYPE_CHECKING:\n    from kreplica.log import unified_log"),
        ("kreplica/common/x.py", "importlib.import_module('kreplica.log.unified_log')"),
        ("kreplica/common/x.py", "import kreplica"),
        ("kreplica/common/x.py", "from kreplica import Log"),
        ("kreplica/replica/x.py", "from kreplica.raft import quorum_state"),
        ("kreplica/runtime/x.py", "from kreplica.sim import clock"),
        ("kreplica/engine.py", "from kreplica.cli import main"),
        ("kreplica/engine.py", "from kreplica.arrow import scan"),
        ("bindings/x.py", "from kreplica.spark import register"),
        ("kreplica/engine/x.py", "from kreplica.cluster import Cluster"),
        ("kreplica/novel/x.py", "x = 1"),
        ("kreplica/_core/x.pyx", "from kreplica.common cimport y"),
        ("kreplica/_core/x.pyx", "from kreplica.common.errors import A"),
        ("kreplica/_core/x.pxd", "cimport kreplica.log.thing"),
        ("kreplica/_core/x.pxd", "cimport libc.stdint, kreplica.log.thing as t"),
        ("kreplica/_core/x.pyx", "from ..log cimport thing"),
        ("kreplica/_core/x.pyx", "from kreplica cimport (\n    log,\n)"),
        ("kreplica/_core/x.pyx", "from kreplica.log \\\n    import thing"),
        ("kreplica/_core/x.pyx", "cdef int x = 1; import kreplica.log"),
        ("kreplica/_core/x.pyx", "'''doc'''\ncdef f():\n    import kreplica.log"),
        ("kreplica/_core/x.pyx", "s = '#'\nimport kreplica.log"),
    ],
)
def test_upward_import_is_found(path: str, text: str) -> None:
    assert len(violations(Path(path), text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("kreplica/__init__.py", "from kreplica.engine import Log\nfrom kreplica.cli import main"),
        ("kreplica/log/x.py", "from kreplica.common.errors import A\nfrom kreplica._core import region"),
        ("kreplica/log/x.py", "from .y import z\nfrom . import y\nfrom ..record import batch"),
        ("kreplica/log/x.py", "import os\nfrom collections.abc import Callable"),
        ("kreplica/log/x.py", "# from kreplica.cli import main\nx = 'import kreplica.cli'"),
        ("spark_connector/x.py", "from kreplica.arrow import scan\nfrom kreplica.spark import plan"),
        ("kreplica/cli/__init__.py", "from kreplica import engine\nfrom kreplica.log import verify"),
        ("kreplica/broker/x.py", "from kreplica.replica import a\nfrom kreplica.raft import b"),
        (
            "kreplica/_core/x.pyx",
            "from libc cimport stdint\nfrom kreplica._core.region cimport Slice",
        ),
        (
            "kreplica/_core/x.pyx",
            '"""\nimport kreplica.log\n"""\n# import kreplica.log\nx = "import kreplica.log"',
        ),
        ("kreplica/_core/x.pyx", "cdef extern from 'x.h':\n    int important_import(int c)"),
    ],
)
def test_downward_import_is_allowed(path: str, text: str) -> None:
    assert violations(Path(path), text) == []


def test_lines_are_named() -> None:
    text = '"""Two\nlines."""\n\nfrom kreplica.log cimport (\n    thing,\n)\n'
    assert violations(Path("kreplica/_core/x.pyx"), text) == [
        "kreplica/_core/x.pyx:4: _core imports kreplica.log.thing"
    ]
