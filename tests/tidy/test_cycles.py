"""No circle of imports among modules: each can be read, tested and imported without its users.

Imports in functions and under TYPE_CHECKING count: a reader has to follow them too.
"""

from __future__ import annotations

from pathlib import Path

from tests.tidy.tree import ROOT, imports_of, module_of, source_files


def test_no_circle_of_imports() -> None:
    paths = {
        module_of(path): path
        for top in ("kreplica", "bindings", "spark_connector")
        for path in source_files(".py", ".pyx", under=top)
    }
    assert len(paths) > 300
    graph = {module: imported(path, set(paths)) - {module} for module, path in paths.items()}
    assert circles(graph) == []


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert circles(graph) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": set()}) == []


def imported(path: Path, modules: set[str]) -> set[str]:
    """Return those of `modules` that the file imports, anywhere in it."""
    found = set()
    for each in imports_of(path, (ROOT / path).read_text()):
        found |= {target for target in each.targets[-1:] if target in modules} or (
            {each.module} & modules if each.name else set()
        )
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one node, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in sorted(graph[node]):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            at = stack.index(node)
            component = set(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
