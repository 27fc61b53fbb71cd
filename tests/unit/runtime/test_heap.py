"""Memory that is given back to the system."""

from __future__ import annotations

import pytest

from kreplica.runtime import heap
from kreplica.runtime.heap import trim_heap


def test_the_c_library_is_asked_if_it_has_that(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(heap, "_malloc_trim", lambda: asked.append)
    trim_heap()
    assert asked == [0]
    monkeypatch.setattr(heap, "_malloc_trim", lambda: None)
    trim_heap()


def test_this_machine_is_asked() -> None:
    heap._malloc_trim.cache_clear()
    trim_heap()
