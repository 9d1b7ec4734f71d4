"""Wavefields for the adjoint, in reverse order: stored, compressed if permitted, or recomputed, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.seismic.waves.compression import BLOCK, CompressedFields, error_bound


@dataclass(frozen=True)
class Storage:
    r"""What is stored to visit the steps of a simulation in reverse order.

    Attributes
    ----------
    steps : int
        Number of steps.
    checkpoints : int
        Number of states stored at a time; 0 if all wavefields are stored.
    wavefields : int
        Number of consecutive wavefields stored at a time.
    bytes : int
        Memory of both.
    computed : int
        Number of steps that are computed, `steps` if all wavefields are stored.
    bits : int or None
        Bits of a number of a compressed wavefield; ``None`` if wavefields are exact. Checkpoints are always exact.

    Notes
    -----
    Steps are divided into segments of `wavefields` steps. The last segment is computed from the nearest checkpoint, and
    checkpoints are placed such that as few segments as possible are computed repeatedly: m segments and s checkpoints
    take at most r computations of a segment, the smallest number with :math:`\binom{s + r}{s} \ge m` [1]_.

    References
    ----------
    .. [1] Griewank, A., and Walther, A., "Algorithm 799: revolve", ACM Transactions on Mathematical Software 26(1),
       19-45, 2000.

    Examples
    --------
    >>> from collops.seismic.waves import Storage
    >>> print(Storage.within(20_000_000, steps=1000, wavefield=400_000, state=900_000))
    11 checkpoints and 25 wavefields, 19.9 MB: each step is computed 2.67 times on average
    """

    steps: int
    checkpoints: int
    wavefields: int
    bytes: int
    computed: int
    bits: int | None = None

    def __str__(self) -> str:
        lossy = f" of {self.bits} bits" if self.bits else ""
        size = f"{self.bytes / 1e6:.3g} MB"
        if self.bits:
            size += f", values to {error_bound(self.bits):.2g} of the largest of {BLOCK}"
        if not self.checkpoints:
            return f"all {self.steps} wavefields{lossy}, {size}"
        again = self.computed / self.steps
        return (
            f"{self.checkpoints} checkpoints and {self.wavefields} wavefields{lossy}, {size}: "
            f"each step is computed {again:.2f} times on average"
        )

    @classmethod
    def within(
        cls,
        budget: int | None,
        steps: int,
        wavefield: int,
        state: int,
        bits: int | None = None,
        compressed: int = 0,
    ) -> Storage:
        """Return the storage of at most `budget` bytes with the fewest computed steps.

        `wavefield` and `state` are bytes of one of each. With `bits`, wavefields may also take `compressed` bytes, and
        one that is not compressed is then in memory as well; of equally fast storages the exact one is returned.

        Raises InputError if the budget is too small for one of each.
        """
        if budget is None or steps * wavefield <= budget:
            return cls(steps, 0, steps, steps * wavefield, steps)
        exact = cls._divided(budget, 0, steps, wavefield, state)
        lossy = cls._divided(budget, wavefield, steps, compressed, state, bits) if bits else None
        possible = [storage for storage in (exact, lossy) if storage is not None]
        if not possible:
            raise InputError(
                f"memory of {budget} bytes is too small for wavefields of {wavefield} bytes: a checkpoint and a "
                f"wavefield take {wavefield + state} bytes"
            )
        return min(possible, key=lambda storage: storage.computed)

    @classmethod
    def _divided(
        cls, budget: int, apart: int, steps: int, wavefield: int, state: int, bits: int | None = None
    ) -> Storage | None:
        """Return the best division of a budget less `apart` bytes, or ``None`` if it is too small."""
        rest = budget - apart
        if steps * wavefield <= rest:
            return cls(steps, 0, steps, apart + steps * wavefield, steps, bits)
        candidates = []
        for checkpoints in range(1, min(steps, (rest - wavefield) // state) + 1):
            length = min(steps, (rest - checkpoints * state) // wavefield)
            computed = steps + length * _advances(-(-steps // length), checkpoints)
            candidates.append((computed, checkpoints, length))
        if not candidates:
            return None
        computed, checkpoints, length = min(candidates)
        return cls(steps, checkpoints, length, apart + checkpoints * state + length * wavefield, computed, bits)


def _repetitions(segments: int, checkpoints: int) -> int:
    """Return how often a segment is computed at most."""
    repetitions = 1
    while comb(checkpoints + repetitions, checkpoints) < segments:
        repetitions += 1
    return repetitions


def _advances(segments: int, checkpoints: int) -> int:
    """Return how many segments are computed to reach a checkpoint, besides the computation of each one's wavefields."""
    if segments == 1:
        return 0
    r = _repetitions(segments, checkpoints)
    return r * segments - comb(checkpoints + r, r - 1)


