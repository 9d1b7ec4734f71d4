"""Cases of sparse exchange: matrices, star forests and scatters, against SciPy and plain indexing."""

from __future__ import annotations

import numpy as np

import collops
from collops.array import Layout
from collops_bench.soak.draw import Draw

__all__ = ["matrix", "scatter", "star_forest"]


def _transport(draw: Draw) -> str:
    """Return the name of a transport that these ranks have."""
    from collops.exchange import possible_transports

    return draw.choice("auto", *possible_transports(draw.comm, draw.engine))


def matrix(draw: Draw) -> None:
    """Compare a sparse matrix from distributed triples with SciPy."""
    from scipy import sparse

    comm = draw.comm
    rows, columns = draw.integer(1, 200), draw.integer(1, 200)
    count, dtype = draw.integer(0, 800), draw.dtype("fc")
    i, j = draw.random.integers(0, rows, count), draw.random.integers(0, columns, count)
    values = draw.values(count, dtype)
    owner = draw.random.integers(0, comm.size, count)
    local = owner == comm.rank
    full = sparse.coo_array((values, (i, j)), shape=(rows, columns)).tocsr()
    op = collops.CSRMatrix.from_coo(
        i[local], j[local], values[local], (rows, columns), comm=comm, transport=_transport(draw)
    )
    x, y = draw.values(columns, dtype), draw.values(rows, dtype)
    draw.close("forward", draw.whole(op.forward(draw.array(x, op.domain))), full @ x)
    draw.close("adjoint", draw.whole(op.adjoint(draw.array(y, op.range))), full.conj().T @ y)
    op.free()


def star_forest(draw: Draw) -> None:
    """Compare the operations of a random forest with indexing."""
    comm = draw.comm
    size, rank = comm.size, comm.rank
    nroots = draw.random.integers(0, 40, size)
    nroots[draw.integer(0, size - 1)] += 1
    begin = np.cumsum(nroots) - nroots
    total = int(nroots.sum())
    named = [draw.random.integers(0, total, draw.integer(0, 60)) for _ in range(size)]  # the root of each leaf
    ranks = [np.searchsorted(begin, leaves, side="right") - 1 for leaves in named]
    for number in range(size):  # of ranks without roots the last is found, which owns none
        while (wrong := nroots[ranks[number]] == 0).any():
            ranks[number] = ranks[number] - wrong
    indices = named[rank] - begin[ranks[rank]]
    block, dtype = draw.choice((), (3,)), draw.choice("int64", "int32", "float64")
    roots = draw.random.integers(-9, 10, (total, *block)).astype(dtype)
    leaves = [draw.random.integers(-9, 10, (len(item), *block)).astype(dtype) for item in named]
    local = slice(int(begin[rank]), int(begin[rank] + nroots[rank]))
    with collops.StarForest(comm, int(nroots[rank]), None, ranks[rank], indices, transport=_transport(draw)) as forest:
        result = forest.bcast(draw.local(roots[local]))
        draw.same("bcast", draw.engine.to_host(result), roots[named[rank]])
        expected = roots.copy()
        for where, values in zip(named, leaves, strict=True):
            np.add.at(expected, where, values)
        result = forest.reduce(draw.local(leaves[rank]), draw.local(roots[local]))
        draw.same("reduce", draw.engine.to_host(result), expected[local])


def scatter(draw: Draw) -> None:
    """Compare a scatter between layouts with indexing."""
    comm = draw.comm
    size = draw.integer(1, 400)
    source, target = Layout.split(size, comm.size, sizes=draw.sizes(size)), Layout.split(size, comm.size)
    order = draw.random.permutation(size)
    (local,) = source.slices(comm.rank)
    values = draw.values(size, "float64")
    move = collops.IndexScatter(
        source, np.arange(size)[local], target, order[local], comm=comm, transport=_transport(draw)
    )
    expected = np.empty_like(values)
    expected[order] = values
    out = draw.array(np.zeros(size), target)
    draw.same("scatter", draw.whole(move.forward(draw.array(values, source), out)), expected)
    back = draw.array(np.zeros(size), source)
    draw.same("reverse", draw.whole(move.reverse(out, back)), values)
    move.free()
