"""Two lanes of work that overlap where an engine has streams; on hosts they are one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["Lanes"]


class Lanes:
    """The caller's lane, and one beside it for what others wait for."""

    def aside(self) -> AbstractContextManager[Any]:
        """Return a context whose work goes on the other lane, after what the caller's lane has so far."""
        return nullcontext()

    def join(self) -> None:
        """Order the caller's lane after the other one."""
