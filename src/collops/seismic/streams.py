"""Files for reading: at a path, at a URL of the package fsspec, or open binary file objects."""

from __future__ import annotations

import io
import os
from contextlib import nullcontext
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeAlias

from collops.errors import InputError
from collops.extend.applications import Url
from collops.extend.applications import located as located_at

__all__ = ["Location", "Source", "Stream", "located", "opened", "read_exactly", "size_of", "text_of"]


class Stream:
    """An open binary file object, which is read from any position and not closed.

    Its name, for messages and for the suffix, is the attribute ``name`` of the object, if that is a text.
    """

    def __init__(self, file: Any) -> None:
        name = getattr(file, "name", None)
        self.file, self._name = file, name if isinstance(name, str) else None
        try:
            usable = not isinstance(file, io.TextIOBase) and file.read(0) == b"" and file.seek(0) in (0, None)
        except (AttributeError, TypeError, ValueError, OSError):  # another object, a closed file, or a pipe
            usable = False
        if not usable:
            raise InputError(
                f"{file!r} cannot be read: pass a path, a URL, or a binary file object that is open, with the methods "
                "read and seek"
            )

    def __str__(self) -> str:
        return self._name or f"<{type(self.file).__name__}>"

    @property
    def suffix(self) -> str:
        """The suffix of its name; without a name ``".npy"``, ``".sgy"`` or ``".txt"``, by the content."""
        if self._name is not None:
            return PurePath(self._name).suffix
        self.file.seek(0)
        begin = self.file.read(3600)
        return ".npy" if begin[:6] == b"\x93NUMPY" else ".sgy" if b"\0" in begin else ".txt"


Source: TypeAlias = str | Path | Url | Stream | BinaryIO
"""What names a file that is to be read."""

Location: TypeAlias = Path | Url | Stream
"""A file that is to be read, from `located`."""


def located(source: Source) -> Location:
    """Return the location of a file: a path, a URL such as ``s3://bucket/line.sgy``, or an open file object."""
    if isinstance(source, Stream):
        return source
    if isinstance(source, str | os.PathLike):
        return located_at(source if isinstance(source, str | Url) else Path(source))
    return Stream(source)


def opened(location: Location) -> Any:
    """Return a context manager with an open binary file at its start."""
    if isinstance(location, Stream):
        location.file.seek(0)
        return nullcontext(location.file)
    return location.open() if isinstance(location, Url) else open(location, "rb", buffering=0)


def size_of(location: Location) -> int:
    """Return the size of a file in bytes."""
    if isinstance(location, Stream):
        location.file.seek(0, os.SEEK_END)
        return int(location.file.tell())
    return location.size() if isinstance(location, Url) else os.stat(location).st_size


def read_exactly(file: Any, view: memoryview) -> bool:
    """Fill a view with the next bytes of an open file; return False if the file ends before."""
    if hasattr(file, "readinto"):
        while view and (count := file.readinto(view)):
            view = view[count:]
    else:
        while view and (part := file.read(len(view))):
            view[: len(part)] = part
            view = view[len(part) :]
    return not view


def text_of(location: Location, encoding: str) -> str:
    """Return the text of a file; raise `OSError` or `UnicodeDecodeError` if it cannot be read."""
    with opened(location) as file:
        return b"".join(iter(lambda: file.read(1 << 20), b"")).decode(encoding)
