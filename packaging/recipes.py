"""Write the recipes with the hashes of built source distributions: those in the repository have a mark in their place.

    python packaging/recipes.py FOLDER

``FOLDER/recipes`` receives the folder ``packaging/recipes``; a recipe can be submitted once the distributions in FOLDER
are published.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

RECIPES = Path(__file__).resolve().parent / "recipes"
MARK = re.compile(r"@SHA256 ([\w-]+)@")


def main() -> None:
    """Write every file, and print its name."""
    parser = argparse.ArgumentParser(description="Write the recipes with the hashes of source distributions.")
    parser.add_argument("folder", type=Path, help="where the distributions are")
    folder = parser.parse_args().folder
    for source in sorted(path for path in RECIPES.rglob("*") if path.is_file()):
        target = folder / "recipes" / source.relative_to(RECIPES)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(MARK.sub(lambda match: sha256(folder, match[1]), source.read_text("utf-8")), "utf-8")
        print(target)


def sha256(folder: Path, distribution: str) -> str:
    """Return the hash of the source distribution in a folder."""
    archives = list(folder.glob(f"{distribution.replace('-', '_')}-[0-9]*.tar.gz"))
    if len(archives) != 1:
        raise SystemExit(f"{folder} must contain one source distribution of {distribution}, not {len(archives)}")
    return hashlib.sha256(archives[0].read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
