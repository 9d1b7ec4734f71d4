"""Tables of contents that name pages by pattern: a pattern that no page matches is left out instead of warned about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_TABLE = re.compile(r"```\{toctree\}.*?```", re.DOTALL)


def _read(app: Sphinx, name: str, content: list[str]) -> None:
    folder = Path(app.env.doc2path(name)).parent

    def matched(table: re.Match[str]) -> str:
        lines = table.group(0).splitlines()
        return "\n".join(line for line in lines if not line.endswith("*") or any(folder.glob(f"{line}.md")))

    content[0] = _TABLE.sub(matched, content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every page when it is read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
