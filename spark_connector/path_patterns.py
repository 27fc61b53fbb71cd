"""Find the directories that a pattern names, as Spark's file sources do: *, ?, [ab], [^ab] and {a,b}.

Thread rule: pure functions of the file system.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator

from kreplica.spark.option_table import OptionError

# What a sink adds to the name of a directory, for the one beside it that has its commits.
COMMITS = ".spark"
_SPECIAL = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")


def matching(paths: Iterable[str]) -> list[str]:
    """Return the paths, and in place of a pattern those that match it, sorted.

    Raises OptionError if none do.

    A path that exists is no pattern, whatever its name is.
    """
    return [found for path in paths for found in _matching(path)]


def _matching(path: str) -> list[str]:
    if not _SPECIAL.search(path) or os.path.lexists(path):
        return [path]
    found = {each for plain in _without_braces(path) for each in glob.glob(plain.replace("[^", "[!"))}
    found = {each for each in found if not _is_of_sink(each)}
    if not found:
        raise OptionError(f"{path}: no directory matches this pattern")
    return sorted(found)


def _is_of_sink(path: str) -> bool:
    """Return whether a sink keeps its commits there, beside the directory that it writes."""
    return path.endswith(COMMITS) and os.path.isdir(path.removesuffix(COMMITS))


def _without_braces(pattern: str) -> Iterator[str]:
    """Yield a pattern for each alternative; the innermost braces first."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    for each in braces[1].split(","):
        yield from _without_braces(pattern[: braces.start()] + each + pattern[braces.end() :])
