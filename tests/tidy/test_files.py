"""Rules for the files of the project: sizes, lengths, what may not be there, what belongs together."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.tree import ROOT, source_files, tracked_files

LARGEST_FILE_BYTES = 1 << 20
TEST_DATA_BYTES = 256 << 10

PRODUCTS = re.compile(r"\.(so|o|a|dylib|pyc|pyd|class|jar|whl|html|orig|rej|swp)$|(^|/)(build|dist|target)/")
# Pages that are written by hand.
PAGES = {Path("kreplica/runtime/console.html")}
# A home or work folder of some machine; system places such as /tmp, /proc and /dev are everywhere.
MACHINE_PATH = re.compile(rb"(?<![\w.$~*)}-])/(?:home|root|work|Users)/[\w.+-]")


def test_no_file_is_large() -> None:
    large = {
        str(p): size for p in tracked_files() if (size := (ROOT / p).stat().st_size) > LARGEST_FILE_BYTES
    }
    assert large == {}


def test_test_data_is_small() -> None:
    sizes = {p: (ROOT / p).stat().st_size for p in tracked_files() if p.parts[:2] == ("tests", "data")}
    assert sum(sizes.values()) <= TEST_DATA_BYTES, sizes


def test_nothing_built_is_tracked() -> None:
    assert [str(p) for p in tracked_files() if PRODUCTS.search(p.as_posix()) and p not in PAGES] == []


def test_generated_c_is_not_tracked() -> None:
    generated = {p.with_suffix(".c") for p in source_files(".pyx")}
    assert [str(p) for p in tracked_files() if p in generated] == []


def test_no_path_of_a_machine() -> None:
    own = Path(__file__).relative_to(ROOT)
    found = [
        f"{path}: {match[0].decode()}"
        for path in tracked_files()
        if path != own and path.parts[:2] != ("tests", "data")
        for match in MACHINE_PATH.finditer((ROOT / path).read_bytes())
    ]
    assert found == []


def test_path_of_a_machine_is_recognised() -> None:
    for text in (b"/home/ada/x", b'"/' + b'work/x"', b"cd /" + b"root/.cache", b"=/Users/ada"):
        assert MACHINE_PATH.search(text), text
    for text in (b"$HOME/wor" + b"k/x", b"a/wor" + b"k/b", b"/tmp/x", b"~/wor" + b"k/x", b"/rooted"):
        assert not MACHINE_PATH.search(text), text


def test_native_modules_have_a_stub() -> None:
    modules = source_files(".pyx")
    assert modules
    tracked = set(tracked_files())
    assert [str(p) for p in modules if p.with_suffix(".pyi") not in tracked] == []


def test_native_modules_have_a_declaration() -> None:
    tracked = set(tracked_files())
    assert [str(p) for p in source_files(".pyx") if p.with_suffix(".pxd") not in tracked] == []


def test_sources_open_with_their_contract() -> None:
    """A module opens with its purpose, its ownership, and the threads that may call it."""
    silent = []
    packages = ("kreplica", "bindings", "spark_connector")
    for path in [path for top in packages for path in source_files(".py", ".pyx", under=top)]:
        text = (ROOT / path).read_text().strip()
        if text and not re.match(r'[rR]?"""\S|#(?!!)', text):
            silent.append(str(path))
    assert silent == []
