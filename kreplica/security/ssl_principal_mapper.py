"""SslPrincipalMapper: the rules of ssl.principal.mapping.rules, which make principals of certificates' names.

    RULE:^CN=(.*?),OU=.*$/$1/L,DEFAULT

The first rule whose pattern matches the whole name counts: each match of the pattern is replaced, so `.*`
matches the empty end as well. $1 is a group; L and U make it lower or upper case; DEFAULT is the name itself.
Patterns are those of Java. What Python reads in another way is refused. No state after it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kreplica.common.errors import InvalidConfig, SaslAuthenticationFailed

NAME = "ssl.principal.mapping.rules"
_RULE = re.compile(r"RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)")
# Escapes that Python does not have, or has with another meaning, and operations on sets of characters.
_OF_JAVA = re.compile(r"\\[pPQEhHRGXZzNkv]|&&|\[[^\]\\]*\[|\(\?[a-zA-Z-]+[:)]")
_REFERENCE = re.compile(r"\\(?P<literal>.)|\$(?P<digits>\d+)|(?P<alone>\$)", re.DOTALL)

CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class _Rule(NamedTuple):
    """`pattern`: None for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: Callable[[str], str]


class SslPrincipalMapper:
    """The rules in a text. Raises InvalidConfig."""

    def __init__(self, text: str) -> None:
        self._rules = list(_parse(text))

    def name(self, distinguished_name: str) -> str:
        """Return the name of the principal. Raises SaslAuthenticationFailed if no rule applies."""
        for pattern, replacement, case in self._rules:
            if pattern is None:
                return distinguished_name
            if pattern.fullmatch(distinguished_name):
                return case(pattern.sub(partial(_replaced, replacement), distinguished_name))
        raise SaslAuthenticationFailed(f"no rule of {NAME} applies to {distinguished_name[:200]!r}")


def _parse(text: str) -> list[_Rule]:
    rules, at = [], 0
    while at < len(text):
        if text[at] in ", \t\n":
            at += 1
            continue
        found = _RULE.match(text, at)
        if found is not None:
            rules.append(_Rule(_pattern(found["pattern"]), found["replacement"], CASES[found["case"]]))
            _check(rules[-1])
            at = found.end()
        elif text.startswith("DEFAULT", at):
            rules.append(_Rule(None, "", str))
            at += len("DEFAULT")
        else:
            raise InvalidConfig(
                f"{NAME}: {text[at : at + 80]!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]"
            )
        rest = text[at:].lstrip()
        if rest and not rest.startswith(","):
            raise InvalidConfig(f"{NAME}: a comma is missing before {text[at : at + 80]!r}")
    return rules or [_Rule(None, "", str)]


def _pattern(text: str) -> re.Pattern[str]:
    of_java = _OF_JAVA.search(text)
    if of_java is not None:
        raise InvalidConfig(
            f"{NAME}: {of_java[0]!r} in {text[:80]!r} has no meaning here: write it in another way"
        )
    try:
        return re.compile(re.sub(r"\(\?<(?=\w)", "(?P<", text), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidConfig(f"{NAME}: {text[:80]!r} is no pattern: {error}") from None


def _check(rule: _Rule) -> None:
    assert rule.pattern is not None
    for found in _REFERENCE.finditer(rule.replacement):
        if found["alone"] or (
            found["digits"] and not rule.pattern.groups and not found["digits"].startswith("0")
        ):
            raise InvalidConfig(
                f"{NAME}: {rule.replacement[:80]!r} refers to a group that the pattern does not have"
            )


def _replaced(replacement: str, found: re.Match[str]) -> str:
    def value(reference: re.Match[str]) -> str:
        if reference["literal"] is not None:
            return str(reference["literal"])
        digits = reference["digits"]
        # As many digits as name a group; the others are text.
        for count in range(len(digits), 0, -1):
            if int(digits[:count]) <= found.re.groups:
                return (found[int(digits[:count])] or "") + digits[count:]
        return f"${digits}"

    return _REFERENCE.sub(value, replacement)
