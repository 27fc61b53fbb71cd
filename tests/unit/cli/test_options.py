"""Values of options."""

from __future__ import annotations

import pytest

from kreplica.cli.options import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("20M", 20 << 20),
        ("20MiB", 20 << 20),
        ("1.5 gib", 3 << 29),
        ("7B", 7),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "1 parsec", "MiB", "0.1"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_size(text)
