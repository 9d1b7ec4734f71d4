"""Open files for reading by their path, or by a URL with the package fsspec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from collops.errors import InputError


def located(path: str | Path) -> Path | str:
    """Return a path, or the URL of a file that fsspec opens, such as ``s3://bucket/line.sgy``, unchanged."""
    return str(path) if "://" in str(path) else Path(path)


def opened(path: Path | str) -> Any:
    """Open a file or URL for reading bytes, with ``seek`` and ``readinto``."""
    if isinstance(path, Path):
        return open(path, "rb", buffering=0)
    return _file_system(path).open(path, "rb")


def size_of(path: Path | str) -> int:
    """Return the size of a file or URL in bytes."""
    return os.stat(path).st_size if isinstance(path, Path) else int(_file_system(path).size(path))


def _file_system(url: str) -> Any:
    """Return the file system of fsspec for a URL."""
    try:
        import fsspec

        return fsspec.core.url_to_fs(url)[0]
    except (ImportError, ValueError) as problem:
        # fsspec itself, the package that it needs for this protocol, or an unknown protocol
        if "fsspec" in str(problem):
            problem = ImportError("install collops[remote]")
        raise InputError(f"{url} needs the package fsspec, and its file system for this URL: {problem}") from None
