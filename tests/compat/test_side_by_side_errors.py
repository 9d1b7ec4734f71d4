"""Errors of PyLops-MPI and of this package: the type, and the words by which programs recognise them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compat.array_cases import stack
from tests.compat.operator_cases import (
    block_diag,
    columns,
    derivative,
    fredholm,
    halo,
    rows,
    stacked_block_diag,
    vertical,
)
from tests.compat.proximal_cases import prox, proximal_gradient
from tests.compat.sides import DIMS, QUIET, Side, both, compare, pyproximal

pytestmark = QUIET


def of(s: Side, name: str) -> Any:
    return s.pkg.Partition[name]


def mixed_engines(s: Side) -> Any:
    other = s.vector(5)
    other._engine = "another"  # as PyLops-MPI's own test does on machines without GPUs
    return s.stacked(s.vector(5), other)


def own(s: Side, shape: Any = None, dims: Any = None, dimsd: Any = None, **methods: Any) -> Any:
    """Return an operator of a user's class."""
    return type("Own", (s.pkg.MPILinearOperator,), methods)(shape=shape, dims=dims, dimsd=dimsd, dtype=np.float64)


def changed(s: Side, name: str, value: Any) -> None:
    setattr(own(s, (4, 6), (2, 3), (4,)), name, value)


def first(s: Side, **options: Any) -> Any:
    return derivative("MPIFirstDerivative", **options)(s)[0]


def nonstationary(s: Side, taps: int = 5, ih: Any = (1, 4)) -> Any:
    return s.get("signalprocessing.MPINonStationaryConvolve1D")((6 * s.size,), np.ones((len(ih), taps)), np.array(ih))


def monitored(s: Side, name: str) -> Any:
    op, x = block_diag(s)
    return getattr(s.pkg, name)(op, op @ x, x.zeros_like(), niter=9, alpha=1e5, monitorres=True, tol=0.0)


def unstarted(s: Side, name: str) -> Any:
    op, x = block_diag(s)
    solver = getattr(s.pkg, name)(op)
    options = {"alpha": 1e-2, "decay": np.ones(3)} if "ISTA" in name else {}
    return solver.run(solver.setup(op @ x, x.zeros_like(), **options))


def not_square(s: Side) -> Any:
    return block_diag(s)[0] ** 2


