"""Cases of arrays: arithmetic, reductions, moves between layouts, halos and files, against NumPy."""

from __future__ import annotations

import operator
from pathlib import Path

import numpy as np

import collops
from collops_bench.soak.draw import Draw, WrongAnswer, shared_folder

__all__ = ["arithmetic", "files", "halo", "redistribute", "reductions"]


def arithmetic(draw: Draw) -> None:
    """Compare elementwise operations, in place and not."""
    shape, dtype = draw.shape(draw.integer(1, 3)), draw.dtype("fci")
    layout = draw.layout(shape)
    a, b = draw.values(shape, dtype), draw.values(shape, draw.dtype("fc"))
    x, y = draw.array(a, layout), draw.array(b, layout)
    name = draw.choice("add", "sub", "mul")
    function = getattr(operator, name)
    draw.close(name, draw.whole(function(x, y)), function(a, b))
    draw.close("axpby", draw.whole(collops.axpby(0.5, y, -2.0, y)), 0.5 * b - 2.0 * b)
    y *= 3
    draw.close("in place", draw.whole(y), b * 3)
    draw.close("conj", draw.whole(y.conj()), (b * 3).conj())


def reductions(draw: Draw) -> None:
    """Compare sums, extremes, inner products and norms."""
    shape, dtype = draw.shape(draw.integer(1, 3)), draw.dtype("fc")
    layout = draw.layout(shape)
    a, b = draw.values(shape, dtype), draw.values(shape, dtype)
    x, y = draw.array(a, layout), draw.array(b, layout)
    axis = draw.integer(0, len(shape) - 1)
    size = float(np.sqrt(a.size))  # no NumPy type, which would make the numbers below look more precise
    draw.close("vdot", draw.engine.to_host(x.vdot(y)) / size, np.vdot(a, b) / size)
    draw.close("norm", draw.engine.to_host(x.norm()), np.linalg.norm(a.ravel()))
    draw.close("sum", draw.engine.to_host(x.sum()) / size, a.sum() / size)
    draw.close("max", draw.engine.to_host(x.real.max()), np.real(a).max())
    if len(shape) > 1:
        draw.close("sum along an axis", draw.whole(x.sum(axis)), a.sum(axis))


def redistribute(draw: Draw) -> None:
    """Move an array through several layouts."""
    shape = draw.shape(draw.integer(1, 3), 20000)
    values = draw.values(shape, draw.choice("float32", "float64", "complex128", "int32"))
    x = draw.array(values, draw.layout(shape))
    for _ in range(3):
        x = x.redistribute(draw.layout(shape))
        draw.same("this rank's part", draw.engine.to_host(x.local_array), values[x.layout.slices(draw.comm.rank)])
    draw.same("the whole", draw.whole(x), values)


def halo(draw: Draw) -> None:
    """Compare blocks and their halos with the global array."""
    shape, width = draw.shape(2), draw.integer(1, 3)
    values = draw.values(shape, "float64")
    boundary = draw.choice("zero", "periodic")
    x = draw.array(values, draw.layout(shape))
    around = np.pad(values, width, mode="wrap" if boundary == "periodic" else "constant")
    block = x.layout.block(draw.comm.rank)
    expected = around[tuple(slice(o, o + n + 2 * width) for o, n in zip(block.offset, block.shape, strict=True))]
    result = draw.engine.to_host(x.halo(width, boundary).local_array)
    if 0 not in block.shape:  # an empty block has no halo
        draw.same("halo", result, expected)


def files(draw: Draw) -> None:
    """Save an array, and load it in another layout."""
    shape = draw.shape(draw.integer(1, 3))
    values = draw.values(shape, draw.dtype("fci"))
    layout = draw.layout(shape)
    with shared_folder(draw.comm) as folder:
        store = Path(folder, "array")
        collops.save(store, draw.array(values, draw.layout(shape)))
        result = collops.load(store, layout, comm=draw.comm, engine=draw.engine)
        if result.layout is not layout:
            raise WrongAnswer("the array was loaded in another layout than the one that was asked for")
        draw.same("file", draw.whole(result), values)
