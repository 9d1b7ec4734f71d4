"""Notebooks of the tutorials, written from their pages: prose becomes Markdown cells, programs become code cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx_gallery.notebook import add_code_cell, add_markdown_cell, jupyter_notebook_skeleton, save_notebook

if TYPE_CHECKING:
    from sphinx.application import Sphinx

TUTORIALS = (
    "first-steps",
    "tutorial-pylops",
    "tutorial-segy",
    "own-operator",
    "own-solver",
    "own-application",
    "tutorial-jax",
    "tutorial-speed",
)
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)  # the notebook draws its own
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")  # to pages that are not next to a notebook


def notebook(page: str) -> dict[str, Any]:
    """Return a page as a notebook."""
    made = jupyter_notebook_skeleton()
    for number, part in enumerate(_PROGRAM.split(page)):
        if number % 2:
            add_code_cell(made, part.rstrip())
        elif prose := _LINK.sub(r"\1", _PICTURE.sub("", part)).strip():
            add_markdown_cell(made, prose)
    return made


def write_notebooks(app: Sphinx) -> None:
    """Write `_measured/NAME.ipynb` of each tutorial."""
    folder = Path(app.srcdir)
    (folder / "_measured").mkdir(exist_ok=True)
    for name in TUTORIALS:
        save_notebook(notebook((folder / f"{name}.md").read_text("utf-8")), folder / "_measured" / f"{name}.ipynb")


def _read(app: Sphinx, name: str, content: list[str]) -> None:
    if name == "tutorials":
        rows = [f"- [](<{one}.md>): {{download}}`{one}.ipynb <_measured/{one}.ipynb>`" for one in TUTORIALS]
        content[0] = content[0].replace("{notebooks}", "\n".join(rows))


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the notebooks before the pages that offer them are read."""
    app.connect("config-inited", lambda app, _: write_notebooks(app))
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