class Segments:
    """The segments of the steps of a simulation in reverse order, each computed from the nearest checkpoint.

    Parameters
    ----------
    storage : Storage
        What is stored.

    Attributes
    ----------
    computed : int
        Number of steps computed in the last visit.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._saved: list[Any] = []  # kept from visit to visit
        self.computed = 0

    def visit(self, state: Any, move: Callable[[Any, int, int, bool], None]) -> Iterator[tuple[int, int]]:
        """Yield the first step of each segment and the step after its last, when its wavefields are stored.

        `state` is the state before the first step, and is overwritten; it has methods ``copy()`` and
        ``restore(copy)``. ``move(state, first, last, stored)`` computes steps, and stores their wavefields if `stored`.
        """
        self.computed = 0
        yield from self._reverse(state, move, self._saved[:], 0, self._storage.steps, self._storage.checkpoints)

    def _reverse(
        self,
        state: Any,
        move: Callable[[Any, int, int, bool], None],
        spare: list[Any],
        first: int,
        last: int,
        free: int,
    ) -> Iterator[tuple[int, int]]:
        """Yield the segments of some steps; `free` checkpoints may be stored, in the states `spare` or in new ones."""
        length = self._storage.wavefields
        if last - first <= length:
            move(state, first, last, True)
            self.computed += last - first
            yield first, last
            return
        if not spare:
            self._saved.append(state.copy())
            saved = self._saved[-1]
        else:
            saved = spare.pop()
            saved.restore(state)
        middle = first + length * _left(-(-(last - first) // length), free)
        move(state, first, middle, False)
        self.computed += middle - first
        yield from self._reverse(state, move, spare, middle, last, free - 1)
        state.restore(saved)
        spare.append(saved)
        yield from self._reverse(state, move, spare, first, middle, free)


class ExactFields:
    """Wavefields in memory of the host, with the methods of `CompressedFields`."""

    def __init__(self, count: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._fields = np.empty((count, *shape), dtype)

    def space(self, number: int) -> np.ndarray:
        """Return the array to compute a wavefield in."""
        return self._fields[number]

    def store(self, number: int) -> None:
        """Store the wavefield that was computed there: it is."""

    def load(self, number: int) -> np.ndarray:
        """Return a wavefield."""
        return self._fields[number]


class Reversal(Segments):
    """A walk through the steps of a simulation in reverse order, with their wavefields in memory of the host.

    Parameters
    ----------
    storage : Storage
        What is stored.
    shape, dtype
        Of a wavefield.
    """

    def __init__(self, storage: Storage, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(storage)
        kind = ExactFields if storage.bits is None else partial(CompressedFields, bits=storage.bits)
        self._fields = kind(storage.wavefields, shape, dtype)

    def walk(self, state: Any, advance: Callable[[Any, int, Any], None]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each step and its wavefield, the last step first.

        `state` is as for :meth:`visit`. ``advance(state, n, field)`` computes step n, and its wavefield in `field`
        unless that is ``None``. A wavefield is valid until the next one.
        """

        def move(state: Any, first: int, last: int, stored: bool) -> None:
            for n in range(first, last):
                advance(state, n, self._fields.space(n - first) if stored else None)
                if stored:
                    self._fields.store(n - first)

        for first, last in self.visit(state, move):
            for n in range(last - 1, first - 1, -1):
                yield n, self._fields.load(n - first)


def _left(segments: int, checkpoints: int) -> int:
    """Return how many of the segments to pass before the next checkpoint."""
    r = _repetitions(segments, checkpoints)
    return max(1, segments - comb(checkpoints - 1 + r, checkpoints - 1), comb(checkpoints + r - 2, checkpoints))
