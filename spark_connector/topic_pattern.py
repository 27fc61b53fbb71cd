"""subscribePattern: a regular expression with one meaning, that of Java's, for both readers.

Topic names consist of ASCII letters, digits, ".", "_" and "-". For such text most of the two languages is the
same. What Python reads otherwise than Java, or not at all, is refused here. Thread rule: pure functions.

Java's: https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/regex/Pattern.html
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_SAME_ESCAPES = frozenset("dDwWsSbBAtnrfxu123456789")
_CLASS = re.compile(r"\[(\^?)([^\]]*)\]")
_OTHER_GROUP = re.compile(r"\(\?(?!:|=|!|<=|<!|>|[ims]*(?:-[ims]+)?[:)])")
_OTHER_BRACE = re.compile(r"\{(?!\d+(?:,\d*)?\})")


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the pattern. Raises ValueError if it is wrong, or if Python reads it otherwise than Java."""
    for found in _ESCAPE.finditer(pattern):
        if found[1].isalnum() and found[1] not in _SAME_ESCAPES:
            raise _different(found[0])
    plain = _ESCAPE.sub("..", pattern)
    for found in _CLASS.finditer(plain):
        if not found[2] or "[" in found[2] or "&&" in found[2]:
            raise _different(found[0])
    plain = _CLASS.sub(".", plain)
    for kind in (_OTHER_GROUP, _OTHER_BRACE):
        for found in kind.finditer(plain):
            raise _different(plain[found.start() : found.start() + 4])
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(str(error)) from error


def _different(part: str) -> ValueError:
    return ValueError(f"the Python reader cannot read {part!r} as Java does")
