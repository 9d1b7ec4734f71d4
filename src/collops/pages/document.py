"""A whole page: head, sections with links to them, styles and script, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collops.pages.markup import Markup, join, tag

__all__ = ["Section", "document"]

_HERE = Path(__file__).parent
# The page asks for nothing: what a browser would fetch by itself, such as an icon, is ruled out as well.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Parameters
    ----------
    name : str
        For links; letters, digits and hyphens.
    title : str
        Its heading.
    content : Markup
        What stands below.
    """

    name: str
    title: str
    content: Markup


def document(title: str, lead: Markup, sections: Sequence[Section], *, style: str = "", script: str = "") -> str:
    """Return the text of a page.

    Parameters
    ----------
    title : str
        Its heading, and the window's.
    lead : Markup
        What stands first.
    sections : sequence of Section
        In their order.
    style, script : str
        CSS and JavaScript that this page needs beside what all pages have.
    """
    links = tag("nav", *(tag("a", each.title, href=f"#{each.name}") for each in sections), aria_label="Sections")
    body = join(
        [
            tag("a", "Skip to the content", href="#content", class_="skip"),
            tag("header", tag("h1", title), lead, links),
            tag("main", *(_section(each) for each in sections), id="content"),
            tag("div", id="tip", role="status", hidden=True),
            tag("script", Markup(_read("page.js") + script)),
        ],
        "\n",
    )
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            tag("style", Markup(_read("style.css") + style)),
        ],
        "\n",
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _section(section: Section) -> Markup:
    heading = f"{section.name}-title"
    content = (tag("h2", section.title, id=heading), section.content)
    return tag("section", *content, id=section.name, aria_labelledby=heading)


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
