"""The pages of the documentation, and what is written in them: programs and commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# A command inside a sentence: complete, that is without … or a word such as NAME where something is to be put in.
_INLINE = re.compile(r"`((?:collops|make|pip install|mpiexec|srun|python) [^`…]+)`")
_OPEN = re.compile(r"\b(?:N|NAME)\b")
_BLOCK = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(path: Path, language: str) -> list[str]:
    """Return what stands in a page's fenced blocks of one language; commands have none."""
    return [text for name, text in _BLOCK.findall(path.read_text("utf-8")) if name == language]


def commands(path: Path) -> list[str]:
    """Return the commands of a page, without comments: those in blocks, one a line, and those in sentences.

    Job scripts are not among them.
    """
    text = _BLOCK.sub("", path.read_text("utf-8"))
    found = [" ".join(command.split()) for command in _INLINE.findall(text) if not _OPEN.search(command)]
    for text in blocks(path, ""):
        if not text.startswith("#!"):
            lines = text.replace("\\\n", " ").splitlines()
            found += [line.partition(" #")[0].strip() for line in lines if line and not line.startswith("#")]
    return [command for command in found if command]


def scripts(path: Path) -> list[str]:
    """Return the job scripts of a page."""
    return [text for text in blocks(path, "") if text.startswith("#!")]


def names_of_table(path: Path, header: str) -> list[str]:
    """Return the names, in code font, that begin the rows of a table whose first column has a header."""
    _, _, rows = path.read_text("utf-8").partition(f"\n| {header} |")
    return re.findall(r"^\| `([^`]+)` \|", rows.partition("\n\n")[0], re.MULTILINE)
