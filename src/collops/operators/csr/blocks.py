"""Local sparse blocks, chosen by engine: products into given memory, with the matrix and with its adjoint."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from collops.backend import Engine
from collops.errors import UnsupportedTypeError

__all__ = ["Block", "block_for"]


class Block(Protocol):
    """A local matrix, kept where the vectors of an engine are."""

    def multiply(self, x: Any, out: Any, add: bool) -> None:
        """Set `out` to the product with `x`, or add the product to it; both are 1-D, contiguous and of one dtype."""
        ...

    def multiply_adjoint(self, y: Any, out: Any, add: bool) -> None:
        """Set `out` to the product of the conjugate transpose with `y`, or add it."""
        ...


def block_for(engine: Engine, matrix: Any, dtype: np.dtype) -> Block:
    """Return the block of an engine.

    Parameters
    ----------
    engine : Engine
        Of the vectors.
    matrix : scipy.sparse.csr_array
        The values, on the host.
    dtype : dtype
        Of the vectors.

    Raises
    ------
    UnsupportedTypeError
        If there is none.
    """
    if engine.name == "numpy":
        return SciPyBlock(matrix)
    if engine.name == "cupy":
        from collops.operators.csr.device import DeviceBlock

        return DeviceBlock(matrix, dtype)
    if engine.name == "jax":
        from collops.operators.csr.traced import TracedBlock

        return TracedBlock(engine, matrix, dtype)
    raise UnsupportedTypeError(f"sparse matrices multiply arrays of numpy, cupy and jax, not of {engine.name}")


class SciPyBlock:
    """A matrix on the host, multiplied by SciPy.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array
    """

    __slots__ = ("_complex", "_matrix", "_transposed")

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self._transposed = matrix.T  # compressed columns of the same memory
        self._complex = matrix.dtype.kind == "c"

    def multiply(self, x: np.ndarray, out: np.ndarray, add: bool) -> None:
        """Set or add the product."""
        _store(self._matrix @ x, out, add)

    def multiply_adjoint(self, y: np.ndarray, out: np.ndarray, add: bool) -> None:
        """Set or add the product of the conjugate transpose."""
        product = (self._transposed @ y.conj()).conj() if self._complex else self._transposed @ y
        _store(product, out, add)


def _store(product: np.ndarray, out: np.ndarray, add: bool) -> None:
    if add:
        out += product
    else:
        out[...] = product
