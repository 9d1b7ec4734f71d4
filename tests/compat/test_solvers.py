"""PyLops-MPI's solvers: each against serial PyLops, as functions and step by step, with callbacks and tables."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
from pylops.optimization.callback import Callbacks, CostToInitialCallback

import collops.compat.pylops_mpi as pylops_mpi
from collops import profile
from collops.compat.pylops_mpi.optimization.cls_basic import CG, CGLS
from collops.compat.pylops_mpi.optimization.cls_sparsity import FISTA, ISTA
from collops.compat.pylops_mpi.optimization.eigs import power_iteration
from tests.operators.problems import assert_close, vector

Distributed, Partition = pylops_mpi.DistributedArray, pylops_mpi.Partition
ROWS, COLUMNS = 6, 4


@pytest.fixture(params=["float64", "complex128"])
def problem(comm, request):
    """A block-diagonal problem, distributed and serial."""
    dtype = request.param
    matrices = [vector(ROWS * COLUMNS, dtype, 10 + rank).reshape(ROWS, COLUMNS) for rank in range(comm.size)]
    serial = pylops.BlockDiag([pylops.MatrixMult(matrix, dtype=dtype) for matrix in matrices], dtype=dtype)
    op = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(matrices[comm.rank], dtype=dtype)])
    x = vector(serial.shape[1], dtype, 5)
    return op, serial, Distributed.to_dist(serial @ x), serial @ x


def start(op, y):
    return Distributed(op.shape[1], dtype=y.dtype).zeros_like()


def test_cgls(problem) -> None:
    op, serial, y, data = problem
    x, istop, iterations, r1, r2, cost = pylops_mpi.cgls(op, y, start(op, y), niter=5, damp=0.3, tol=1e-10)
    expected = pylops.optimization.basic.cgls(serial, data, niter=5, damp=0.3, tol=1e-10)
    assert_close(x.asarray(), expected[0].ravel(), factor=100)
    assert (istop, iterations) == expected[1:3]
    np.testing.assert_allclose([r1, r2], expected[3:5], atol=1e-20)
    np.testing.assert_allclose(cost, expected[5])


def test_reasons_to_stop(problem) -> None:
    op, serial, y, data = problem
    for options in ({"niter": 2, "tol": 1e-30}, {"niter": 50, "tol": 1e-2}):
        found = pylops_mpi.cgls(op, y, start(op, y), **options)
        expected = pylops.optimization.basic.cgls(serial, data, **options)
        assert found[1:3] == expected[1:3]
        solver = CGLS(op)
        solver.run(solver.setup(y, start(op, y), **options))
        assert (solver.istop, solver.iiter) == expected[1:3]


def test_cg(problem) -> None:
    op, serial, y, data = problem
    normal, serial = op.H @ op, serial.H @ serial
    x, iterations, cost = pylops_mpi.cg(normal, op.H @ y, start(op, y), niter=3, tol=1e-10)
    expected = pylops.optimization.basic.cg(serial, serial.args[0] @ data, niter=3, tol=1e-10)
    assert_close(x.asarray(), expected[0].ravel(), factor=100)
    assert iterations == expected[1] == 3
    np.testing.assert_allclose(cost, expected[2])


@pytest.mark.parametrize("function", [True, False], ids=["function", "class"])
@pytest.mark.parametrize(("name", "tol"), [("cg", 0.0), ("cgls", 1e-4), ("cgls", 0.0)])
def test_no_step_is_taken_after_the_last_accurate_one(comm, name, tol, function) -> None:
    # Rounding errors of large data in single precision are above the default tolerance.
    rows, columns = 13, 10
    matrices = [vector(rows * columns, "float32", rank).reshape(rows, columns) for rank in range(comm.size)]
    if name == "cg":
        matrices = [(matrix.T @ matrix + np.eye(columns)).astype("float32") for matrix in matrices]
    data = [1e6 * vector(matrix.shape[0], "float32", 50 + rank) for rank, matrix in enumerate(matrices)]
    op = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(matrices[comm.rank], dtype="float32")])
    y = Distributed(op.shape[0], local_array=data[comm.rank].astype("float32"))
    if function:
        x, *_, cost = getattr(pylops_mpi, name)(op, y, start(op, y), niter=3000, tol=tol)
    else:
        solver = {"cg": CG, "cgls": CGLS}[name](op)
        x = solver.run(solver.setup(y, start(op, y), niter=3000, tol=tol))
        cost = solver.cost
    assert len(cost) < 100
    for matrix, part, found in zip(matrices, data, np.split(x.asarray(), comm.size), strict=True):
        expected = np.linalg.lstsq(matrix.astype("float64"), part.astype("float64"))[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["ista", "fista"])
def test_sparse_models(problem, name) -> None:
    op, serial, y, data = problem
    options = {"niter": 6, "eps": 0.5, "alpha": 1e-2, "tol": 0.0}
    x, iterations, cost = getattr(pylops_mpi, name)(op, y, start(op, y), **options)
    expected = getattr(pylops.optimization.sparsity, name)(serial, data, **options)
    assert_close(x.asarray(), expected[0].ravel(), factor=10)
    assert iterations == expected[1] == 6
    np.testing.assert_allclose(cost, expected[2])
    with pytest.raises(ValueError, match="threshkind must be hard, soft, half"):
        getattr(pylops_mpi, name)(op, y, start(op, y), threshkind="hard-percentile")


@pytest.mark.parametrize("kind", [CG, CGLS, ISTA, FISTA])
def test_steps_one_by_one(problem, kind) -> None:
    op, _, y, _ = problem
    if kind is CG:
        op, y = op.H @ op, op.H @ y
    options = {"alpha": 1e-2, "tol": 0.0} if issubclass(kind, ISTA) else {"tol": 0.0}
    once = kind(op).solve(y, start(op, y), niter=5, **options)
    seen = []
    solver = kind(op)
    solver.callback = lambda x: seen.append(x.asarray())
    x = solver.setup(y, start(op, y), niter=5, **options)
    arguments = (x, x) if kind is FISTA else (x,)
    x = solver.step(*arguments)
    x = x[0] if isinstance(x, tuple) else x
    assert solver.iiter == 1
    x = solver.run(x, 5)
    solver.finalize()
    assert_close(x.asarray(), once[0].asarray())
    np.testing.assert_allclose(solver.cost, once[-1])
    assert solver.iiter == 5 and len(seen) == 4 and solver.telapsed >= 0


def test_callbacks(problem) -> None:
    op, _, y, _ = problem
    seen = []
    x, *_ = pylops_mpi.cgls(op, y, start(op, y), niter=4, tol=0.0, callback=lambda x: seen.append(x.asarray()))
    assert len(seen) == 4
    assert_close(seen[-1], x.asarray())
    names = []

    class Names(Callbacks):
        def on_setup_end(self, solver, x) -> None:
            names.append("setup")

        def on_step_end(self, solver, x) -> None:
            names.append(solver.iiter)

        def on_run_end(self, solver, x) -> None:
            names.append("run")

    CGLS(op, callbacks=[Names()]).solve(y, start(op, y), niter=3, tol=0.0)
    assert names == ["setup", 1, 2, 3, "run"]
    CGLS(op, callbacks=[CostToInitialCallback(0.5)]).solve(y, start(op, y), niter=2, tol=0.0)


def test_tables(problem, comm, capsys) -> None:
    op, _, y, _ = problem
    pylops_mpi.cgls(op, y, start(op, y), niter=4, tol=0.0, show=comm.rank == 0, itershow=(1, 1, 3))
    text = capsys.readouterr().out
    if comm.rank:
        assert text == ""
    else:
        shown = [int(line.split()[0]) for line in text.splitlines() if line[:6].strip().isdigit()]
        assert shown == [1, 3, 4]
        assert "niter = 4" in text and "Iterations = 4" in text


def test_sparse_models_in_other_layouts(comm) -> None:
    n = 2 * comm.size + 3
    matrix, values = vector(n * n, "float64", 1).reshape(n, n), vector(n, "float64", 2)
    rotation = np.linalg.qr(matrix)[0]
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    op = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(matrix)] if first else [])
    transform = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(rotation)] if last else [])
    y = Distributed.to_dist(values)
    options = {"niter": 3, "eps": 0.5, "alpha": 1e-2, "tol": 0.0}
    expected = pylops.optimization.sparsity.ista(
        pylops.MatrixMult(matrix), values, SOp=pylops.MatrixMult(rotation), **options
    )[0]
    solver = ISTA(op)
    whole = solver.solve(y, y.zeros_like(), SOp=transform, **options)[0]
    steps = solver.run(solver.setup(y, y.zeros_like(), SOp=transform, **options), 3)
    assert_close(whole.asarray(), expected, factor=10)
    assert_close(steps.asarray(), expected, factor=10)


def test_regularized_problem_in_other_layouts(comm) -> None:
    # The model is split evenly, the Laplacian's rows are not; the peer raises an error.
    dims = (comm.size + 1, 3)
    n = dims[0] * dims[1]
    local = [n // comm.size + (rank < n % comm.size) for rank in range(comm.size)]
    op = pylops_mpi.MPIStackedVStack(
        [pylops_mpi.MPIBlockDiag([pylops.Identity(local[comm.rank])]), 0.5 * pylops_mpi.MPILaplacian(dims)]
    )
    serial = pylops.VStack([pylops.Identity(n), 0.5 * pylops.Laplacian(dims)])
    data = vector(n, "float64", 1)
    y = pylops_mpi.StackedDistributedArray([Distributed.to_dist(data), Distributed(n).zeros_like()])
    x = pylops_mpi.cgls(op, y, Distributed(n).zeros_like(), niter=4, tol=0.0)[0]
    expected = pylops.optimization.basic.cgls(serial, np.concatenate([data, np.zeros(n)]), niter=4, tol=0.0)[0]
    assert_close(x.asarray(), expected, factor=10)


class Doubled(pylops_mpi.MPILinearOperator):
    """A user's operator."""

    def __init__(self, n: int) -> None:
        super().__init__(shape=(n, n), dtype=np.float64)

    def _matvec(self, x):
        return 2 * x

    _rmatvec = _matvec


