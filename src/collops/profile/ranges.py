"""Show marks as NVTX ranges in NVIDIA's profilers."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from collops.errors import InputError

__all__ = ["Ranges"]


class Ranges:
    """The NVTX domain "collops", in which every mark is a range.

    Raises
    ------
    InputError
        If the package ``nvtx`` is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("nvtx") is None:
            raise InputError("NVTX ranges need the package nvtx: pip install nvtx")
        domain: Any = importlib.import_module("nvtx").get_domain("collops")
        self.attributes = functools.lru_cache(maxsize=1024)(domain.get_event_attributes)
        self.domain = domain

    def push(self, label: str) -> None:
        """Open a range in this thread."""
        self.domain.push_range(self.attributes(label))

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        self.domain.pop_range()
