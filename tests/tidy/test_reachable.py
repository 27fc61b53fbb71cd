"""Every module is reached from an entry point, and every function is named by the product: no dead weight."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import ROOT, imports_of, module_of, source_files

TOPS = ("kreplica", "bindings", "spark_connector")
# What users import or run; the package imports the other public names, such as kreplica.Simulation.
ENTRY_POINTS = {
    *("kreplica", "kreplica.__main__", "kreplica.cli", "kreplica.testing", "kreplica.testing.faults"),
    *("kreplica.arrow", "kreplica.spark"),
}
# A program of its own: `python -m`.
PROGRAM = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)
# kreplica.c imports its Python half by name.
IMPORTED_BY_C = re.compile(r'PyImport_ImportModule\("([\w.]+)"\)')
# Native loops that only bench/ calls; they cimport the core and are built with it.
FOR_BENCHMARKS = {"kreplica._core.benchmarks"}

# Whole and tested, but reached only by the change that follows. An entry that is reached has to go.
AHEAD: set[str] = set()

# Functions that no line of the product names, with the reason.
CALLED_BY_FRAMEWORKS = {
    # asyncio.BufferedProtocol, http.server, concurrent.futures, atexit, pytest.
    *("connection_made", "eof_received", "pause_writing", "resume_writing", "log_message"),
    *("set_running_or_notify_cancel", "_waiters", "_close_at_exit", "pytest_configure"),
    # pyspark's DataSource and its readers and writers.
    *("streamReader", "streamWriter", "initialOffset", "prepareForTriggerAvailableNow", "latestOffset"),
    *("getDefaultReadLimit", "reportLatestOffset"),
}
PUBLIC = {
    *("set_disk", "replay", "enable_logging", "append_one", "to_pandas", "to_polars", "_repr_html_"),
    # pytest finds fixtures, and users import faults, by their names.
    *("kreplica_cluster", "kreplica_bootstrap_servers", "kreplica_topic"),
    *("killed", "paused", "cut", "isolated", "delayed", "full_disk", "rot"),
}
# What only tests wait for or look at: a network at rest, a disk's pending jobs, a page made from the code.
FOR_TESTS = {
    *("wait_until_idle", "clock_moved", "map_bytes", "has_aside", "stall", "notify_aside"),
    *("is_idle", "unnotified"),
    "as_markdown",
}
# Still there. Each goes, or is called, with the next change of its module; none is added.
KNOWN: set[str] = {"of_snapshot"}


def test_every_module_is_reached_from_an_entry_point() -> None:
    paths = {module_of(path): path for top in TOPS for path in source_files(".py", ".pyx", under=top)}
    assert len(paths) > 300
    graph = {module: imported(path, set(paths)) for module, path in paths.items()}
    programs = {module for module, path in paths.items() if PROGRAM.search((ROOT / path).read_text())}
    from_c = {
        name
        for path in source_files(".c", under="bindings")
        for name in IMPORTED_BY_C.findall((ROOT / path).read_text())
    }
    assert "kreplica.arrow.c_api" in from_c
    found = reached(graph, ENTRY_POINTS | programs | from_c | FOR_BENCHMARKS)
    assert sorted(set(paths) - reached(graph, found | AHEAD)) == []
    assert sorted(AHEAD - (paths.keys() - found)) == [], "reached or gone: take it from AHEAD"


def test_every_function_is_named_by_the_product() -> None:
    named: Counter[str] = Counter()
    defined: dict[str, str] = {}
    for path in [each for top in TOPS for each in source_files(".py", under=top)]:
        tree = ast.parse((ROOT / path).read_text())
        named.update(names_in(tree))
        defined.update({name: f"{path}: {name}" for name in functions_in(tree)})
    for path in [each for top in TOPS for each in source_files(".pyx", ".pxd", ".c", ".java", under=top)]:
        named.update(re.findall(r"\w+", (ROOT / path).read_text()))
    excused = CALLED_BY_FRAMEWORKS | PUBLIC | FOR_TESTS | KNOWN
    assert sorted(place for name, place in defined.items() if not named[name] and name not in excused) == []
    assert sorted(KNOWN - defined.keys()) == [], "gone: take it from KNOWN"


def test_what_nothing_reaches_is_found() -> None:
    graph = {"a": {"b"}, "b": {"a"}, "c": {"b"}}
    assert set(graph) - reached(graph, {"a"}) == {"c"}
    tree = ast.parse("@app.command()\ndef main(): ...\ndef f(): g()\ndef g(): f\nclass A:\n def h(self): ...")
    assert set(functions_in(tree)) - set(names_in(tree)) == {"h"}


def imported(path: Path, modules: set[str]) -> set[str]:
    """Return those of `modules` that importing the file imports, with their packages."""
    declaration = path.with_suffix(".pxd")
    files = [path, declaration] if path.suffix == ".pyx" and (ROOT / declaration).exists() else [path]
    targets = [
        target.split(".")
        for file in files
        for each in imports_of(file, (ROOT / file).read_text())
        for target in each.targets
    ]
    return {".".join(parts[: n + 1]) for parts in targets for n in range(len(parts))} & modules


def reached(graph: dict[str, set[str]], starts: set[str]) -> set[str]:
    """Return the nodes that can be reached from `starts`, with these."""
    found: set[str] = set()
    left = list(starts)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(graph.get(node, ()))
    return found


def names_in(tree: ast.AST) -> Iterator[str]:
    """Names, attributes and strings that may name a function; definitions do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def functions_in(tree: ast.AST) -> Iterator[str]:
    """Names of functions and methods; those that a decorator registers as a command have their caller."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
            decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
            if "command(" not in decorators:
                yield node.name
