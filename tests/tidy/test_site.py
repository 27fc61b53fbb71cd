"""The site of `make docs` has every page, every command and working links, as far as it can be seen without
building it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from docs.site_pages import EXAMPLES, LINK, ROOT_PAGES, commands_page, examples_page, with_links
from kreplica.cli.app import app
from tests.tidy.tree import ROOT

NAVIGATION = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
ON_SITE = {*(page.name for page in ROOT.glob("docs/*.md")), *ROOT_PAGES.values(), EXAMPLES, "COMMANDS.md"}


def test_the_navigation_has_every_page() -> None:
    named = re.findall(r"- (?:[\w ]+: )?(\w+\.md)$", NAVIGATION, re.MULTILINE)
    assert sorted(named) == sorted(ON_SITE)


def test_links_lead_to_pages_of_the_site() -> None:
    texts = [with_links((ROOT / page).read_text(), Path(".")) for page in ROOT_PAGES]
    texts += [with_links(page.read_text(), Path("docs")) for page in ROOT.glob("docs/*.md")]
    texts.append(with_links(examples_page(), Path("examples")))
    targets = {match[1] for text in texts for match in LINK.finditer(text)}
    assert EXAMPLES in targets
    assert {each for each in targets - ON_SITE if not (ROOT / "docs" / each).is_file()} == set()


def test_a_link_is_adapted() -> None:
    assert with_links("[a](docs/LOG.md#as-columns)", Path(".")) == "[a](LOG.md#as-columns)"
    assert with_links("[a](../README.md)", Path("docs")) == "[a](index.md)"
    assert with_links("[a](../examples/outbox.py)", Path("docs")) == "[a](EXAMPLES.md#outboxpy)"
    assert with_links("[a](https://x.org/y) [b](#c)", Path("docs")) == "[a](https://x.org/y) [b](#c)"


def test_the_reference_has_every_command() -> None:
    def names(command: Any, path: str) -> list[str]:
        inner = getattr(command, "commands", {}).items()
        return [
            path,
            *(each for name, one in inner if not one.hidden for each in names(one, f"{path} {name}")),
        ]

    listed = re.findall(r"^##+ (kreplica.*)$", commands_page(), re.MULTILINE)
    assert sorted(listed) == sorted(names(typer.main.get_command(app), "kreplica"))
    assert len(listed) > 30
