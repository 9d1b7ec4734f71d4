"""The rows of the files of predicted traces and of the residual, which are computed when they are written."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np


class Rows:
    """Traces of this rank for a file, which are computed when they are sliced.

    Parameters
    ----------
    samples : int
        Number of samples of each trace.
    counts : list of int
        Traces of each part.
    compared : callable
        Takes the number of a part; returns the recorded and the modelled traces of each of its shots.
    choose : callable
        Returns the rows of the file from recorded and modelled traces.
    """

    def __init__(
        self,
        samples: int,
        counts: list[int],
        compared: Callable[[int], list[tuple[np.ndarray, np.ndarray]]],
        choose: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        self._ends, self._compared, self._choose = np.cumsum([0, *counts]).tolist(), compared, choose
        self.shape = self._ends[-1], samples

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, last, _ = rows.indices(self.shape[0])
        pieces = [np.empty((0, self.shape[1]), np.float32)]
        for part, (begin, end) in enumerate(pairwise(self._ends)):
            if begin < last and end > first:
                for recorded, modelled in self._compared(part):
                    inside = slice(max(0, first - begin), max(0, last - begin))
                    pieces.append(self._choose(recorded[inside], modelled[inside]))
                    begin += len(recorded)
        return np.concatenate(pieces, dtype=np.float32)
