"""Operators and solvers on device arrays: against NumPy, launched and as a replayed CUDA graph."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
import scipy.linalg

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.errors import NotFiniteError, UnsupportedTypeError
from collops.operators import BlockDiag, SecondDerivative, StackedVStack, VStack, lift_local
from collops.operators.dense import generic
from collops.operators.dense.device import bfloat16_matrix
from collops.operators.dense.matrix import DenseMatrix
from collops.preconditioners import inner_solve
from collops.solvers import (
    CGLS,
    Status,
    bicgstab,
    block_cgls,
    cg,
    cgls,
    execution,
    fista,
    gmres,
    history,
    hybrid_lsqr,
    lsmr,
    lsqr,
    minres,
    solve,
)
from collops.solvers.nonlinear import gauss_newton, lbfgs
from collops.solvers.proximal import L1, L2, primal_dual
from tests.solvers.problems import ROWS, Cubic, assert_close, joined, random_matrix

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8", "c16"]
REPLAYED = "replayed CUDA graph"


def both(comm, dtype, kind=VStack):
    """Return one operator with its data on the host, and the same on the device."""
    every = [[random_matrix(n + 3, 6, dtype, n) for n in rows] for rows in ROWS[: comm.size]]
    mine = every[comm.rank]
    host, device = kind(mine, comm), kind([cupy.asarray(block) for block in mine], comm)
    y = random_matrix(len(np.vstack(joined(every))), 1, dtype, 99)[:, 0]
    return host, from_global(y, host.range, comm=comm), device, from_global(cupy.asarray(y), device.range, comm=comm)


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 4), (64, 128), (1000, 515), (515, 1000), (3000, 3000), (0, 3), (3, 0)])
def test_dense_products(shape, dtype, order):
    host = random_matrix(*shape, dtype, 1)
    x, y = random_matrix(shape[1], 1, dtype, 2)[:, 0], random_matrix(shape[0], 1, dtype, 3)[:, 0]
    matrix = (
        cupy.repeat(cupy.asarray(host), 2, axis=1)[:, ::2] if order == "strided" else cupy.asarray(host, order=order)
    )
    op = lift_local(matrix)
    for apply, given, expected in (
        (op.forward_local, x, host @ x),
        (op.adjoint_local, y, host.conj().T @ y),
    ):
        out = cupy.full(len(expected), np.nan, dtype)
        assert apply(cupy.asarray(given), out) is out
        assert_close(out.get(), expected, dtype)
        assert_close(apply(cupy.asarray(given), None).get(), expected, dtype)
        # Pieces of a split array begin anywhere.
        shifted = cupy.empty(len(given) + 1, dtype)[1:]
        shifted[...] = cupy.asarray(given)
        target = cupy.full(len(expected) + 1, np.nan, dtype)[1:]
        assert_close(apply(shifted, target).get(), expected, dtype)


def test_dense_products_of_other_types():
    from collops.operators.dense.cublas import CublasMatrix
    from collops.operators.dense.device import KernelMatrix

    host = random_matrix(5, 3, "f4", 1)
    op = lift_local(cupy.asarray(host))
    assert isinstance(op, KernelMatrix)
    x = cupy.arange(3, dtype="f8")
    assert_close(op.forward_local(x, cupy.empty(5)).get(), host @ x.get(), "f4")
    z = (1 + 2j) * x
    for matrix in (host, np.repeat(host, 600_000, axis=0)):  # the larger one is multiplied by cuBLAS
        assert_close(lift_local(cupy.asarray(matrix)).forward_local(z, None)[:5].get(), matrix[:5] @ z.get(), "f4")
    with pytest.raises(UnsupportedTypeError, match="complex"):
        lift_local(cupy.asarray(host * 1j)).forward_local(x, cupy.empty(5))
    assert isinstance(lift_local(cupy.asarray(host.astype("f2"))), DenseMatrix)
    assert isinstance(lift_local(pylops.MatrixMult(cupy.asarray(host), dtype="f4")), KernelMatrix)
    assert isinstance(lift_local(cupy.asarray(host * 1j)), CublasMatrix)
    assert isinstance(lift_local(cupy.zeros((3000, 3000), "f4")), CublasMatrix)


@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 4), (64, 128), (1000, 515), (515, 1000), (3000, 3000), (20001, 264), (0, 3), (3, 0)]
)
def test_dense_products_in_bfloat16(shape):
    """The bits and the products are those of the host; vectors that are not aligned are multiplied as well."""
    host = random_matrix(*shape, "f8", seed=shape[0])
    there, here = bfloat16_matrix(cupy.asarray(host)), generic.bfloat16_matrix(host)
    np.testing.assert_array_equal(there.matrix.get(), here.matrix)
    kept = (here.matrix.astype("u4") << 16).view("f4").astype("f8")
    for dtype in ("f4", "c8", "f8"):
        x, y = (random_matrix(extent, 1, dtype, seed=2)[:, 0] for extent in shape[::-1])
        for matrix, apply, given in ((kept, there.forward_local, x), (kept.T, there.adjoint_local, y)):
            moved = cupy.concatenate([cupy.zeros(1, dtype), cupy.asarray(given)])[1:]
            for vector in (cupy.asarray(given), moved):
                out = cupy.full(len(matrix), np.nan, dtype)
                assert apply(vector, out) is out
                scale = max(1.0, abs(matrix @ given).max(initial=0.0))
                np.testing.assert_allclose(out.get(), matrix @ given, rtol=0, atol=3e-5 * scale)


@pytest.mark.parametrize("low", ["float32", "bfloat16"])
def test_dense_matrices_are_refined_from_lower_precision(comm, low):
    generator = np.random.default_rng(4)
    vectors = np.linalg.qr(generator.standard_normal((300, 300)))[0]
    host = (vectors * np.geomspace(0.02, 2, 300)) @ vectors.T
    A = BlockDiag([cupy.asarray(host)], comm)
    y = random(A.range, comm=comm, seed=5, engine="cupy")
    M = inner_solve(A.astype(low), niter=200, tol=0, rtol=1e-2)
    refined = gmres(A, y, M=M, flexible=True, rtol=1e-12)
    assert refined.status is Status.CONVERGED
    np.testing.assert_allclose(
        refined.x.local_array.get(), np.linalg.solve(host, y.local_array.get()), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_dense_products_in_a_capture(dtype):
    host = random_matrix(300, 200, dtype, 1)
    op = lift_local(cupy.asarray(host))
    with cupy.cuda.Stream() as stream:
        x, y, back = cupy.empty(200, dtype), cupy.empty(300, dtype), cupy.empty(200, dtype)
        for _ in range(2):  # the second capture finds the stream known
            op.forward_local(x, y)
            op.adjoint_local(y, back)
            stream.begin_capture()
            op.forward_local(x, y)
            op.adjoint_local(y, back)
            graph = stream.end_capture()
            x[...] = cupy.asarray(random_matrix(200, 1, dtype, 2)[:, 0])
            graph.launch()
        expected = host @ x.get()
        assert_close(y.get(), expected, dtype)
        assert_close(back.get(), host.conj().T @ expected, dtype, factor=10)


@pytest.mark.parametrize("kind", [VStack, BlockDiag])
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators(comm, dtype, kind):
    host, y, device, yd = both(comm, dtype, kind)
    assert device.dottest(engine="cupy")
    assert_close(device.adjoint(yd).gather().get(), host.adjoint(y).gather(), dtype)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("damp", [0.0, 0.5])
@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize("dtype", DTYPES)
def test_solvers_agree_with_the_host(comm, dtype, solver, damp, graph):
    host, y, device, yd = both(comm, dtype)
    options = {"tol": 0} if solver is cgls else {"atol": 0, "btol": 0, "conlim": 0, "calc_var": True}
    expected = solver(host, y, niter=6, damp=damp, **options)
    result = solver(device, yd, niter=6, damp=damp, graph=graph, **options)
    assert result.execution == (REPLAYED if graph else "eager")
    assert result.x.engine.name == "cupy" and result.iterations == 6
    assert_close(result.x.gather().get(), expected.x.gather(), dtype, factor=10)
    assert_close(result.residual_norms, expected.residual_norms, dtype, factor=10)
    if solver is lsqr:
        assert_close(result.details["var"].gather().get(), expected.details["var"].gather(), dtype, factor=100)
        assert_close(result.details["acond"], expected.details["acond"], dtype, factor=1000)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("damp", [0.0, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_single_reduction_agrees_with_the_host(comm, dtype, damp, graph):
    host, y, device, yd = both(comm, dtype)
    expected = cgls(host, y, niter=6, damp=damp, tol=0)
    result = cgls(device, yd, niter=6, damp=damp, tol=0, graph=graph, reductions=1)
    assert result.execution == (REPLAYED if graph else "eager")
    assert_close(result.x.gather().get(), expected.x.gather(), dtype, factor=10)
    assert_close(result.residual_norms, expected.residual_norms, dtype, factor=10)


@pytest.mark.parametrize("reductions", [1, 2])
@pytest.mark.parametrize("graph", [True, False])
def test_cg(comm, graph, reductions):
    host, y, device, yd = both(comm, "f8")
    expected = cg(host.H @ host, host.H @ y, niter=6, damp=0.1, tol=0)
    result = cg(device.H @ device, device.H @ yd, niter=6, damp=0.1, tol=0, graph=graph, reductions=reductions)
    assert_close(result.x.gather().get(), expected.x.gather(), factor=10)
    assert_close(result.residual_norms, expected.residual_norms, factor=10)


def test_starting_model_images_and_stacks(comm):
    matrix = random_matrix(9, 6, "f4", comm.rank)
    stacks = []
    for local in (matrix, cupy.asarray(matrix)):
        op = VStack([local], comm, dims=(2, 3))
        stacked = StackedVStack([op, 2 * op])
        engine = "numpy" if local is matrix else "cupy"
        y = random(stacked.range, comm=comm, dtype="f4", engine=engine, seed=1)
        x0 = random(stacked.domain, comm=comm, dtype="f4", engine=engine, seed=2)
        stacks.append(cgls(stacked, y, x0, niter=6, damp=1.0, tol=0))
    expected, result = stacks
    assert result.execution == REPLAYED and result.x.shape == (2, 3)
    assert_close(result.x.gather().get(), expected.x.gather(), "f4", factor=10)


@pytest.mark.parametrize("options", [{}, {"damp": 0.5}, {"reductions": 1}, {"reductions": 1, "damp": 0.5}])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("dense_first", [True, False])
def test_squares_that_operators_know(comm, dense_first, dtype, options):
    """Kernels of a derivative add up squares, those of matrices do not; replayed and launched give the same bits."""
    layout = Layout.split(40 * comm.size + 3, comm.size)
    matrix = random_matrix(comm.rank + 5, layout.local_size(comm.rank), dtype, comm.rank)
    results = []
    for local in (matrix, cupy.asarray(matrix)):
        parts = [BlockDiag([local], comm), SecondDerivative(layout, edge=True, comm=comm, dtype=dtype)]
        op = StackedVStack(parts if dense_first else parts[::-1])
        engine = "numpy" if local is matrix else "cupy"
        y = random(op.range, comm=comm, dtype=dtype, engine=engine, seed=1)
        results += [
            cgls(op, y, niter=6, tol=0, graph=graph, **options) for graph in ([True, False] if results else [False])
        ]
    expected, replayed, launched = results
    assert replayed.execution == REPLAYED
    assert_same_bits(replayed, launched)
    assert_close(replayed.x.gather().get(), expected.x.gather(), dtype, factor=10)
    assert_close(replayed.residual_norms, expected.residual_norms, dtype, factor=10)


def test_stops_at_a_tolerance(comm):
    host, y, device, yd = both(comm, "f8")
    expected = cgls(host, y, niter=50, tol=1e-3)
    for options in ({}, {"graph": False}, {"lag": 0}, {"lag": 10}, {"graph": False, "lag": 10}):
        result = cgls(device, yd, niter=50, tol=1e-3, **options)
        assert result.status is Status.CONVERGED and result.iterations == expected.iterations
        assert_close(result.x.gather().get(), expected.x.gather())
        assert_close(result.residual_norms, expected.residual_norms)


ENDED_BY_A_TEST = {
    "cg": lambda op, y, **run: cg(op.H @ op, op.H @ y, niter=60, tol=1e-3, **run),
    "cgls to rounding": lambda op, y, **run: cgls(op, y, niter=200, tol=0, **run),
    "lsqr": lambda op, y, **run: lsqr(op, y, niter=60, atol=1e-3, btol=1e-3, calc_var=True, **run),
    "fista": lambda op, y, **run: fista(op, y, niter=200, tol=1e-3, eps=0.1, **run),
    "primal-dual": lambda op, y, **run: primal_dual(
        L1(0.3), L2(), op, op.H @ y, tau=0.1, mu=0.1, niter=300, tol=1e-2, **run
    ),
}


@pytest.mark.parametrize("name", ENDED_BY_A_TEST)
@pytest.mark.parametrize("graph", ["auto", False])
def test_iterations_after_the_one_that_passed_a_test_do_not_change_the_result(comm, name, graph):
    _, _, device, yd = both(comm, "f8")
    expected, result = (ENDED_BY_A_TEST[name](device, yd, graph=graph, lag=lag) for lag in (0, 3))
    assert result.status is expected.status is not Status.ITERATION_LIMIT
    assert result.iterations == expected.iterations
    assert_close(result.x.gather().get(), expected.x.gather().get())
    if name == "lsqr":
        assert_close(result.details["var"].gather().get(), expected.details["var"].gather().get())


def test_the_solution_is_the_iterate_that_passed_the_test(comm):
    """One step past the tolerance changes the solution of this nearly singular problem from 0.2 to 1e5."""
    matrix = np.ones((11, 11)) + 1e-5 * np.eye(11)
    data = np.tile(2.0 + np.linspace(-1, 1, 11), comm.size)
    whole = pylops.MatrixMult(scipy.linalg.block_diag(*[matrix] * comm.size))
    operator = BlockDiag([cupy.asarray(matrix)], comm)
    y = from_global(cupy.asarray(data), operator.range, comm=comm)
    for solver, serial in ((cg, pylops.optimization.basic.cg), (cgls, pylops.optimization.basic.cgls)):
        expected = serial(whole, data, niter=30, tol=1e-5)[0]
        for graph in (True, False):
            result = solver(operator, y, niter=30, tol=1e-5, graph=graph)
            np.testing.assert_allclose(result.x.gather().get(), expected, rtol=1e-6)


@pytest.mark.parametrize("reductions", [1, 2, "pipelined"])
def test_replays_count_their_messages(comm, reductions):
    _, _, device, yd = both(comm, "f4")
    counts = []
    for niter in (6, 9):
        with profile.count_messages() as sent:
            result = cgls(device, yd, niter=niter, tol=0, reductions=reductions, verify=False)
            assert result.execution == REPLAYED
        counts.append(sent)
    fewer, more = counts
    vectors, scalars = (
        [sum(m.elements in sizes for m in s.records) for s in counts] for sizes in ((device.domain.size,), (1, 2, 5))
    )
    if comm.size > 1:
        assert vectors[1] - vectors[0] == 3  # the model once in each iteration
        number = 2 if reductions == 2 else 1
        assert scalars[1] - scalars[0] == 3 * number
        assert more.total - fewer.total == 3 + 3 * number
        assert more["metadata"] == fewer["metadata"] == 1
    else:
        assert more.total == 0


def test_callbacks_between_replays(comm):
    _, _, device, yd = both(comm, "f8")
    seen = []

    def look(number, view):
        cupy.full(1000, np.nan)  # somebody else's memory
        inner = cgls(device, yd, niter=5, tol=0) if number == 3 else None
        seen.append((number, view.x.copy(), view.residual_norm, inner))
        return number == 5

    result = cgls(device, yd, niter=20, tol=0, callback=look)
    assert result.status is Status.STOPPED and result.iterations == 5 and result.execution == REPLAYED
    for number, x, norm, inner in seen:
        alone = cgls(device, yd, niter=number, tol=0, graph=False)
        assert_close(x.gather().get(), alone.x.gather().get())
        assert_close(norm, alone.residual_norms[-1])
        if inner is not None:
            assert inner.execution == REPLAYED
            assert_close(inner.x.gather().get(), cgls(device, yd, niter=5, tol=0, graph=False).x.gather().get())


def overdetermined(comm):
    """Return an operator for which solvers need tens of iterations, and data for it."""
    operator = VStack([cupy.asarray(random_matrix(70 + comm.rank, 40, "f8", comm.rank))], comm)
    y = random_matrix(operator.range.size, 1, "f8", 99)[:, 0]
    return operator, from_global(cupy.asarray(y), operator.range, comm=comm)


@pytest.fixture
def launches(monkeypatch):
    """How many iterations each launch has, from now on in groups as soon as possible; the start counts as one."""
    found = []
    advance = history.DeviceHistory.advance

    def counted(self, rows=1):
        found.append(rows)
        advance(self, rows)

    monkeypatch.setattr(history.DeviceHistory, "advance", counted)
    monkeypatch.setattr(execution, "_MIN_TO_GROUP", 0)
    return found


def assert_same_bits(result, expected):
    assert result.iterations == expected.iterations and result.status is expected.status
    np.testing.assert_array_equal(result.residual_norms, expected.residual_norms)
    np.testing.assert_array_equal(result.x.gather().get(), expected.x.gather().get())
    if "var" in expected.details:
        np.testing.assert_array_equal(result.details["var"].gather().get(), expected.details["var"].gather().get())


GROUPED = {
    "cg": (lambda A, y, tol, **run: cg(A.H @ A, A.H @ y, tol=tol, **run), 1e4, 1e-12),
    "cgls": (lambda A, y, tol, **run: cgls(A, y, tol=tol, **run), 1e4, 1e-12),
    "a single reduction": (lambda A, y, tol, **run: cgls(A, y, tol=tol, reductions=1, **run), 1e4, 1e-12),
    "lsqr": (lambda A, y, tol, **run: lsqr(A, y, atol=tol, btol=tol, calc_var=True, **run), 0.3, 1e-9),
    "fista": (lambda A, y, tol, **run: fista(A, y, tol=tol, eps=0.1, alpha=1e-3, **run), 1.0, 1e-6),
}
"""Solvers, a tolerance that they meet at once, and one that they meet after more than twelve iterations."""


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_replays_return_the_iterate_that_passed_the_test(comm, launches, name):
    operator, y = overdetermined(comm)
    solver, loose, tight = GROUPED[name]
    ends = set()
    for tol in np.geomspace(loose, tight, 40):
        launches.clear()
        result = solver(operator, y, tol, niter=60, graph=True)
        assert launches[3] == 3 and result.iterations < sum(launches) <= result.iterations + 6
        for options in ({"graph": True, "lag": 0}, {"graph": False}):
            assert_same_bits(result, solver(operator, y, tol, niter=60, **options))
        ends.add(result.iterations)
    assert {end % 3 for end in ends if 2 < end < 60} == {0, 1, 2}  # at all places of a group


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_replays_end_at_the_last_iteration(comm, launches, name):
    operator, y = overdetermined(comm)
    solver, *_ = GROUPED[name]
    for niter in range(5, 31):
        launches.clear()
        result = solver(operator, y, 1e-300, niter=niter, graph=True)
        assert launches[:4] == [1, 1, 1, 3] and sum(launches) <= niter + 1
        assert result.status is not Status.ITERATION_LIMIT or sum(launches) == niter + 1
        assert_same_bits(result, solver(operator, y, 1e-300, niter=niter, graph=False))


def test_groups_of_replays_count_their_messages(comm, launches):
    operator, y = overdetermined(comm)
    counts = []
    for graph in (True, False):
        with profile.count_messages() as sent, profile.record() as recording:
            solve(CGLS(tol=0, precision=0), operator, y, niter=21, graph=graph)
        counts.append([message for message in sent.records if message.operation != "metadata"])
        labels = [span.label for span in recording.spans]
        assert labels.count("3 CGLS iterations") == 6 * graph and labels.count("CGLS iteration") == (3 if graph else 21)
    assert counts[0] == counts[1]


def test_groups_are_replayed_in_long_runs(comm, launches, monkeypatch):
    """At once if no test can end the run, else after many iterations."""
    monkeypatch.setattr(execution, "_MIN_TO_GROUP", 100)
    operator, y = overdetermined(comm)
    solver, *_ = GROUPED["fista"]
    for tol, first in ((0, 3), (1e-300, 100)):
        launches.clear()
        result = solver(operator, y, tol, niter=300)
        assert launches.index(3) == first and sum(launches) == 301
        assert_same_bits(result, solver(operator, y, tol, niter=300, graph=False))


def test_those_who_look_after_each_iteration_get_single_replays(comm, launches, tmp_path):
    operator, y = overdetermined(comm)
    alone = cgls(operator, y, niter=14, tol=0, graph=False)
    seen = []
    options = {
        "callback": lambda number, view: seen.append((number, view.residual_norm)),
        "checkpoint": comm.allgather_metadata(str(tmp_path / "checkpoint"))[0],
    }
    for name, value in options.items():
        launches.clear()
        result = cgls(operator, y, niter=14, tol=0, graph=True, **{name: value})
        assert launches == [1] * 15
        assert_same_bits(result, alone)
    assert [number for number, _ in seen] == list(range(1, 15))
    np.testing.assert_array_equal([norm for _, norm in seen], alone.residual_norms[1:])


class RecordedTwice:
    """A local operator, a diagonal matrix, whose third call in recordings raises an error."""

    shape, dtype = (9, 9), np.dtype("f8")

    def __init__(self, diagonal) -> None:
        self.diagonal, self.recorded = diagonal, 0

    def forward_local(self, x, out):
        recorded = cupy.cuda.get_current_stream().is_capturing()
        self.recorded += recorded
        if recorded and self.recorded == 3:
            raise RuntimeError("not again")
        return cupy.multiply(x, self.diagonal, out=out)

    def adjoint_local(self, y, out):
        return cupy.multiply(y, self.diagonal, out=out)


def test_a_group_that_one_rank_cannot_record_is_replayed_step_by_step(comm, launches):
    diagonal = cupy.linspace(1, 2, 9)
    refuses = comm.rank == comm.size - 1
    local = RecordedTwice(diagonal) if refuses else cupy.diag(diagonal)
    op = BlockDiag([local], comm)
    y = random(op.range, comm=comm, engine="cupy", seed=3)
    result = cgls(op, y, niter=7, tol=0, graph=True)
    assert result.execution == REPLAYED and launches == [1] * 8
    assert not refuses or local.recorded == 3
    assert_same_bits(result, cgls(op, y, niter=7, tol=0, graph=False))


class ReadsOnHost:
    """A local operator that waits for the device, which a capture forbids."""

    def __init__(self, size: int) -> None:
        self.shape, self.dtype = (size, size), np.dtype("f8")

    def forward_local(self, x, out):
        out[...] = 2 * x
        float(out[0])
        return out

    adjoint_local = forward_local


def test_what_cannot_be_captured_is_launched(comm):
    # Only one rank cannot, and all of them launch.
    local = ReadsOnHost(5) if comm.rank == comm.size - 1 else cupy.asarray(2 * np.eye(5))
    op = BlockDiag([local], comm)
    y = random(op.range, comm=comm, engine="cupy")
    result = cgls(op, y, niter=8, tol=0)
    assert result.execution.startswith("eager: ") and len(result.execution) > len("eager: ")
    assert_close(result.x.gather().get(), y.gather().get() / 2)
    with pytest.raises(UnsupportedTypeError, match="cannot be recorded"):
        cgls(op, y, niter=8, tol=0, graph=True)
    # Nothing is left behind that would disturb others.
    _, _, device, yd = both(comm, "f8")
    assert cgls(device, yd, niter=6, tol=0).execution == REPLAYED
    assert float(cupy.arange(3).sum()) == 3
    assert not cupy.cuda.get_current_stream().is_capturing()


def test_what_says_that_it_cannot_be_captured(comm):
    local = lift_local(cupy.asarray(2 * np.eye(5)))

    class Refusing:
        shape, dtype, capturable = local.shape, local.dtype, False
        forward_local, adjoint_local = local.forward_local, local.adjoint_local

    op = BlockDiag([Refusing()] if comm.rank == 0 else [local], comm)
    y = random(op.range, comm=comm, engine="cupy")
    assert cgls(op, y, niter=8, tol=0).execution == "eager: BlockDiag cannot be captured"


def test_few_iterations_are_not_recorded(comm):
    _, _, device, yd = both(comm, "f4")
    assert cgls(device, yd, niter=3, tol=0).execution == "eager: 3 iterations are too few to record one"
    assert cgls(device, yd, niter=3, tol=0, graph=True).execution == REPLAYED


def test_results_are_ordered_on_the_callers_stream(comm):
    host, y, device, yd = both(comm, "f8")
    expected = cgls(host, y, niter=6, tol=0).x.gather()
    cupy.cuda.get_current_stream().synchronize()  # the default stream made the data
    with cupy.cuda.Stream(non_blocking=True):
        late = yd * 1.0
        result = cgls(device, late, niter=6, tol=0)
        doubled = result.x * 2
        assert_close(doubled.gather().get(), 2 * expected, factor=10)


def test_pylops_operators_of_device_arrays(comm):
    diagonal = np.linspace(1, 2, 50)
    op = BlockDiag([pylops.Diagonal(cupy.asarray(diagonal))], comm)
    y = random(op.range, comm=comm, engine="cupy")
    result = cgls(op, y, niter=40, tol=1e-24)
    assert_close(result.x.local_array.get(), y.local_array.get() / diagonal, factor=10)


def test_values_that_are_not_finite_stop_it(comm):
    _, _, device, yd = both(comm, "f8")
    if comm.rank == 0:
        yd.local_array[0] = np.nan
    with pytest.raises(NotFiniteError) as caught:
        cgls(device, yd, niter=30, tol=0)
    assert caught.value.iteration == 0 and caught.value.array == "residual"
    assert not caught.value.x.gather().any()


def test_no_memory_is_lost_by_repetition(comm):
    _, _, device, yd = both(comm, "f8")
    x = zeros(device.domain, comm=comm, engine="cupy")
    for number in range(30):
        x = cgls(device, yd, x, niter=5, tol=0).x
        if number == 5:
            before = cupy.cuda.runtime.memGetInfo()[0]
    assert before - cupy.cuda.runtime.memGetInfo()[0] <= 64 << 20


def test_solvers_that_fail_give_their_memory_back(comm):
    """Once the device has come to the end of their work; until then it stays as it is."""
    _, _, device, yd = both(comm, "f8")

    def fail(number, view):
        raise ZeroDivisionError

    def lanes():
        return len(execution._abandoned) + sum(map(len, execution._idle_lanes.values()))

    cgls(device, yd, niter=5, tol=0)
    cupy.cuda.Device().synchronize()
    before = lanes()
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            cgls(device, yd, niter=30, tol=0, callback=fail)
        assert len(execution._abandoned) == 1
        cupy.cuda.Device().synchronize()
    assert cgls(device, yd, niter=5, tol=0).execution == REPLAYED
    assert lanes() == before and not execution._abandoned


@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_a_block_of_columns(comm, dtype):
    """Launched or replayed: the eigenvalues of small matrices come from a library that may forbid recording."""
    host, y, device, on_device = both(comm, dtype)
    expected = block_cgls(host, [y, y * y], damp=0.3, niter=3, rtol=0)
    result = block_cgls(device, [on_device, on_device * on_device], damp=0.3, niter=3, rtol=0)
    assert result.x.engine.name == "cupy" and result.execution.startswith(("eager", REPLAYED))
    assert_close(result.x.gather().get(), expected.x.gather(), dtype, factor=10)
    np.testing.assert_allclose(result.residual_norms, expected.residual_norms, rtol=1e-4)


NEWER = {
    "lsmr": lambda A, y, **run: lsmr(A, y, niter=4, **run),
    "hybrid": lambda A, y, **run: hybrid_lsqr(A, y, niter=5, tol=0, **run),
    "gmres": lambda A, y, **run: gmres(A.H @ A, A.H @ y, niter=5, restart=3, rtol=0, **run),
    "flexible gmres": lambda A, y, **run: gmres(A.H @ A, A.H @ y, niter=4, rtol=0, flexible=True, **run),
    "bicgstab": lambda A, y, **run: bicgstab(A.H @ A, A.H @ y, niter=4, rtol=0, **run),
    "minres": lambda A, y, **run: minres(A.H @ A, A.H @ y, niter=5, rtol=0, **run),
    "L-BFGS": lambda A, y, **run: lbfgs(Cubic(A, y), 0 * (A.H @ y), niter=5, tol=0, **run),
    "Gauss-Newton": lambda A, y, **run: gauss_newton(Cubic(A, y), 0 * (A.H @ y), niter=3, tol=0, **run),
}


@pytest.mark.parametrize("name", NEWER)
def test_other_methods_agree_with_the_host(comm, name):
    host, y, device, y_there = both(comm, "f8")
    expected, found = NEWER[name](host, y), NEWER[name](device, y_there)
    assert found.iterations == expected.iterations
    assert_close(found.x.gather().get(), expected.x.gather(), factor=1e3)
    assert_close(found.residual_norms, expected.residual_norms, factor=1e3)
