"""Products with bands on the GPU: one launch of ``banded.cu``, or two with an exchange beside the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from collops.backend import Engine
from collops.operators.derivatives.kernels.array_kernels import ArrayKernel
from collops.operators.derivatives.kernels.launches import Launch, Launches, fits
from collops.operators.derivatives.stencil import Several, Term

__all__ = ["make_kernel"]

_LARGE = 16 << 20  # bytes of an array: from here on messages beside its interior are worth the host's time
_ALIGNMENT = 16


def make_kernel(
    shape: tuple[int, ...],
    terms: Sequence[Term],
    several: Several,
    dtype: np.dtype,
    engine: Engine,
    add: bool = False,
) -> Any:
    """Return the kernel; where ``banded.cu`` does not fit, one by CuPy's own ufuncs."""
    if math.prod(shape) and fits(shape, terms, dtype):
        return CudaKernel(shape, terms, several, dtype, add)
    return ArrayKernel(shape, terms, several, dtype, engine, add)


@cache
def _function(device: int, options: tuple[str, ...]) -> Any:
    source = Path(__file__).with_name("banded.cu").read_text(encoding="utf-8")
    with cupy.cuda.Device(device):
        return cupy.RawModule(code=source, options=options).get_function("banded")


class CudaKernel:
    """Bands on arrays of one shape and type; parameters as for :func:`make_kernel`.

    Attributes
    ----------
    splits : bool
        Whether the exchange goes beside the rows that need no face: for large arrays, split along the marched axis
        only.
    """

    def __init__(
        self, shape: tuple[int, ...], terms: Sequence[Term], several: Several, dtype: np.dtype, add: bool = False
    ) -> None:
        self._itemsize = dtype.itemsize
        self._device = cupy.cuda.Device().id
        self._wide = Launches(shape, terms, several, dtype, wide=True, add=add)
        self._narrow = Launches(shape, terms, several, dtype, wide=False, add=add)
        others = [term for number, term in enumerate(terms) if number != self._wide.march]
        self.splits = (
            math.prod(shape) * dtype.itemsize >= _LARGE
            and self._wide.inner is not None
            and all(term.before is None and term.after is None for term in others)
        )

    def inner(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> None:
        """Compute the rows that need no face."""
        launches = self._pointed(sources, targets, landing)
        self._run(launches, launches.inner)

    def rest(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> Sequence[Any]:
        """Compute the rows that :meth:`inner` left out."""
        launches = self._pointed(sources, targets, landing)
        self._run(launches, launches.rest)
        return targets

    def whole(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> Sequence[Any]:
        """Compute everything."""
        launches = self._pointed(sources, targets, landing)
        self._run(launches, launches.whole)
        return targets

    def _pointed(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> Launches:
        """Return the launches with the addresses of the arrays, reading 16 bytes at once if they allow it."""
        given = [array.data.ptr for array in sources]
        wanted = [array.data.ptr for array in targets]
        wide = all(address % _ALIGNMENT == 0 for address in (*given, *wanted))
        launches = self._wide if wide else self._narrow
        launches.point_at(given, wanted, landing.data.ptr, self._itemsize)
        return launches

    def _run(self, launches: Launches, launch: Launch | None) -> None:
        if launch is not None:
            _function(self._device, launches.options)(launch.grid, launch.block, (launch.by_value,))
