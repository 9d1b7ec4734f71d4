"""Links that pages make to files of the repository, as they must be where there is no repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
# Files of the root whose text is that of a page here.
INCLUDED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PAGES = INCLUDED | {"README.md": "index.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)?([^)#:\s]+)\)")


def rewritten(text: str, page: str) -> str:
    """Return a page's text with links that hold inside the site.

    Examples become pages of the gallery, other files of the repository are offered for download, and folders, which
    cannot be, are left as their names.
    """

    def replace(match: re.Match[str]) -> str:
        words, path = match.groups()
        written = match.group(0)
        if "](../" not in written and page not in INCLUDED.values():
            return written
        if path in PAGES:
            return f"[{words}]({PAGES[path]})"
        if path.startswith("docs/"):
            return f"[{words}]({path.removeprefix('docs/')})"
        if path.startswith("examples/") and path.endswith(".py"):
            return f"[{words}](gallery/{Path(path).stem}.rst)"
        return words if (ROOT / path).is_dir() else f"[{words}](../{path})"

    return _LINK.sub(replace, text)


def _read(app: Sphinx, name: str, content: list[str]) -> None:
    if app.env.doc2path(name).suffix == ".md":
        page = f"{name}.md"
        included = {value: key for key, value in INCLUDED.items()}.get(page)
        text = (ROOT / included).read_text("utf-8") if included else content[0]
        content[0] = rewritten(text, page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Rewrite pages when they are read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
