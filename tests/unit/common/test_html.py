"""Tables for notebooks."""

from __future__ import annotations

from kreplica.common.html import table


def test_text_is_escaped_and_empty_heads_are_left_out() -> None:
    shown = table("a<b", ("x", "y"), [["<script>", 1]])
    assert shown == (
        "<table><caption>a&lt;b</caption><thead><tr><th>x</th><th>y</th></tr></thead>"
        "<tbody><tr><td>&lt;script&gt;</td><td>1</td></tr></tbody></table>"
    )
    assert "<thead>" not in table("c", ("", ""), [])
