"""Each difference from PyLops-MPI that ``docs/from-pylops-mpi.md`` lists, with the behaviour of both packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pylops
import pytest

from collops.errors import NotFiniteError
from tests.compat.operator_cases import block_diag, halves
from tests.compat.proximal_cases import identity, prox
from tests.compat.sides import COPIES, MPI, QUIET, Side, both, compare, pyproximal
from tests.operators.problems import vector

pytestmark = QUIET


@pytest.mark.parametrize("partition", COPIES)
@pytest.mark.parametrize("shape", [(17,), (2, 5), (7, 3, 2)])
def test_masked_inner_products_of_copies(comm, partition, shape) -> None:
    one, two = (vector(np.prod(shape), "complex128", seed).reshape(shape) for seed in (1, 2))

    def case(s: Side) -> Any:
        x, y = (s.array(values, mask=halves(s), partition=partition) for values in (one, two))
        along = s.array(one, mask=halves(s), partition=partition, axis=len(shape) - 1)
        pairs = [(x, y), (y, x), (along, along), (s.stacked(x, y), s.stacked(y, y))]
        return [u.dot(v, vdot=vdot) for u, v in pairs for vdot in (False, True)] + [x.norm()]

    compare(case, both())
    s = both()[1]
    mine = [part for rank, part in enumerate(np.array_split(one, s.size)) if halves(s)[rank] == halves(s)[s.rank]]
    expected = np.concatenate(mine).ravel()
    assert case(s)[5] == pytest.approx(np.vdot(expected, expected))


def test_arrays_with_one_mask_share_a_communicator(comm) -> None:
    def made(base: Any, mask: list[int]) -> Any:
        return mine.pkg.DistributedArray(comm.size, base_comm=base, mask=mask)

    theirs, mine = both()
    base = MPI.COMM_WORLD.Dup()
    first = made(base, halves(mine)).sub_comm
    expected = theirs.pkg.DistributedArray(comm.size, base_comm=base, mask=halves(mine)).sub_comm
    assert MPI.Comm.Compare(first, expected) in (MPI.IDENT, MPI.CONGRUENT)
    for _ in range(2100):  # MPICH has 2048 communicators
        x = made(base, halves(mine))
        assert x.sub_comm == x.copy().sub_comm == first
    other = made(base, [7] * comm.size).sub_comm
    assert other != first
    assert made(None, halves(mine)).sub_comm not in (first, other)
    first.Free()
    again = made(base, halves(mine)).sub_comm
    assert again == made(base, halves(mine)).sub_comm != MPI.COMM_NULL
    base.Free()
    assert again == other == MPI.COMM_NULL


def test_norms_along_an_axis(comm) -> None:
    values = vector((comm.size + 2) * 6, "float64", 1).reshape(-1, 3, 2)
    expected = np.linalg.norm(values, axis=0)
    theirs, mine = (s.array(values) for s in both())
    np.testing.assert_allclose(mine.norm(axis=0), expected)
    np.testing.assert_allclose(theirs.norm(axis=0), expected.ravel())  # without the shape
    one, none = (s.vector(9).norm(axis=0) for s in both())
    assert (np.shape(one), np.shape(none)) == ((1,), ()) and none == pytest.approx(one[0])
    expected = np.linalg.norm(values, axis=-1)
    np.testing.assert_allclose(mine.norm(axis=-1), expected)
    theirs, mine = (s.array(values, partition="BROADCAST") for s in both())
    np.testing.assert_allclose(mine.norm(axis=2), expected)
    np.testing.assert_allclose(theirs.norm(axis=2), np.concatenate([expected] * comm.size))  # once for each rank


def test_norms_in_single_precision() -> None:
    values = vector(1001, "float32", 1)
    theirs, mine = (s.array(values).norm(1) for s in both())
    expected = np.abs(values.astype("float64")).sum()
    assert theirs == pytest.approx(expected, rel=1e-14)
    assert mine == pytest.approx(expected, rel=1e-6)


def test_damping_from_a_start() -> None:
    def squared_gradient(s: Side, niter: int) -> Any:
        op, truth = block_diag(s)
        y = op @ truth
        x = s.pkg.cgls(op, y, 2.0 * truth, niter=niter, damp=3.0, tol=0.0)[0]
        return x.asarray(), (op.H @ (y - op @ x) - 9.0 * x).norm()

    (theirs, first_there), (mine, first_here) = (squared_gradient(s, 1) for s in both())
    assert np.abs(theirs - mine).max() > 1e-3  # it starts along another vector than the gradient
    assert first_here < first_there
    mine, gradient = squared_gradient(both()[1], 30)
    assert gradient < 1e-10 * first_here


def test_infinite_numbers() -> None:
    def from_infinite_data(s: Side, name: str, by_steps: bool = False) -> Any:
        op, x = block_diag(s)
        y = op @ x
        y[0] = np.inf
        options = {"niter": 3, "tol": 0.0} | ({"alpha": 1e-2} if "ista" in name else {})
        if not by_steps:
            return getattr(s.pkg, name)(op, y, x.zeros_like(), **options)[-1]
        solver = getattr(s.pkg, name.upper())(op)
        solver.run(solver.setup(y, x.zeros_like(), **options))
        return solver.cost

    theirs, mine = both()
    with np.errstate(all="ignore"):
        for name in ("cgls", "ista", "fista"):
            assert not np.isfinite(from_infinite_data(theirs, name)[-1])
            for by_steps in (False, True):
                with pytest.raises(NotFiniteError):
                    from_infinite_data(mine, name, by_steps)


@pytest.mark.parametrize(("dtype", "alpha"), [("float64", 1e5), ("complex128", 1e5), ("float32", 1e30)])
@pytest.mark.parametrize("name", ["ista", "fista"])
def test_steps_that_are_too_long(name, dtype, alpha) -> None:
    def diverging(s: Side, by_steps: bool = False, **options: Any) -> Any:
        op, x = block_diag(s)
        options |= {"niter": 100, "alpha": alpha, "tol": 0.0}
        if not by_steps:
            return getattr(s.pkg, name)(op, op @ x, x.zeros_like(), **options)[1:]
        solver = getattr(s.pkg, name.upper())(op)
        solver.run(solver.setup(op @ x, x.zeros_like(), **options))
        return solver.iiter, solver.cost

    theirs, mine = both(dtype=dtype)
    with np.errstate(all="ignore"):
        for s, by_steps in ((theirs, False), (mine, False), (mine, True)):
            iterations, cost = diverging(s, by_steps)
            assert len(cost) == iterations < 100
            assert not np.isfinite(cost[-1])
            with pytest.raises(ValueError, match=f"{name.upper()} stopped at iteration 1 due to residual increasing"):
                diverging(s, by_steps, monitorres=True)


def test_residuals_that_increase_in_the_last_step(comm) -> None:
    def last(s: Side, name: str, niter: int) -> Any:
        op, x = block_diag(s)
        options = {"niter": niter, "alpha": 10.0, "tol": 0.0, "monitorres": True}
        return getattr(s.pkg, name)(op, op @ x, x.zeros_like(), **options)[1]

    theirs, mine = both()
    for name in ("ista", "fista"):
        assert last(theirs, name, 1) == 1  # it looks at the residual before each step only
        with pytest.raises(ValueError, match="residual increasing"):
            last(mine, name, 1)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_dtypes_of_multiples(dtype) -> None:
    (theirs, found_there), (mine, found_here) = (
        ((2.0 * op).dtype, ((2.0 * op) @ x).dtype) for op, x in map(block_diag, both(dtype=dtype))
    )
    assert mine == found_here == found_there == dtype
    assert theirs == np.result_type(dtype, "float64")


def test_multiples_of_proximal_operators() -> None:
    values = np.array([1.0, -2.0, 0.5])

    def twice(s: Side, sigma: Any) -> Any:
        return prox(s, "MPIProxOperator")(pyproximal.L1(0.5)).postcomposition(sigma)

    theirs, mine = both()
    x = mine.array(np.tile(values, mine.size))
    expected = np.sign(values) * np.maximum(np.abs(values) - 2 * 0.1 * 0.5, 0)
    plain = prox(mine, "MPIProxOperator")(pyproximal.L1(0.5))
    for f in (twice(mine, 2.0), twice(mine, 2), twice(mine, np.float32(2)), 2 * plain, plain * 2.0):
        np.testing.assert_allclose(f.prox(x, 0.1).local_array, expected)
    y = theirs.array(np.tile(values, theirs.size))
    np.testing.assert_allclose(twice(theirs, 2.0).prox(y, 0.1).local_array, expected)
    shifted = plain.precomposition(np.float32(2), np.float32(1))  # of 2 x + 1
    np.testing.assert_allclose(shifted(x), 0.5 * np.abs(2 * x.asarray() + 1).sum())
    for sigma in (2, np.float32(2)):
        with pytest.raises(NotImplementedError, match="sigma must be of type float"):
            twice(theirs, sigma)
    with pytest.raises(TypeError):
        2.0 * prox(theirs, "MPIProxOperator")(pyproximal.L1(0.5))


def test_admm_with_g_first() -> None:
    weights, tau = np.array([1.0, 2.0, 3.0]), 0.5

    def minimised(s: Side) -> Any:
        op = s.pkg.MPIBlockDiag([pylops.Diagonal(weights)])
        x = s.array(np.tile(np.array([1.0, -2.0, 0.5]), s.size))
        options = {"tau": tau, "niter": 4, "gfirst": True, "kwargs_solver": {"niter": 3, "tol": 0.0}}
        g = prox(s, "MPIProxOperator")(pyproximal.L1(0.3))
        return prox(s, "optimization.ADMML2")(g, op, op @ x, identity(s, x), 0.5 * x, **options)[0].local_array

    def reference(old: bool) -> np.ndarray:
        """Boyd et al. 2011, 3.1.1 with z first; with `old` the dual variable follows the x before."""
        x = np.array([0.5, -1.0, 0.25])
        data, u = weights * 2 * x, 0 * x
        for _ in range(4):
            z = np.sign(x + u) * np.maximum(np.abs(x + u) - tau * 0.3, 0)
            before, x = x, (weights * data + (z - u) / tau) / (weights**2 + 1 / tau)
            u = u + (before if old else x) - z
        return x

    theirs, mine = both()
    np.testing.assert_allclose(minimised(mine), reference(old=False), rtol=1e-10)
    np.testing.assert_allclose(minimised(theirs), reference(old=True), rtol=1e-10)
