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


def test_the_pages_show_commands_that_exist() -> None:
    root: Any = typer.main.get_command(app)
    shown = [
        (page, line)
        for page in ("README.md", "docs/START.md", "docs/COMMAND_LINE.md", "docs/CONCEPTS.md")
        for line in re.findall(r"^    .*?\b(kreplica [a-z].*)$", (ROOT / page).read_text(), re.MULTILINE)
    ]
    assert len(shown) > 20
    assert [problem for page, line in shown if (problem := wrong(root, line)) is not None] == []


def wrong(command: Any, line: str) -> str | None:
    """Return what is wrong with the command `line` of a page, or None: names of commands and options."""
    words = re.split(r"\s{2,}", line)[0].split()[1:]
    while words and hasattr(command, "commands"):
        name = words.pop(0)
        if name not in command.commands:
            return f"{line}: no command {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in getattr(parameter, "opts", ())}
    options = [word.strip("[]") for word in words if word.strip("[]").startswith("-")]
    missing = [option for option in options if option not in known]
    return f"{line}: no option {missing[0]}" if missing else None


def test_a_wrong_command_is_found() -> None:
    root: Any = typer.main.get_command(app)
    assert wrong(root, "kreplica topic create orders -p 4") is None
    assert wrong(root, "kreplica topic make orders") == "kreplica topic make orders: no command make"
    assert wrong(root, "kreplica verify data --mend") == "kreplica verify data --mend: no option --mend"
