"""PyLops-MPI and this package in one process on the same data: every operator, array method, solver and derived class.

``tests/gpu/test_compat_side_by_side.py`` runs the same cases with CuPy and NCCL.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pylops
import pytest

from tests.compat.array_cases import ARRAY_CASES, ARRAYS, masked, parts, stack
from tests.compat.operator_cases import CASES, OPERATORS, applied, block_diag, derivative, even, stacked_block_diag
from tests.compat.proximal_cases import PROXIMAL
from tests.compat.sides import COPIES, MPI, QUIET, Side, assert_same, both, compare, pyproximal, values_of
from tests.compat.solver_cases import CONDITION, SOLVERS
from tests.operators.problems import vector

pytestmark = QUIET


@pytest.mark.parametrize(("name", "partition", "dtype"), CASES, ids=lambda part: part)
def test_operators(comm, name, partition, dtype) -> None:
    compare(applied(OPERATORS[name]), both(dtype=dtype, partition=partition))


@pytest.mark.parametrize(("name", "partition", "dtype"), ARRAY_CASES, ids=lambda part: part)
def test_arrays(comm, name, partition, dtype) -> None:
    compare(ARRAYS[name], both(dtype=dtype, partition=partition))


def test_inner_products_of_masked_arrays(comm) -> None:
    compare(lambda s: [masked(s).dot(masked(s)), masked(s).dot(masked(s), vdot=True)], both(dtype="complex128"))


@pytest.mark.parametrize("name", ["SCATTER", *COPIES])
def test_partitions_of_the_real_package(name) -> None:
    theirs, mine = both()
    foreign = theirs.pkg.Partition[name]
    for x in (
        mine.pkg.DistributedArray(5, partition=foreign),
        mine.pkg.DistributedArray.to_dist(np.ones(5), partition=foreign),
    ):
        assert x.partition is mine.pkg.Partition[name]
    with pytest.raises(ValueError, match="Should be either"):
        mine.pkg.DistributedArray(5, partition=MPI.COMM_WORLD)


def test_integers(comm) -> None:
    def case(s: Side) -> Any:
        x = s.array(np.arange(9))
        return [x + x, 3 * x, x.dot(x), x.norm(), x.norm(1), s.stacked(x, x).dot(s.stacked(x, x))]

    compare(case, both())


def test_each_rank_chooses_its_ghost_cells(comm) -> None:
    compare(lambda s: s.vector(4 * s.size).add_ghost_cells(s.rank % 3, (s.rank + 1) % 3), both())


def test_copies_by_the_standard_library(comm) -> None:
    def case(s: Side) -> Any:
        x, stacked, op = parts(s), stack(s), block_diag(s)
        copies = [pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x), copy.deepcopy(stacked)]
        copies += [copies[0] + x, copies[3] + stacked, copy.deepcopy(op[0]) @ op[1]]
        copies[1][:] = copies[3][0] = 0.0
        return [x, stacked, *copies]

    compare(case, both())


def test_numbers_of_numpy_keep_single_precision(comm) -> None:
    number = np.sqrt(2.0)
    compare(
        lambda s: [[number * x, x * number, x + number, x - number] for x in (parts(s),)] + [number * stack(s)],
        both(dtype="float32"),
    )


def test_only_the_first_rank_needs_values_of_an_assignment(comm) -> None:
    def case(s: Side) -> Any:
        x = s.array(np.arange(7), partition="BROADCAST")
        x.local_array[6] = s.rank  # elements that are not assigned to remain
        x[:] = x.local_array + 1 if s.rank == 0 else None
        x.local_array[6] = s.rank
        x[2] = 5 + s.rank
        x[[0, 3]] = np.array([s.rank + 10, 20])
        return x

    compare(case, both())


def test_types_of_sums(comm) -> None:
    theirs, mine = both()
    single, double, complex_, integers = ("float32", "float64", "complex128", "int64")
    for one, two in ((single, double), (double, complex_), (integers, double)):
        for s, expected in ((theirs, one), (mine, two)):
            x, y = parts(s, dtype=one), parts(s, dtype=two)
            assert {str((x + y).dtype), str((x - y).dtype), str((x * y).dtype)} == {expected}
    assert parts(theirs, dtype=integers).__mul__(0.5).dtype == integers  # PyLops-MPI drops the fractions
    assert (parts(mine, dtype=integers) * 0.5).dtype == double
    for s in (theirs, mine):
        x = parts(s, dtype=single)
        x += parts(s, dtype=double)
        assert x.dtype == single
    x = parts(mine)
    with pytest.raises(TypeError, match="Cannot cast"):
        x += parts(mine, dtype=complex_)


def test_norms_of_fractional_order() -> None:
    theirs, mine = (s.array(np.array([-1.0, 4.0, -9.0])) for s in both(base_comm=MPI.COMM_SELF))
    with np.errstate(invalid="ignore"):
        assert np.isnan(theirs.norm(0.5))
    assert mine.norm(0.5) == pytest.approx(36.0)


def test_ghost_cells_of_copies(comm) -> None:
    theirs, mine = (s.vector(2 * s.size).add_ghost_cells(1, 1) for s in both(partition="BROADCAST"))
    assert len(theirs) == 2 * comm.size + (comm.rank > 0) + (comm.rank < comm.size - 1)
    assert len(mine) == 2 * comm.size


def test_masks_in_stacked_arrays(comm) -> None:
    mask = [rank % 2 for rank in range(comm.size)]
    theirs, mine = (s.stacked(s.array(np.ones(comm.size), mask=mask), s.array(np.ones(3))) for s in both())
    theirs.norm()
    if comm.size > 1:
        with pytest.raises(ValueError, match="must share one mask"):
            mine.norm()


# Classes that users derive


def derived_operators(s: Side) -> Any:
    class Tripled(s.pkg.MPIBlockDiag):
        def _matvec(self, x: Any) -> Any:
            return 3 * super()._matvec(x)

        def _rmatvec(self, x: Any) -> Any:
            return 3 * super()._rmatvec(x)

    class Doubled(s.pkg.MPILinearOperator):
        def matvec(self, x: Any) -> Any:
            return 2 * super().matvec(x)

    op = Tripled([s.matrix(4, 3)])
    x, copies = s.vector(3 * s.size), s.array(vector(3, s.dtype, 1), partition="BROADCAST")
    doubled = Doubled(pylops.Identity(3, dtype=s.dtype))
    y = op @ x
    found = [y, op.H @ y, (op.H @ op) @ x, (2 * op) @ x, (-op + op * 3) @ x, op.conj() @ x, op.shape]
    found += [[tuple(map(int, shape)) for shape in (*op.local_shapes_m, *op.local_shapes_n)]]
    found += [s.pkg.MPIStackedVStack([op, op]) @ x, bool(s.get("utils.dottest.dottest")(op, x, y))]
    return [*found, s.pkg.cgls(op, y, 0 * x, niter=2, tol=0.0), (doubled * 2) @ copies, (doubled @ doubled) @ copies]


def derived_solver(s: Side) -> Any:
    class Counted(s.pkg.CGLS):
        steps = 0

        def step(self, x: Any, show: bool = False) -> Any:
            self.steps += 1
            return super().step(x, show)

    op, x = block_diag(s)
    solver = Counted(op)
    return [solver.solve(op @ x, 0 * x, niter=3, tol=0.0), solver.steps]


def derived_prox(s: Side) -> Any:
    class Halved(s.get("proximal.MPIProxOperator")):
        def prox(self, x: Any, tau: float) -> Any:
            return 0.5 * super().prox(x, tau)

    class Shifted(s.get("proximal.MPIL2")):
        def grad(self, x: Any) -> Any:
            return super().grad(x) + x

    op, x = block_diag(s)
    f = Shifted(Op=op, b=op @ x, x0=0 * x)
    method = s.get("proximal.optimization.primal.ProximalGradient")
    return [method(f, Halved(pyproximal.L1(0.1)), 0 * x, tau=0.01, niter=4)]


def test_methods_of_derived_classes_are_called(comm) -> None:
    for case in (derived_operators, derived_solver, derived_prox):
        compare(case, both(), CONDITION)


def test_methods_of_an_object_are_called(comm) -> None:
    for s in both():
        op, x = block_diag(s)
        calls: list[Any] = []
        y, matvec = op @ x, op.matvec
        op.matvec = lambda v, matvec=matvec, calls=calls: calls.append(v) or matvec(v)
        s.pkg.cgls(op, y, 0 * x, niter=3, tol=0.0)
        assert len(calls) >= 3


def test_widths_of_halos(comm) -> None:
    def case(s: Side) -> Any:
        halos = [s.pkg.MPIHalo((4 * s.size, 5), widths, proc_grid_shape=(s.size, 1)) for widths in (1, (1, 1))]
        return [[tuple(map(int, part)) for part in (op.halo, op.local_dims, op.local_extent)] for op in halos]

    compare(case, both())


def test_a_power_of_zero_is_the_identity(comm) -> None:
    def case(s: Side) -> Any:
        op, _ = derivative("MPISecondDerivative")(s)
        x = s.vector(op.shape[1], even(s))
        return [op**0 @ x, (op**0).H @ x]

    compare(case, both())


def test_powers_of_stacked_operators(comm) -> None:
    theirs, mine = both()
    op, x = stacked_block_diag(theirs)
    assert_same(values_of((op.H @ op) ** 2 @ x), values_of(x), 0.0)  # PyLops-MPI returns the model
    op, x = stacked_block_diag(mine)
    normal = op.H @ op
    assert_same(values_of(normal**2 @ x), values_of(normal @ (normal @ x)), 1e-12)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", SOLVERS)
def test_solvers(comm, name, dtype) -> None:
    compare(SOLVERS[name], both(dtype=dtype), CONDITION)


@pytest.mark.parametrize("name", PROXIMAL)
def test_proximal(comm, name) -> None:
    # Inner solves take a fixed number of steps, by recurrences of CG here and CGLS there, with different rounding.
    compare(PROXIMAL[name], both(), 1000 * CONDITION)
