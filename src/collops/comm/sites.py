"""Where the user's program called this library: looked up when an error or a check has to name it, never before."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["Site", "call_site"]

_PACKAGE = Path(__file__).parents[1]
# Programs that come with the library are users of it, too.
_PROGRAMS = tuple(f"{_PACKAGE / name}/" for name in ("apps", "bench", "cli", "soak"))
_NAMED_PARTS = 2  # of a path: folders above may differ from node to node


class Site(NamedTuple):
    """A line of the user's program, and the function of this library that it calls; empty when the program ends."""

    place: str
    function: str

    def __str__(self) -> str:
        return f"{self.place} ({self.function})" if self.place else ""


def call_site() -> Site:
    """Return the innermost line outside this library, as ``FILE:LINE``, and what it called. Not collective."""
    frame = sys._getframe(1)
    function = ""
    while _is_ours(frame.f_code.co_filename):
        function = frame.f_code.co_qualname
        if frame.f_back is None:
            return Site("", "")
        frame = frame.f_back
    return Site(f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}", function)


def _is_ours(filename: str) -> bool:
    if filename == contextlib.__file__:  # between a with statement and what it enters and leaves
        return True
    return filename.startswith(f"{_PACKAGE}/") and not filename.startswith(_PROGRAMS)


def _short(filename: str) -> str:
    return filename if filename.startswith("<") else "/".join(Path(filename).parts[-_NAMED_PARTS:])