Failing = tuple[type[Exception], str, Callable[[Side], Any]]
ERRORS: dict[str, Failing] = {
    "mark": (
        RuntimeError,
        "mark() called outside of a benchmarked region",
        lambda s: s.get("utils.benchmark.mark")("A"),
    ),
    "axis": (IndexError, "Axis 2 out of range", lambda s: s.pkg.DistributedArray((5, 5), axis=2)),
    "NCCL": (ValueError, "NCCL Communicator only works", lambda s: s.pkg.DistributedArray(5, base_comm_nccl=object())),
    "local array": (
        ValueError,
        "local_array has shape",
        lambda s: s.pkg.DistributedArray(5 * s.size, local_array=np.ones(4)),
    ),
    "number of shapes": (
        ValueError,
        "Length of local shapes is not equal to number of processes",
        lambda s: s.pkg.DistributedArray(5, local_shapes=[(5,)] * (s.size + 1)),
    ),
    "shapes of copies": (
        ValueError,
        "Local shape is not equal to global shape",
        lambda s: s.pkg.DistributedArray(5, partition=of(s, "BROADCAST"), local_shapes=[(4,)] * s.size),
    ),
    "shapes of parts": (
        ValueError,
        "Local shapes don't align with the global shape",
        lambda s: s.pkg.DistributedArray((5 * s.size, 3), local_shapes=[(5, 4)] * s.size),
    ),
    "sum of partitions": (
        ValueError,
        "Partition of both the arrays must be same",
        lambda s: s.vector(5) + s.array(np.ones(5), partition="BROADCAST"),
    ),
    "product of partitions": (
        ValueError,
        "Partition of both the arrays must be same",
        lambda s: s.vector(5).dot(s.array(np.ones(5), partition="BROADCAST")),
    ),
    "sum of shapes": (ValueError, "Local Array Shape Mismatch", lambda s: s.vector(5 * s.size) + s.vector(6 * s.size)),
    "sum in place": (ValueError, "Local Array Shape Mismatch", lambda s: s.vector(5).iadd(s.vector(5 + s.size))),
    "order of a norm": (ValueError, "norm-fro not possible for vectors", lambda s: s.vector(5).norm("fro")),
    "axis of a norm": (ValueError, "axis=1 is out of range", lambda s: s.vector(5).norm(axis=1)),
    "another size": (ValueError, "cannot reshape", lambda s: s.vector(6 * s.size).reshape((4, 2))),
    "engines": (ValueError, "Stacked arrays have mismatching engines", mixed_engines),
    "numbers of parts": (
        ValueError,
        "Stacked arrays must be composed",
        lambda s: stack(s) + s.stacked(s.vector(7)),
    ),
    "shapes in stacks": (
        ValueError,
        "Stacked arrays 0 have different global shape",
        lambda s: s.stacked(s.vector(7)).dot(s.stacked(s.vector(8))),
    ),
    "model": (ValueError, "dimension mismatch", lambda s: first(s).matvec(s.vector(5))),
    "data": (ValueError, "dimension mismatch", lambda s: first(s).rmatvec(s.vector(5))),
    "stacked model": (ValueError, "dimension mismatch", lambda s: stacked_block_diag(s)[0].matvec(stack(s))),
    "product": (ValueError, "shape mismatch", lambda s: first(s) @ derivative("MPILaplacian", (5, 5))(s)[0]),
    "sum": (ValueError, "shape mismatch", lambda s: first(s) + derivative("MPILaplacian", (5, 5))(s)[0]),
    "sum with a number": (ValueError, "both operands have to be a MPILinearOperator", lambda s: first(s) + 2.0),
    "@ with a number": (ValueError, "Scalar not allowed, use * instead", lambda s: first(s) @ 2.0),
    "power": (ValueError, "square LinearOperator expected", not_square),
    "exponent": (ValueError, "non-negative integer expected as p", lambda s: first(s) ** 0.5),
    "no shape": (AttributeError, "object has no attribute 'shape'", lambda s: own(s).shape),
    "no dims": (AttributeError, "object has no attributes 'dims' or 'shape'", lambda s: own(s).dims),
    "no dimsd": (AttributeError, "object has no attributes 'dimsd' or 'shape'", lambda s: own(s).dimsd),
    "shape": (ValueError, "Invalid shape; must be 2-d tuple", lambda s: own(s, shape=(4, 6, 2))),
    "shape and dims": (ValueError, "New shape incompatible with dims", lambda s: changed(s, "shape", (4, 5))),
    "shape and dimsd": (ValueError, "New shape incompatible with dimsd", lambda s: changed(s, "shape", (5, 6))),
    "dims": (ValueError, "dims incompatible with shape[1]", lambda s: changed(s, "dims", (5,))),
    "dimsd": (ValueError, "dimsd incompatible with shape[0]", lambda s: changed(s, "dimsd", (5,))),
    "columns": (
        ValueError,
        "Operators have different number of columns",
        lambda s: s.pkg.MPIVStack([s.matrix(2, 3), s.matrix(2, 4)]),
    ),
    "rows": (
        ValueError,
        "Operators have different number of rows",
        lambda s: s.pkg.MPIHStack([s.matrix(3, 2), s.matrix(4, 2)]),
    ),
    "columns of a stack": (
        ValueError,
        "Operators have different number of columns",
        lambda s: s.pkg.MPIStackedVStack([first(s), derivative("MPILaplacian", (5, 5))(s)[0]]),
    ),
    "model of a block diagonal": (
        ValueError,
        "x should have partition=Partition.SCATTER",
        lambda s: block_diag(s)[0] @ s.array(np.ones(sum(columns(s))), partition="BROADCAST"),
    ),
    "model of a vertical stack": (
        ValueError,
        "x should have partition=Partition.BROADCAST,Partition.UNSAFE_BROADCAST",
        lambda s: vertical(s)[0] @ s.vector(5),
    ),
    "data of a vertical stack": (
        ValueError,
        "x should have partition=Partition.SCATTER",
        lambda s: vertical(s)[0].H @ s.array(np.ones(sum(rows(s))), partition="BROADCAST"),
    ),
    "model of a Laplacian": (
        ValueError,
        "x should have partition=Partition.SCATTER",
        lambda s: derivative("MPILaplacian")(s)[0] @ s.array(np.ones(np.prod(DIMS)), partition="BROADCAST"),
    ),
    "model of a Fredholm integral": (
        ValueError,
        "x should have partition=Partition.BROADCAST,Partition.UNSAFE_BROADCAST",
        lambda s: (op := fredholm(s)[0]) @ s.vector(op.shape[1]),
    ),
    "model of a halo": (
        ValueError,
        "Partition.SCATTER",
        lambda s: (op := halo(1)(s)[0]) @ s.array(np.ones(op.shape[1]), partition="BROADCAST"),
    ),
    "kind of a derivative": (NotImplementedError, "'kind' must be 'forward'", lambda s: first(s, kind="up")),
    "order of a derivative": (NotImplementedError, "'order' must be '3, or '5'", lambda s: first(s, order=4)),
    "kind of a second derivative": (
        NotImplementedError,
        "'kind' must be 'forward'",
        derivative("MPISecondDerivative", kind="up"),
    ),
    "axes of a Laplacian": (
        ValueError,
        "axes, weights, and sampling have different size",
        derivative("MPILaplacian", weights=(1,)),
    ),
    "even filters": (ValueError, "filters hs must have odd length", lambda s: nonstationary(s, taps=4)),
    "irregular filters": (ValueError, "must be regularly sampled", lambda s: nonstationary(s, ih=(1, 2, 4))),
    "filters outside": (ValueError, "must be larger than 0 and ", lambda s: nonstationary(s, ih=(1, 4, 100)[::2])),
    "even nt": (
        ValueError,
        "nt must be odd number",
        lambda s: s.get("waveeqprocessing.MPIMDC")(np.ones((2, 3, 2), "complex128"), nt=8, nv=1, nfreq=2),
    ),
    "kind of a product": (
        NotImplementedError,
        "kind must be summa or block",
        lambda s: s.get("basicoperators.MPIMatrixMult")(np.ones((2, 2)), 2, kind="cannon"),
    ),
    "grid of a halo": (
        ValueError,
        "does not match comm size",
        lambda s: s.get("basicoperators.Halo.MPIHalo")((8,), 1, proc_grid_shape=(s.size + 1,)),
    ),
    "widths of a halo": (
        ValueError,
        "Invalid halo length",
        lambda s: s.get("basicoperators.Halo.MPIHalo")((16 * s.size,), (1, 2, 3), proc_grid_shape=(s.size,)),
    ),
    "negative halo": (
        ValueError,
        "non-negative",
        lambda s: s.get("basicoperators.Halo.MPIHalo")((16 * s.size,), (-1, 1), proc_grid_shape=(s.size,)),
    ),
    "shape of an operator in the dot test": (
        AssertionError,
        "nr and nc do not match operator shape",
        lambda s: s.get("utils.dottest.dottest")(first(s), s.vector(68), s.vector(68), nr=3),
    ),
    "failing dot test": (
        AssertionError,
        "Dot test failed",
        lambda s: s.get("utils.dottest.dottest")(
            own(s, shape=(5, 5), _matvec=lambda _, x: 2 * x, _rmatvec=lambda _, x: x), s.vector(5), s.vector(5)
        ),
    ),
    **{
        f"threshold of {name}": (
            ValueError,
            "threshkind must be hard, soft, half, got foo",
            # x0 has the place of another argument: this must not be noticed first
            lambda s, name=name: getattr(s.pkg, name)(block_diag(s)[0], s.vector(5), 10, threshkind="foo"),
        )
        for name in ("ista", "fista")
    },
    **{
        f"step of {name}": (
            ValueError,
            f"{name.upper()} stopped at iteration 1 due to residual increasing",
            lambda s, name=name: monitored(s, name),
        )
        for name in ("ista", "fista")
    },
    **{
        f"niter of {name}": (ValueError, "niter must not be None", lambda s, name=name: unstarted(s, name))
        for name in ("CG", "CGLS")
    },
    "length of vectors": (
        ValueError,
        "Expected 3 DistributedArray",
        lambda s: prox(s, "MPIL21")(ndim=3).prox(s.stacked(s.vector(5), s.vector(5)), 0.1),
    ),
    "L2 without x0": (ValueError, "x0 must be passed", lambda s: prox(s, "MPIL2")(first(s), s.vector(68))),
    "solver of L2": (ValueError, "Available options are 'cg' or 'cgls'", lambda s: prox(s, "MPIL2")(solver="lsqr")),
    "tau": (ValueError, "tau must be positive", lambda s: prox(s, "MPIL2")().prox(s.vector(5), 0.0)),
    "tau of a local operator": (
        ValueError,
        "tau must be positive",
        lambda s: prox(s, "MPIProxOperator")(pyproximal.L1()).prox(s.vector(5), -1.0),
    ),
    "acceleration": (
        NotImplementedError,
        "Acceleration should be None, vandenberghe or fista",
        lambda s: proximal_gradient(s, acceleration="nesterov"),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(comm, name) -> None:
    kind, words, case = ERRORS[name]
    for side in both():
        with pytest.raises(kind, match=re.escape(words)):
            case(side)


def per_rank(s: Side) -> tuple[int, int]:
    """Return widths that differ between neighbours."""
    return (0, 1) if s.rank == 0 else (2, 2)


REFUSED_HALOS: dict[str, tuple[str, Callable[[Side], tuple[Any, Any, Any]]]] = {
    "wider than each block": ("exceeds local block size", lambda s: ((2 * s.size,), 3, (s.size,))),
    "wider than the last block": ("exceeds local block size", lambda s: ((2 * s.size - 1,), 2, (s.size,))),
    "wider along the second axis": ("exceeds local block size", lambda s: ((9, 2 * s.size), (1, 1, 3, 3), None)),
    "different on both sides": ("does not match neighbor", lambda s: ((16 * s.size,), (1, 2), (s.size,))),
    "different on the first axis": ("does not match neighbor", lambda s: ((9 * s.size, 4), (2, 0, 1, 1), (s.size, 1))),
    "different on two ranks": ("does not match neighbor", lambda s: ((4 * s.size,), per_rank(s), (s.size,))),
    "both": ("exceeds local block size", lambda s: ((2 * s.size,), (1, 3), (s.size,))),
}


@pytest.mark.parametrize("name", REFUSED_HALOS)
def test_halos_that_are_refused(comm, name) -> None:
    words, arguments = REFUSED_HALOS[name]
    for s in both():
        if comm.size == 1:  # no neighbour exchanges these halos
            assert s.pkg.MPIHalo(*arguments(s)).local_dims == arguments(s)[0]
        else:
            with pytest.raises(ValueError, match=words):
                s.pkg.MPIHalo(*arguments(s))


def test_halos_that_are_accepted(comm) -> None:
    def case(s: Side) -> Any:
        found = []
        for dims, widths, grid in (
            ((3, 2 * s.size), (5, 5, 2, 2), None),  # wide along the axis that is not split
            ((2 * s.size, 3), (1, 1, 0, 4), (s.size, 1)),  # different on both sides along that axis
            ((2 * s.size,), (4 * (s.rank == 0), 0), (s.size,)),  # wide at the end of the array
        ):
            op = s.pkg.MPIHalo(dims, widths, grid)
            shapes = [tuple(map(int, part)) for part in (op.halo, op.local_dims, op.local_extent)]
            found += [shapes, op @ s.vector(np.prod(dims))]
        return found

    compare(case, both())


def test_a_halo_that_is_invalid_on_one_rank(comm) -> None:
    # PyLops-MPI's other ranks wait without end.
    for widths, words in (((-1, 1), "non-negative"), ((1, 2, 3), "Invalid halo length")):
        with pytest.raises(ValueError, match=words):
            both()[1].pkg.MPIHalo((4 * comm.size,), widths if comm.rank == comm.size - 1 else 1, (comm.size,))