def test_operators_of_users(comm) -> None:
    n = 2 * comm.size + 1
    y = Distributed.to_dist(vector(n, "float64", 1))
    for solve in (pylops_mpi.cgls, pylops_mpi.cg):
        assert_close(solve(Doubled(n), y, y.zeros_like(), niter=3)[0].asarray(), y.asarray() / 2)


@pytest.mark.parametrize("partition", list(Partition))
def test_power_iteration(comm, partition) -> None:
    matrix = np.diag([1.0, 5.0, -2.0])
    dtype = "float64"
    if partition is Partition.SCATTER:
        op, b = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(matrix)]), Distributed(3 * comm.size)
    else:
        op, b = pylops_mpi.MPILinearOperator(pylops.MatrixMult(matrix)), Distributed(3, partition=partition)
    np.random.seed(0)  # noqa: NPY002 - what the peer uses
    value, found, iterations = power_iteration(op, b, niter=100, dtype=dtype)
    assert found is b and 1 < iterations <= 100
    assert value == pytest.approx(5.0, rel=1e-3)
    assert found.norm() == pytest.approx(1.0)
    assert (op @ found - 5.0 * found).norm() < 0.1


def test_messages_of_an_iteration(comm) -> None:
    # The peer: 40 pickled messages and 5 others for each iteration with a block-diagonal operator.
    op = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(np.eye(5) + np.ones((5, 5)))])
    y = op @ (Distributed(5 * comm.size).zeros_like() + 1.0)
    y.local_array[:] += np.arange(5)
    counts = []
    for niter in (2, 4):
        with profile.count_messages() as messages:
            pylops_mpi.cgls(op, y, y.zeros_like(), niter=niter, tol=0.0)
        counts.append(messages.counts().get("allreduce", 0))
        # Before the first iteration the ranks agree that they start the same solver.
        assert set(messages.counts()) <= {"allreduce", "agreement"}
        assert messages.counts().get("agreement", 0) <= 1
    assert counts[1] - counts[0] <= 2 * 2


@pytest.mark.parametrize("name", ["ista", "fista"])
def test_a_residual_that_is_not_a_number_counts_as_an_increase(comm, name) -> None:
    products = []

    def forward(x):
        products.append(x)
        return x * (np.nan if len(products) == 3 else 1.0)

    op = pylops_mpi.MPIBlockDiag([pylops.FunctionOperator(forward, lambda y: y, COLUMNS, COLUMNS)])
    y = Distributed.to_dist(np.ones(op.shape[0]))
    with pytest.raises(ValueError, match="residual increasing"):
        getattr(pylops_mpi, name)(op, y, start(op, y), niter=20, eps=0.1, alpha=0.3, tol=0.0, monitorres=True)
