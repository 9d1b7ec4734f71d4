"""The calls of the public API, which ``calls.txt`` lists, and what some of them may raise besides."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.cases import Call, parsed

__all__ = ["COMPAT", "NATIVE"]


def _calls() -> dict[str, list[Call]]:
    """Return the calls by section."""
    found: dict[str, list[Call]] = {}
    section = ""
    for line in Path(__file__).with_name("calls.txt").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = []
        elif line and not line.startswith("#"):
            found[section].append(parsed(line, _ALSO.get(section, ())))
    return found


_ALSO: dict[str, tuple[type[Exception], ...]] = {
    "methods": (OverflowError,),  # NumPy's own answer to integers that a dtype cannot hold
    "compat": (IndexError, NotImplementedError),  # PyLops-MPI's
}
_SECTIONS = _calls()
COMPAT = _SECTIONS.pop("compat")
NATIVE = [call for calls in _SECTIONS.values() for call in calls]
