"""Files at URLs, which the package fsspec opens, with the methods of :class:`pathlib.Path` that readers use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from collops.errors import InputError

__all__ = ["Url", "located"]


@dataclass(frozen=True)
class Url:
    """The URL of a file or a folder, such as ``s3://bucket/line.sgy``."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __fspath__(self) -> str:  # for Zarr, which opens URLs, too
        return self.text

    def __truediv__(self, name: str) -> Url:
        path, rest = self._parts
        return Url(f"{path.rstrip('/')}/{name}{rest}")

    @property
    def parent(self) -> Url:
        """The URL of the folder."""
        path, rest = self._parts
        return Url(path.rstrip("/").rpartition("/")[0] + rest)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self._parts[0]).name

    @property
    def suffix(self) -> str:
        """The suffix of the name, such as ``".sgy"``."""
        return PurePosixPath(self.name).suffix

    def open(self, mode: str = "rb") -> Any:
        """Open the file."""
        system, path = self._system()
        return system.open(path, mode)

    def size(self) -> int:
        """Return the number of bytes of the file."""
        system, path = self._system()
        size = system.size(path)
        if size is None:
            raise InputError(f"{self} is a stream of unknown size: copy it to a file first")
        return int(size)

    def exists(self) -> bool:
        """Return whether there is a file or a folder."""
        system, path = self._system()
        return bool(system.exists(path))

    def is_file(self) -> bool:
        """Return whether there is a file."""
        system, path = self._system()
        return bool(system.isfile(path))

    def is_dir(self) -> bool:
        """Return whether there is a folder."""
        system, path = self._system()
        return bool(system.isdir(path))

    def iterdir(self) -> Iterator[Url]:
        """Yield the members of the folder."""
        system, path = self._system()
        for member in system.ls(path, detail=False):
            yield self / PurePosixPath(member).name

    @property
    def _parts(self) -> tuple[str, str]:
        """The first path, and the rest: a query, or the files that contain it (``zip://a.sgy::s3://bucket/b.zip``)."""
        end = re.search(r"::|\?|$", self.text)
        position = len(self.text) if end is None else end.start()
        return self.text[:position], self.text[position:]

    def _system(self) -> tuple[Any, str]:
        """Return the file system of fsspec, and the path in it."""
        try:
            import fsspec

            return fsspec.core.url_to_fs(self.text)
        except (ImportError, ValueError) as problem:
            # fsspec itself, the package that it needs for this protocol, or an unknown protocol
            if "fsspec" in str(problem):
                problem = ImportError("install collops[remote]")
            raise InputError(f"{self} needs the package fsspec, and its file system for this URL: {problem}") from None


def located(path: str | Path | Url) -> Path | Url:
    """Return the location that a text or a path names; a text with ``://`` is a URL."""
    if isinstance(path, Path | Url):
        return path
    return Url(path) if "://" in path else Path(path)
