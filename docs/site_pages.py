"""A hook of mkdocs: adds the pages that are not in docs/, for `make docs`.

These are the pages of the root (README.md is the home page), the examples with their sources, and the
reference of all commands, made from the command line's own definitions. Links between the pages are adapted,
so that the same text works on the site and in the tree. No state; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kreplica.cli.app import HELP_OPTIONS, app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages of the root, with their names on the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
EXAMPLES = "EXAMPLES.md"
# Columns that fit beside the navigation.
WIDTH = 78
LINK = re.compile(r"\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; mkdocs calls this."""
    from mkdocs.structure.files import File

    for source, name in ROOT_PAGES.items():
        text = with_links((ROOT / source).read_text(), Path("."))
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, EXAMPLES, content=with_links(examples_page(), Path("examples"))))
    files.append(File.generated(config, "COMMANDS.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Adapt the links of the pages in docs/; mkdocs calls this."""
    return markdown if page.file.generated_by else with_links(markdown, Path("docs"))


def with_links(text: str, folder: Path) -> str:
    """Return the text of a page of `folder` with links as they are on the site."""

    def adapted(match: re.Match[str]) -> str:
        target = (ROOT / folder / match[1]).resolve().relative_to(ROOT)
        return f"]({name_on_site(target)}{match[2] or anchor_of(target)})"

    return LINK.sub(adapted, text)


def name_on_site(target: Path) -> str:
    """Return the name that a file of the tree has on the site."""
    if str(target) in ROOT_PAGES:
        return ROOT_PAGES[str(target)]
    return EXAMPLES if target.parts[0] == "examples" else str(target.relative_to("docs"))


def anchor_of(target: Path) -> str:
    """Return the anchor of an example's source, or nothing for other files."""
    is_source = target.parts[0] == "examples" and target.suffix in {".py", ".java"}
    return f"#{target.name.lower().replace('.', '')}" if is_source else ""


def examples_page() -> str:
    """Return the list of examples, and behind it their sources."""
    parts = [(ROOT / "examples/README.md").read_text()]
    for path in sorted((ROOT / "examples").glob("*.*")):
        if path.suffix in {".py", ".java"}:
            language = "python" if path.suffix == ".py" else "java"
            parts.append(f"\n## {path.name}\n\n```{language}\n{path.read_text()}```\n")
    return "".join(parts)


def commands_page() -> str:
    """Return a page with the help of every command."""
    head = "# Commands\n\nThe help of every command, as `kreplica COMMAND -h` prints it.\n"
    root: Any = typer.main.get_command(app)
    context = typer.Context(
        root,
        info_name="kreplica",
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=HELP_OPTIONS,
    )
    return head + "".join(_sections(root, context, 2))


def _sections(command: Any, context: Any, level: int) -> Iterator[str]:
    yield f"\n{'#' * level} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    for name, each in sorted(getattr(command, "commands", {}).items()):
        if not each.hidden:
            inner = typer.Context(each, info_name=name, parent=context)
            yield from _sections(each, inner, min(level + 1, 4))
