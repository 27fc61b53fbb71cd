"""subscribePattern has Java's meaning with both readers: Python refuses what it would read otherwise."""

from __future__ import annotations

import pytest
from kreplica.spark.topic_pattern import compiled


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders-.*", "orders-eu"),
        (r"^(?:a|b)\.[0-9]{2,3}$", "a.123"),
        (r"(?i)ORDERS", "orders"),
        (r"[^a-c]\d++", "x12"),
        (r"(?<!old-)t\(?", "t"),
        (r"\[{1}|\{|q", "q"),
    ],
)
def test_a_pattern_that_both_languages_read_alike(pattern: str, found: str) -> None:
    assert compiled(pattern).search(found)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"\p{Alpha}+", "'\\\\\\\\p'"),
        (r"\Qa.b\E", "'\\\\\\\\Q'"),
        (r"a\vb", "'\\\\\\\\v'"),
        (r"[a-z&&[^b]]", r"'\[a-z&&\[\^b\]'"),
        (r"[a[bc]]", r"'\[a\[bc\]'"),
        (r"[]a]", r"'\[\]'"),
        (r"(?P<name>t)", r"'\(\?P<'"),
        (r"(?<name>t)", r"'\(\?<n'"),
        (r"(?x)t # a comment", r"'\(\?x\)'"),
        (r"t{,3}", r"'\{,3\}'"),
    ],
)
def test_a_pattern_that_they_read_differently(pattern: str, part: str) -> None:
    with pytest.raises(ValueError, match=f"the Python reader cannot read {part} as Java does"):
        compiled(pattern)


def test_a_wrong_pattern() -> None:
    with pytest.raises(ValueError, match=r"unterminated|missing"):
        compiled("(a")
