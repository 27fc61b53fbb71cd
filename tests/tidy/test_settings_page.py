"""docs/SETTINGS.md is what the settings are, and names every property that a node takes."""

from __future__ import annotations

import re
from pathlib import Path

from docs.settings_page import page
from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_settings import IGNORED, OF_PROCESS, REFUSED, known_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "SETTINGS.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "make settings"


def test_every_property_is_on_it() -> None:
    node = NodeConfig(node_id=1, cluster_id="c", directories=("/d",))
    listed = set(re.findall(r"`([a-z0-9.]+)`", page()))
    assert listed >= {*known_names(node), *OF_PROCESS, *IGNORED, *REFUSED}


def test_no_property_is_in_two_tables() -> None:
    names = re.findall(r"^\| `([a-z0-9.]+)`", page(), re.MULTILINE)
    assert len(names) == len(set(names))
