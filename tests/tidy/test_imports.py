"""What one file of the tree takes from another is there, also in programs that no test runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import BESIDE, ROOT

PACKAGES = ("kreplica", "bench", "tests")
PROGRAMS = sorted((ROOT / "bench").rglob("*.py"))


def names_of(path: Path) -> set[str]:
    """What the module binds at its top level."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found.update(each.asname or each.name for each in names)
    return found


def taken_from(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of what comes from the tree itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for each in node.names:
                yield node.module, each.name


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_program_imports_is_there(program: Path) -> None:
    missing = []
    for module, name in taken_from(ast.parse(program.read_text())):
        place = module
        for folder, package in BESIDE.items():
            place = re.sub(rf"^{re.escape(package)}\b", folder, place)
        base = ROOT.joinpath(*place.split("."))
        sources = [each for each in (base.with_suffix(".py"), base / "__init__.py") if each.exists()]
        is_module = any((base / name).with_suffix(suffix).exists() for suffix in (".py", ".pyx", ""))
        if base.with_suffix(".pyx").exists() or is_module:
            continue
        if not any(name in names_of(each) for each in sources):
            missing.append(f"{module}.{name}")
    assert missing == []
