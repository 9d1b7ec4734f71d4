"""Check a built site.

Every link inside leads somewhere, and no page fetches anything from outside. The paths on the page of questions can be
clicked. Notebooks can be opened, and search knows every page by a title.

Run: python docs/check_site.py docs/_build/html
"""

from __future__ import annotations

import ast
import json
import re
import sys
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself; an <a href> is only followed by a reader.
_LOADED = dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src") | {"link": "href"}
_IMPORTED = re.compile(r"@import\s+[\"']?([^\"';\s)]+)|url\(\s*[\"']?([^\"')\s]+)")


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to, and what can be referred to by it."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag in _LOADED and _LOADED[tag] in values:
            self.loaded.add(values[_LOADED[tag]])
        self.loaded |= {one.split()[0] for one in values.get("srcset", "").split(",") if one.strip()}


@cache
def page_of(path: Path) -> Page:
    """Read a page once."""
    return Page(path.read_text("utf-8"))


def wrong_with(path: Path, link: str) -> str | None:
    """Return what is wrong with a link inside the site, or None."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return f"{link} leads nowhere"
    if target.suffix == ".html" and unquote(parts.fragment) not in page_of(target).anchors:
        return f"{link} names no place on its page"
    return None


def broken_paths(site: Path) -> list[str]:
    """Return the paths of the page of questions that need more than two clicks, or a link that is missing."""
    found = []
    for row in re.findall(r"<tr[^>]*>\s*<td>.*?</tr>", (site / "questions.html").read_text("utf-8"), re.DOTALL):
        first, *clicks = (unquote(link) for link in re.findall(r'<a [^>]*href="([^"]+)"', row))
        if first != "index.html" or not 1 <= len(clicks) <= 2:
            found.append(f"questions.html: {' > '.join([first, *clicks])} is not one or two clicks from index.html")
        for here, there in pairwise([first, *clicks]):
            text = (site / here.partition("#")[0]).read_text("utf-8")
            offered = Page(text.partition("<article")[2].partition("</article>")[0]).links
            if there.partition("#")[0] not in {link.partition("#")[0] for link in offered}:
                found.append(f"questions.html: {here} has no link to {there}")
    return found


def broken_notebooks(site: Path) -> list[str]:
    """Return the notebooks without the form of nbformat 4, or with a cell that is not Python."""
    found = []
    for path in sorted(site.rglob("*.ipynb")):
        try:
            notebook = json.loads(path.read_text("utf-8"))
            if notebook["nbformat"] != 4 or not notebook["metadata"]["kernelspec"]["name"].startswith("python"):
                raise ValueError("not a Python notebook of nbformat 4")
            sources = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
            for source in (source for kind, source in sources if kind == "code"):
                ast.parse(re.sub(r"^%", "#", source, flags=re.MULTILINE))
        except (KeyError, ValueError, SyntaxError) as problem:
            found.append(f"{path.name}: {problem!r}")
    return found


def missing_in_search(site: Path) -> list[str]:
    """Return the pages that search would show without a title, and titles that two pages have."""
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    named = list(zip(index["docnames"], index["titles"], strict=True))
    titles = [title for name, title in named if "/" not in name]
    found = [f"{name}: has no title" for name, title in named if title == "<no title>"]
    return found + [f"several pages have the title {title}" for title in sorted(set(titles)) if titles.count(title) > 1]


def problems(site: Path) -> list[str]:
    """Return all that is wrong with a site, one line each."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page = page_of(path)
        for link in sorted(page.links | page.loaded):
            if (wrong := wrong_with(path, link)) is not None:
                found.append(f"{path.relative_to(site)}: {wrong}")
        outside = [link for link in page.loaded if urlsplit(link).netloc]
        found += [f"{path.relative_to(site)}: {link} is fetched from outside" for link in sorted(outside)]
    for path in sorted(site.rglob("*.css")):
        for groups in _IMPORTED.findall(path.read_text("utf-8")):
            link = next(filter(None, groups))
            if urlsplit(link).netloc:
                found.append(f"{path.relative_to(site)}: {link} is fetched from outside")
    return found


def main() -> None:
    """Say what is wrong, and fail if there is anything."""
    site = Path(sys.argv[1]).resolve()
    found = problems(site) + broken_paths(site) + broken_notebooks(site) + missing_in_search(site)
    if not any(site.rglob("*.html")):
        found.append(f"there are no pages in {site}")
    sys.exit("\n".join(found) if found else None)


if __name__ == "__main__":
    main()
