"""Below runtime/ and sim/ no module reads a clock, draws a random number, starts a thread or touches a file.

They are given ports (kreplica/common/ports.py) instead. The test reads what is imported and what is called.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tidy.test_layers import HEIGHT, layer_of
from tests.tidy.tree import ROOT, Import, imports_of, module_of, source_files

# What gives a program the time, chance, threads, sockets or files.
FORBIDDEN_MODULES = {
    *("sched", "random", "secrets"),
    *("threading", "_thread", "multiprocessing", "subprocess", "signal", "asyncio", "uvloop"),
    *("socket", "socketserver", "select", "selectors", "ssl", "http", "urllib"),
    *("io", "mmap", "fcntl", "shutil", "tempfile", "glob", "fileinput", "lmdb"),
    *("libc.time", "libc.stdio", "posix"),
}
# Members of other modules that do; "*" stands for all that are not in ALLOWED_MEMBERS.
FORBIDDEN_MEMBERS = {
    "concurrent.futures": {"*"},
    "datetime": {"*"},
    "os": {"*"},
    "os.path": {"*"},
    "pathlib": {"*"},
    "time": {"*"},
    "uuid": {"uuid1", "uuid4", "getnode"},
    "libc.stdlib": {"rand", "srand", "random"},
}
ALLOWED_MEMBERS = {
    "concurrent.futures": {"Future", "InvalidStateError", "CancelledError", "TimeoutError"},
    "datetime": {"timedelta", "timezone", "UTC"},
    "os": {"path", "fspath", "strerror", "fsencode", "fsdecode", "PathLike", "sep"},
    "os.path": {"join", "split", "splitext", "basename", "dirname", "normpath", "commonpath", "isabs"},
    "pathlib": {"PurePath", "PurePosixPath"},
    "time": {"gmtime", "strftime"},
}
FORBIDDEN_CALLS = {"open", "input", "print"}

# Where a rule has its one exception, and why.
EXCEPTIONS: dict[str, set[str]] = {
    # The locks that the others take from here. A forked child needs some of them free.
    "kreplica/common/locks.py": {"threading", "os"},
    # The mapping itself: runtime/'s storage hands it a path, and all system calls on it stand here.
    "kreplica/_core/region.pyx": {"posix", "libc.stdio", "os"},
    "kreplica/_core/region.pxd": {"posix"},
    # The type that a program's timestamps may have; it is never asked for the time.
    "kreplica/_core/record.pyx": {"datetime"},
    "kreplica/_core/record.pyi": {"datetime"},
    "kreplica/_core/batch_builder.pyi": {"datetime"},
    # TLS over memory: it gets its context from runtime/, and reaches no socket and no file.
    "kreplica/_core/tls_transport.pyx": {"ssl"},
    "kreplica/_core/tls_transport.pyi": {"ssl"},
    # The type of a time in a message.
    "kreplica/common/message.py": {"datetime"},
}


def below_the_real_world(path: Path) -> bool:
    layer = layer_of(module_of(path))
    return layer is not None and HEIGHT.get(layer, 99) < HEIGHT["runtime"]


def violations(path: Path, text: str) -> list[str]:
    """A line for each thing that the file takes from the machine directly."""
    if not below_the_real_world(path):
        return []
    excused = EXCEPTIONS.get(str(path), set())
    found = [
        f"{path}:{entry.line}: imports {entry.targets[-1]}"
        for entry in imports_of(path, text)
        if not (covers(excused, entry.module) or import_allowed(entry, path))
    ]
    if path.suffix in {".py", ".pyi"}:
        found += [
            f"{path}:{line}: uses {name}" for line, name in uses(ast.parse(text)) if name not in excused
        ]
    return found


def covers(modules: set[str], module: str) -> bool:
    """True if `module` or one of its parents is among `modules`."""
    parts = module.split(".")
    return any(".".join(parts[: n + 1]) in modules for n in range(len(parts)))


def import_allowed(entry: Import, path: Path) -> bool:
    if any(covers(FORBIDDEN_MODULES, target) for target in entry.targets):
        return False
    if entry.name:
        return member_allowed(entry.module, entry.name)
    # A whole module may be imported where what is taken from it can be seen: in Python, under its own name.
    return entry.module not in FORBIDDEN_MEMBERS or (path.suffix in {".py", ".pyi"} and not entry.renamed)


def member_allowed(module: str, name: str) -> bool:
    forbidden = FORBIDDEN_MEMBERS.get(module, set())
    return name not in forbidden and ("*" not in forbidden or name in ALLOWED_MEMBERS[module])


def uses(tree: ast.AST) -> list[tuple[int, str]]:
    """Forbidden calls, and forbidden members of modules (`os.rename`), with their lines."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append((node.lineno, node.func.id))
        if isinstance(node, ast.Attribute):
            module = ast.unparse(node.value)
            if module in FORBIDDEN_MEMBERS and not member_allowed(module, node.attr):
                found.append((node.lineno, f"{module}.{node.attr}"))
    return found


