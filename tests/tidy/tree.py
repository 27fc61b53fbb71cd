"""What the tests of the tree read: its files as git knows them, and their imports."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file of the project, relative to its root: tracked, or new and not ignored.

    Without git (an unpacked archive) the files under the project's own folders.
    """
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        folders = ("kreplica", "bindings", "spark_connector", "bench", "tests", "docs", "examples")
        found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
        products = {".so", ".pyc"}
        names = [str(p.relative_to(ROOT)) for p in found if p.is_file() and p.suffix not in products]
    else:
        names = [name for name in listing.split("\0") if name]
    return tuple(Path(name) for name in sorted(set(names)) if (ROOT / name).is_file())


def source_files(*suffixes: str, under: str = "kreplica") -> list[Path]:
    """Tracked files below `under` with one of `suffixes`, relative to the root."""
    return [p for p in tracked_files() if p.parts[0] == under and p.suffix in suffixes]


@dataclass(frozen=True)
class Import:
    """One imported name: `module` is absolute; `name` is what is taken from it, "" for the module itself."""

    module: str
    name: str
    line: int
    renamed: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """What it may reach: the module, and the module's member of that name, which may be a module too."""
        return (self.module, f"{self.module}.{self.name}") if self.name else (self.module,)


# Folders whose packages are imported under other names; setup.py maps them.
BESIDE = {"bindings": "kreplica.arrow", "spark_connector": "kreplica.spark"}


def module_of(path: Path) -> str:
    """The dotted name of a source file: kreplica/log/__init__.py is kreplica.log."""
    parts = path.with_suffix("").parts
    named = (BESIDE.get(parts[0], parts[0]), *parts[1:])
    return ".".join(named[:-1] if named[-1] == "__init__" else named)


@cache
def imports_of(path: Path, text: str) -> tuple[Import, ...]:
    """All imports and cimports of the source `text` of `path`, wherever in the file they stand."""
    package = module_of(path.parent / "__init__.py")
    found = _cython_imports(text) if path.suffix in {".pyx", ".pxd"} else _python_imports(text)
    return tuple(replace(entry, module=_absolute(entry.module, package)) for entry in found)


def _absolute(module: str, package: str) -> str:
    """Resolve the leading dots of `module` as seen from a file in `package`."""
    dots = len(module) - len(module.lstrip("."))
    if not dots:
        return module
    base = package.split(".")[: len(package.split(".")) - (dots - 1)]
    return ".".join([*base, *([module[dots:]] if module[dots:] else [])])


def _python_imports(text: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno, renamed=alias.asname is not None)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)
        elif _is_import_by_name(node):
            yield Import(node.args[0].value, "", node.lineno)  # type: ignore[attr-defined]


def _is_import_by_name(node: ast.AST) -> bool:
    """`import_module("...")` and `__import__("...")` with the name written out."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in {"import_module", "__import__"} and isinstance(node.args[0].value, str)


# Strings and comments of Cython are Python's; what is left after them can be read line by line.
_QUIET = re.compile(
    r"""[rbuf]{0,2}(?P<triple>\"{3}|'{3})(?:\\.|(?!(?P=triple)).)*(?P=triple)"""
    r"""|[rbuf]{0,2}(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)"""
    r"""|\#[^\n]*""",
    re.DOTALL | re.IGNORECASE,
)
_FROM = re.compile(r"^\s*from\s+(?P<module>[.\w]+)\s+c?import\s+(?P<names>\([^)]*\)|[^\n;]*)", re.MULTILINE)
_IMPORT = re.compile(r"^\s*c?import\s+(?P<names>[^\n;]*)", re.MULTILINE)


def _cython_imports(text: str) -> Iterator[Import]:
    """Imports of Cython source, which Python's own parser cannot read."""
    blanked = _QUIET.sub(lambda match: "\n" * match[0].count("\n"), text)
    joined = re.sub(r"\\\n", "  ", blanked)
    statements = re.sub(r";", "\n", joined) if ";" in joined else joined
    for match in _FROM.finditer(statements):
        line = statements.count("\n", 0, match.start("module")) + 1
        for name in re.findall(r"(?:^|,)\s*(\*|\w+)", match["names"].strip("() \n")):
            yield Import(match["module"], name, line)
    for match in _IMPORT.finditer(statements):
        line = statements.count("\n", 0, match.start("names")) + 1
        for name in re.findall(r"(?:^|,)\s*([.\w]+)", match["names"]):
            yield Import(name, "", line)
