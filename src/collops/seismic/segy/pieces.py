"""Read and write traces in runs of consecutive numbers, and many traces in pieces of limited memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_PIECE_BYTES = 16 << 20


def traces_at_once(trace_bytes: int) -> int:
    """Return the number of traces of this size that are read, written or sent at a time: 16 MiB, or one trace."""
    return max(1, _PIECE_BYTES // trace_bytes)


def runs(numbers: np.ndarray) -> Iterator[tuple[slice, int]]:
    """Yield runs of consecutive numbers in an array: a slice, and the first number in it.

    The traces of a run are read or written at once; the traces of a shot usually are one run.
    """
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for first, last in zip([0, *breaks], [*breaks, len(numbers)], strict=True):
        if last > first:
            yield slice(int(first), int(last)), int(numbers[first])