def test_the_machine_is_reached_through_ports_only() -> None:
    sources = [p for p in source_files(".py", ".pyi", ".pyx", ".pxd") if below_the_real_world(p)]
    assert len(sources) > 10
    assert [line for path in sources for line in violations(path, (ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        *((f"kreplica/log/{name}.py", f"import {name}") for name in sorted(FORBIDDEN_MODULES)),
        ("kreplica/log/x.py", "from time import monotonic"),
        ("kreplica/log/x.py", "import time\ntime.monotonic()"),
        ("kreplica/log/x.py", "import time as clock"),
        ("kreplica/log/x.py", "from threading import Lock"),
        ("kreplica/common/x.py", "import threading"),
        ("kreplica/log/x.py", "def f():\n    import random as r"),
        ("kreplica/log/x.py", "def f(path):\n    return open(path)"),
        ("kreplica/log/x.py", "import os\nos.rename('a', 'b')"),
        ("kreplica/log/x.py", "from os import rename"),
        ("kreplica/log/x.py", "import os\nif os.path.exists('a'): pass"),
        ("kreplica/log/x.py", "from os.path import exists"),
        ("kreplica/log/x.py", "from pathlib import Path"),
        ("kreplica/log/x.py", "from datetime import datetime"),
        ("kreplica/log/x.py", "from concurrent.futures import ThreadPoolExecutor"),
        ("kreplica/log/x.py", "import uuid\nuuid.uuid4()"),
        ("kreplica/log/x.py", "from uuid import uuid4"),
        ("kreplica/_core/x.pyx", "from posix.time cimport clock_gettime"),
        ("kreplica/_core/x.pyx", "from libc.stdlib cimport malloc, rand"),
        ("kreplica/_core/x.pyx", "import time"),
    ],
)
def test_reaching_for_the_machine_is_found(path: str, text: str) -> None:
    assert len(violations(Path(path), text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("kreplica/common/locks.py", "from threading import Lock"),
        ("kreplica/runtime/x.py", "import time, threading\nopen('a')"),
        ("kreplica/sim/x.py", "import random"),
        ("kreplica/cli/x.py", "from pathlib import Path\nprint('a')"),
        ("kreplica/log/x.py", "import os\nos.path.join('a', os.fspath('b'))"),
        ("kreplica/log/x.py", "from concurrent.futures import Future"),
        ("kreplica/log/x.py", "import time\ntime.gmtime(0)"),
        ("kreplica/log/x.py", "from uuid import UUID\nstorage.open('a')\nself.time()"),
        ("kreplica/_core/x.pyx", "from libc.stdlib cimport free, malloc"),
    ],
)
def test_what_is_given_may_be_used(path: str, text: str) -> None:
    assert violations(Path(path), text) == []
