"""Kernels whose slices are spread unevenly over the ranks, and the comparison with PyLops that they are for."""

from __future__ import annotations

import numpy as np

from collops.array import from_global, zeros
from tests.array.cases import values

from .problems import assert_close

SLICES = (3, 0, 4, 2, 1, 0, 2, 5)
FORMS = ("split", "replicated")


def kernel(comm, rows, columns, dtype, counts=SLICES):
    """Return all slices, and those of this rank; some ranks have none, as those beyond the counts."""
    counts = (*counts, *(0,) * comm.size)[: comm.size]
    whole = values((sum(counts), rows, columns), dtype, 7)
    begin = sum(counts[: comm.rank])
    return whole, whole[begin : begin + counts[comm.rank]]


def check(op, reference, comm, dtype) -> None:
    """Compare with PyLops both ways, with and without out, and run the dot test."""
    for apply, theirs, domain, range_ in (
        (op.forward, reference, op.domain, op.range),
        (op.adjoint, reference.H, op.range, op.domain),
    ):
        x = values(domain.shape, dtype, 1)
        given = from_global(x, domain, comm=comm)
        expected = (theirs @ x.ravel()).reshape(range_.shape)
        for out in (None, zeros(range_, comm=comm, dtype=dtype)):
            result = apply(given, out)
            assert out is None or result is out
            assert result.layout is range_ and result.dtype == np.dtype(dtype)
            assert_close(result.gather(), expected, dtype)
            result.check_replicated()
        assert_close(given.gather(), x)
    assert op.dottest()
