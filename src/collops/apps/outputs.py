"""Write results so that a reader sees a whole file or none: first into a temporary neighbour."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collops.errors import InputError

__all__ = ["atomic", "check_writable", "prepare_folder"]


def prepare_folder(folder: Path) -> None:
    """Create the output `folder`, and find out before the computation whether it can be written.

    Raises
    ------
    InputError
        If it is no folder, or cannot be created or written.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise InputError(f"cannot write into the folder {folder} ({reason}): name another one with --out") from None


def check_writable(path: Path) -> None:
    """Find out whether a file could be created at `path`, without touching what may be there.

    Raises
    ------
    InputError
        If `path` is a folder, or its folder does not exist or cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        raise InputError(f"cannot write {path} ({problem.strerror or problem}): choose another folder") from None


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary path to write a file or a folder to, and rename it to `path` when that went well.

    If the body raises, whatever it wrote is removed and what was at `path` before stays as it was.

    Yields
    ------
    pathlib.Path
        Where to write: same folder and same suffix as `path`.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    temporary = scratch / path.name
    try:
        yield temporary
        if temporary.is_dir() and path.is_dir():
            # A folder cannot be renamed over another one that holds files: the old one steps aside first.
            os.replace(path, scratch / "previous")
        os.replace(temporary, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
