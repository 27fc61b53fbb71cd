"""What docstrings name in backticks exists: modules of kreplica, and members of kreplica's own classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.tree import ROOT, module_of, source_files

DOTTED = re.compile(r"`(kreplica(?:\.\w+)+)[`(]")
MEMBER = re.compile(r"`([A-Z]\w*[a-z]\w*)\.(\w+)[`(]")
CLASS = re.compile(r"^\s*(?:cdef class|cdef enum|class) (\w+)", re.MULTILINE)
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi")


@cache
def texts() -> dict[Path, str]:
    return {path: (ROOT / path).read_text() for path in source_files(*SUFFIXES)}


@cache
def known() -> tuple[set[str], set[str], dict[str, set[str]]]:
    """The modules and packages, all words, and the words of the files that define each class."""
    modules = {module_of(path) for path in texts()}
    packages = {name.rpartition(".")[0] for name in modules}
    of_class: dict[str, set[str]] = {}
    for text in texts().values():
        words = set(re.findall(r"\w+", text))
        for name in CLASS.findall(text):
            of_class.setdefault(name, set()).update(words)
    return modules | packages, set().union(*of_class.values()), of_class


def docstrings(path: Path, text: str) -> Iterator[str]:
    if path.suffix != ".py":
        yield from re.findall(r'"""(.*?)"""', text, re.DOTALL)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def missing(text: str) -> list[str]:
    modules, words, of_class = known()
    named = [(owner, name) for owner, name in MEMBER.findall(text) if owner in of_class]
    lost = [f"{owner}.{name}" for owner, name in named if name not in of_class[owner]]
    for dotted in DOTTED.findall(text):
        place, name = dotted, ""
        while place not in modules:
            place, _, name = place.rpartition(".")
        if name and name not in words | of_class.keys():
            lost.append(dotted)
    return lost


def test_docstrings_name_what_exists() -> None:
    found = {
        str(path): lost
        for path, text in texts().items()
        if (lost := [name for each in docstrings(path, text) for name in missing(each)])
    }
    assert found == {}


def test_a_name_that_is_gone_is_found() -> None:
    assert missing("see `kreplica.log.unheard_of` and `UnifiedLog.unheard_of()`") == [
        "UnifiedLog.unheard_of",
        "kreplica.log.unheard_of",
    ]
    assert missing("`kreplica.log.unified_log.UnifiedLog`, `UnifiedLog.read(0)`, `Kafka.anything`") == []
