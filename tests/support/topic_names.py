"""A topic of a test's own, in a cluster that several tests share."""

from __future__ import annotations

import pytest


def topic_of(request: pytest.FixtureRequest) -> str:
    """Return a topic's name that is made of the test's."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)[:100]
