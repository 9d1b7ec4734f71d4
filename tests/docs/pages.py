"""The pages of the documentation, and what is written in them: programs and commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(path: Path, language: str) -> list[str]:
    """Return what stands in a page's fenced blocks of one language; commands have none."""
    return [text for name, text in _BLOCK.findall(path.read_text("utf-8")) if name == language]


def commands(path: Path) -> list[str]:
    """Return the commands of a page, without comments, one a line; job scripts are not among them."""
    found = []
    for text in blocks(path, ""):
        if not text.startswith("#!"):
            lines = text.replace("\\\n", " ").splitlines()
            found += [line.partition(" #")[0].strip() for line in lines if line and not line.startswith("#")]
    return [command for command in found if command]


def scripts(path: Path) -> list[str]:
    """Return the job scripts of a page."""
    return [text for text in blocks(path, "") if text.startswith("#!")]
