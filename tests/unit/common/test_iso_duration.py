"""Durations as text."""

from __future__ import annotations

import pytest

from kreplica.common.iso_duration import duration_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("P1D", 86_400_000),
        ("PT2H30M", 9_000_000),
        ("pt0.5s", 500),
        ("P1DT1H1M1.123456789S", 90_061_123),
        ("PT0S", 0),
    ],
)
def test_durations(text, expected_ms):
    assert duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "1D", "P1", "-PT1H", "PT1H ", "P1Y", "PT1.S", "P9" + "9" * 60 + "D", "P١D"],
)
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match=r"duration|longer"):
        duration_ms(text)
