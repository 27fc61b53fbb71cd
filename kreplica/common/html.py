"""A table as HTML, for the representations of objects in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a caption; `heads` without text are left out. All text is escaped."""
    head = "".join(f"<th>{_escaped(each)}</th>" for each in heads) if any(heads) else ""
    body = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    first = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption>{_escaped(caption)}</caption>{first}<tbody>{body}</tbody></table>"


def _escaped(value: object) -> str:
    import html

    return html.escape(str(value))
