"""Errors that all ranks raise because some of them have failed."""

from __future__ import annotations

from typing import Any, NoReturn

from collops.errors import (
    CallMismatch,
    CheckpointError,
    CollopsError,
    CommunicationError,
    CommunicationTimeout,
    InputError,
    LayoutError,
    TransportError,
    UnsupportedTypeError,
)

__all__ = ["described", "raise_together", "shared_error"]

_RAISED_BY_NAME: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        CallMismatch,
        CheckpointError,
        CollopsError,
        CommunicationError,
        CommunicationTimeout,
        InputError,
        LayoutError,
        TransportError,
        UnsupportedTypeError,
        AttributeError,
        IndexError,
        KeyError,
        MemoryError,
        OSError,
        OverflowError,
        TypeError,
        ValueError,
    )
}


def described(error: Exception | None) -> list[str] | None:
    """Return an error as what other ranks can raise."""
    return None if error is None else [type(error).__name__, str(error)]


def raise_together(error: Exception | None, reports: list[Any]) -> NoReturn:
    """Raise the first of the errors that ranks have described, naming the ranks unless all of them failed."""
    ranks = [rank for rank, report in enumerate(reports) if report is not None]
    kind, text = reports[ranks[0]]
    if len(ranks) < len(reports):
        text = f"rank {', '.join(map(str, ranks))}: {text}"
    raise shared_error(kind, text) from error


def shared_error(kind: str, text: str) -> Exception:
    """Return the error that all ranks raise where some have one of the class called `kind`."""
    shared: Any = _RAISED_BY_NAME.get(kind, CollopsError)(text)
    shared.on_all_ranks = True  # no rank waits for another that is ending
    return shared
