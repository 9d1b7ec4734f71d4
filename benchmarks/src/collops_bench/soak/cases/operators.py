"""Cases of operators, forward and adjoint, against PyLops and NumPy on whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import collops
from collops.array import Layout
from collops_bench.soak.draw import Draw

__all__ = ["derivative", "fft", "fredholm", "product", "restriction", "stack"]

_Map = Callable[[np.ndarray], np.ndarray]


def _compare(draw: Draw, op: Any, dtype: Any, forward: _Map, adjoint: _Map, factor: float = 1.0) -> None:
    """Compare an operator and its adjoint on random arrays."""
    x, y = draw.values(op.domain.shape, dtype), draw.values(op.range.shape, dtype)
    draw.close("forward", draw.whole(op.forward(draw.array(x, op.domain))), forward(x), factor)
    draw.close("adjoint", draw.whole(op.adjoint(draw.array(y, op.range))), adjoint(y), factor)


def derivative(draw: Draw) -> None:
    """Compare a first or second derivative with PyLops."""
    import pylops

    shape = tuple(extent + 6 for extent in draw.shape(2))  # as many points as the stencils need
    axis, sampling = draw.integer(0, 1), draw.choice(1.0, 0.5)
    kind, edge = draw.choice("centered", "forward", "backward"), draw.choice(True, False)
    layout, dtype = draw.layout(shape), draw.dtype("f")
    if draw.choice(True, False):
        order = draw.choice(3, 5)
        op: Any = collops.FirstDerivative(layout, axis, sampling, kind, edge, order, comm=draw.comm, dtype=dtype)
        peer: Any = pylops.FirstDerivative(shape, axis, sampling, kind, edge, order, dtype=dtype)
    else:
        op = collops.SecondDerivative(layout, axis, sampling, kind, edge, comm=draw.comm, dtype=dtype)
        peer = pylops.SecondDerivative(shape, axis, sampling, kind, edge, dtype=dtype)
    _compare(
        draw,
        op,
        dtype,
        lambda x: (peer @ x.ravel()).reshape(shape),
        lambda y: (peer.H @ y.ravel()).reshape(shape),
    )


def fft(draw: Draw) -> None:
    """Compare a Fourier transform with NumPy's."""
    shape = draw.shape(2)
    axis, dtype = draw.integer(0, 1), draw.dtype("c")
    op = collops.FFT(draw.layout(shape), axis, dtype=dtype, comm=draw.comm)
    _compare(
        draw,
        op,
        dtype,
        lambda x: np.fft.fft(x, axis=axis, norm="ortho").astype(dtype),
        lambda y: np.fft.ifft(y, axis=axis, norm="ortho").astype(dtype),
    )


def fredholm(draw: Draw) -> None:
    """Compare a Fredholm integral with products of all slices."""
    counts = draw.random.integers(0, 5, draw.comm.size)
    counts[draw.integer(0, draw.comm.size - 1)] += 1
    rows, columns, width = (draw.integer(1, 12) for _ in range(3))
    dtype = draw.dtype("fc")
    slices = draw.values((int(counts.sum()), rows, columns), dtype)
    first = int(counts[: draw.comm.rank].sum())
    local = draw.local(slices[first : first + int(counts[draw.comm.rank])])
    forms = {"model": draw.choice("split", "replicated"), "data": draw.choice("split", "replicated")}
    op = collops.Fredholm1(local, width, comm=draw.comm, **forms)
    _compare(draw, op, dtype, lambda x: slices @ x, lambda y: slices.conj().transpose(0, 2, 1) @ y)


def stack(draw: Draw) -> None:
    """Compare stacks of matrices, some ranks without any, with the whole matrix."""
    heights = draw.random.integers(0, 30, draw.comm.size)
    heights[draw.integer(0, draw.comm.size - 1)] += 1
    columns, dtype = draw.integer(1, 40), draw.dtype("fc")
    all_values = [draw.values((int(rows), columns), dtype) for rows in heights]
    local = [draw.local(all_values[draw.comm.rank])] if heights[draw.comm.rank] else []
    full = np.concatenate(all_values)
    if draw.choice(True, False):
        op: Any = collops.VStack(local, draw.comm)
    else:
        op = collops.HStack([item.conj().T.copy() for item in local], draw.comm)
        full = full.conj().T
    _compare(draw, op, dtype, lambda x: full @ x, lambda y: full.conj().T @ y)


def product(draw: Draw) -> None:
    """Compare a distributed matrix product with NumPy's."""
    rows, inner, columns = (draw.integer(1, 40) for _ in range(3))
    dtype, kind = draw.dtype("fc"), draw.choice("summa", "block")
    matrix = draw.values((rows, inner), dtype)
    op = collops.MatrixMult(draw.array(matrix, Layout.split((rows, inner), draw.comm.size)), columns, kind)
    _compare(draw, op, dtype, lambda x: matrix @ x, lambda y: matrix.conj().T @ y)


def restriction(draw: Draw) -> None:
    """Compare a restriction, followed by nothing or by a sum, with indexing."""
    shape = draw.shape(2)
    axis = draw.integer(0, 1)
    chosen = draw.random.integers(0, shape[axis], draw.integer(1, 2 * shape[axis]))
    if draw.choice(True, False):
        chosen = np.sort(chosen)
    op = collops.Restriction(draw.layout(shape), chosen, axis, rebalance=draw.choice(True, False), comm=draw.comm)

    def adjoint(y: np.ndarray) -> np.ndarray:
        x = np.zeros(shape)
        np.add.at(np.moveaxis(x, axis, 0), chosen, np.moveaxis(y, axis, 0))
        return x

    _compare(draw, op, "float64", lambda x: np.take(x, chosen, axis), adjoint)
