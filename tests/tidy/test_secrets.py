"""No secret is compared by == or !=, which stop at the first difference (CVE-2021-38153).

A secret is recognised by its name. `hmac.compare_digest` compares them.
"""

from __future__ import annotations

import ast
import re

from tests.tidy.tree import ROOT, source_files

SECRET = re.compile(
    r"(?:^|_)(?:password|secret|proof|signature|stored_key|server_key|client_key|hmac|digest|salted|token_hmac)s?$"
)


def names_in(node: ast.expr) -> set[str]:
    """Return the names that an operand of a comparison is made of, but for those of called functions."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr} | (names_in(node.value) if node.attr == "value" else set())
    if isinstance(node, ast.Subscript):
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return {index} if isinstance(index, str) else names_in(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return names_in(node.func.value)
    return set()


def compared_secrets(text: str) -> list[tuple[int, str]]:
    """Return the line and the name of each secret that the source compares with == or !=."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops):
            operands = [node.left, *node.comparators]
            if any(isinstance(each, ast.Constant) and each.value in ("", b"", None) for each in operands):
                continue
            found += [(node.lineno, n) for each in operands for n in names_in(each) if SECRET.search(n)]
    return found


def test_no_secret_is_compared_by_its_value() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path in source_files(".py", under="kreplica")
        for line, name in compared_secrets((ROOT / path).read_text())
    ]
    assert found == [], "compare with hmac.compare_digest"


def test_a_comparison_of_secrets_is_found() -> None:
    for text in (
        "password == other",
        "known.value != self._password.value",
        "found['proof'] == x",
        "x == credential.stored_key",
        "signature.hex() == y",
    ):
        assert compared_secrets(text), text
    for text in ("password is None", "compare_digest(password, x)", "password == ''", "passwords_file == 1"):
        assert not compared_secrets(text), text
