"""What ranks tell each other apart from data: small values, and that one of them has failed."""

from __future__ import annotations

import hashlib
from typing import Any, NoReturn

import numpy as np

from collops.comm.notes import table
from collops.comm.transport import Transport
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
from collops.profile import messages

__all__ = ["agree", "any_failed", "described", "gather_texts", "raise_together", "shared_error"]

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


def gather_texts(text: str, wire: Transport, size: int) -> list[str]:
    """Return every rank's `text`. Collective."""
    mine = np.frombuffer(text.encode(), np.uint8)
    if messages.active:
        messages.record("metadata", mine.size, mine.nbytes)
    lengths = np.empty(size, np.int64)
    wire.allgather(np.array([mine.size], np.int64), lengths)
    texts = np.empty(int(lengths.sum()), np.uint8)
    wire.allgatherv(mine, texts, lengths.tolist())
    ends = np.cumsum(lengths)
    return [texts[end - length : end].tobytes().decode() for end, length in zip(ends, lengths, strict=True)]


def agree(what: str, text: str, wire: Transport, size: int) -> None:
    """Raise on every rank unless all pass the same `text`. Collective."""
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    extremes = np.array([digest, -digest], np.int64)
    if messages.active:
        messages.record("agreement", extremes.size, extremes.nbytes)
    wire.allreduce(extremes, extremes, "max")
    if extremes[0] == -extremes[1]:
        return
    lines = dict(enumerate(gather_texts(text, wire, size)))
    error = InputError(f"{what} differs between ranks:\n{table(lines, size, '')}")
    error.on_all_ranks = True
    raise error


def any_failed(error: Exception | None, wire: Transport, size: int) -> bool:
    """Return whether any rank passes an error. Collective."""
    failed = np.array([error is not None], np.int8)
    if size > 1:
        if messages.active:
            messages.record("metadata", failed.size, failed.nbytes)
        wire.allreduce(failed, failed, "max")
    return bool(failed[0])


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
