"""CGLS against serial PyLops and against exact solutions."""

from __future__ import annotations

import numpy as np
import pytest
from pylops.optimization import basic

from collops import profile
from collops.array import StackedArray, from_global, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockDiag, StackedVStack, VStack
from collops.solvers import CGLS, Status, cgls, solve
from collops.solvers.variants.single_reduction import SingleReductionCGLS

from .problems import VARIETY, assert_close, problem, random_matrix, start

KINDS = ["vstack", "hstack", "block_diag"]


@pytest.mark.parametrize("reductions", [1, 2, "pipelined"])
@pytest.mark.parametrize("damp", [0.0, 0.7])
@pytest.mark.parametrize(("kind", "dtype"), VARIETY)
def test_iterates_are_those_of_pylops(comm, kind, damp, dtype, reductions):
    op, serial, y, yd = problem(kind, comm, dtype)
    result = cgls(op, yd, niter=4, damp=damp, tol=0, reductions=reductions)
    x, _, iterations, _, _, cost = basic.cgls(serial, y, niter=4, damp=damp, tol=0)
    assert result.iterations == iterations == 4
    assert result.x.dtype == np.dtype(dtype) and result.x.layout is op.domain
    assert_close(result.x.gather(), x, dtype)
    assert_close(result.residual_norms, cost, dtype)
    assert result.status is Status.ITERATION_LIMIT and not result.status.successful


@pytest.mark.parametrize("damp", [0.0, 1.0])  # other factors: PyLops does not square the first one
@pytest.mark.parametrize(("kind", "reductions"), [(KINDS[0], 2), (KINDS[1], 1), (KINDS[2], "pipelined")])
def test_starting_model(comm, kind, reductions, damp):
    op, serial, y, yd = problem(kind, comm, "f8")
    x0, x0d = start(op, comm, "f8")
    result = cgls(op, yd, x0d, niter=4, damp=damp, tol=0, reductions=reductions)
    x, *_, cost = basic.cgls(serial, y, x0=x0, niter=4, damp=damp, tol=0)
    assert_close(result.x.gather(), x)
    assert_close(result.residual_norms, cost)
    assert_close(x0d.gather(), x0)


def test_starting_model_with_damping_reaches_the_minimum(comm):
    op, serial, y, yd = problem("vstack", comm, "c16")
    _, x0d = start(op, comm, "c16")
    whole = serial.A
    exact = np.linalg.solve(whole.conj().T @ whole + 0.3**2 * np.eye(6), whole.conj().T @ y)
    assert_close(cgls(op, yd, x0d, niter=6, damp=0.3, tol=0).x.gather(), exact)


def test_stops_where_pylops_stops(comm):
    op, serial, y, yd = problem("vstack", comm, "f8")
    stops = [{"tol": tol} for tol in (1e30, 1.0, 1e-3, 1e-20)]
    # The data do not fit: how far the residual can fall depends on the number of ranks.
    cost = basic.cgls(serial, y, niter=4, tol=0)[-1]
    third = (cost[2] + cost[3]) / 2 / cost[0]
    stops += [{"rtol": third, "tol": 0}, {"rtol1": third, "tol": 0}, {"rtol1": 0.999, "tol": 0}]
    for stop in stops:
        # Our rtol is relative to the data, and so is PyLops' rtol1.
        result = cgls(op, yd, niter=50, **{name.rstrip("1"): value for name, value in stop.items()})
        x, _, iterations, *_ = basic.cgls(serial, y, niter=50, **stop)
        assert result.iterations == iterations
        assert result.status is Status.CONVERGED and result.status.successful
        assert len(result.residual_norms) == iterations + 1
        assert_close(result.x.gather(), x)


def test_exact_data_and_no_data(comm):
    op, serial, _, _ = problem("vstack", comm, "f8")
    truth = random_matrix(6, 1, "f8", 5)[:, 0]
    exact = from_global(serial @ truth, op.range, comm=comm)
    result = cgls(op, exact, niter=30, tol=0)  # goes on long after it has arrived
    assert_close(result.x.gather(), truth)
    nothing = cgls(op, 0 * exact, niter=3, tol=0)
    assert nothing.status is Status.CONVERGED and nothing.iterations == 0
    assert_close(nothing.x.gather(), np.zeros(6))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize(("damp", "reductions"), [(0.0, 2), (0.3, 2), (0.0, 1), (0.3, 1), (0.3, "pipelined")])
@pytest.mark.parametrize("compatible", [False, True])
def test_ends_where_only_rounding_is_left(comm, compatible, damp, reductions, dtype):
    """Beyond that, squares of rounding errors would grow until they are infinite."""
    op, serial, y, yd = problem("hstack", comm, dtype)
    if compatible:
        y = serial.A @ start(op, comm, dtype)[0]
        yd = from_global(y, op.range, comm=comm)
    result = cgls(op, yd, niter=20000, damp=damp, tol=0, reductions=reductions)
    wanted = Status.COMPATIBLE_TO_ROUNDING if compatible and not damp else Status.LEAST_SQUARES_TO_ROUNDING
    assert result.status is wanted and result.status.successful
    assert result.iterations < 10 * y.size
    matrix = serial.A.astype("c16")
    normal = matrix.conj().T @ matrix + damp**2 * np.eye(op.domain.size)
    assert_close(result.x.gather(), np.linalg.solve(normal, matrix.conj().T @ y), dtype)
    assert cgls(op, yd, result.x, niter=20000, damp=damp, tol=0).iterations < 10 * y.size


def test_real_data_of_a_complex_operator(comm):
    op, serial, y, _ = problem("vstack", comm, "c16")
    result = cgls(op, from_global(y.real.copy(), op.range, comm=comm), niter=4, tol=0)
    x, *_ = basic.cgls(serial, y.real.astype("c16"), niter=4, tol=0)
    assert result.x.dtype == np.complex128
    assert_close(result.x.gather(), x)


def test_complex_data_of_a_real_operator(comm):
    op, serial, y, _ = problem("block_diag", comm, "f8")
    y = y * (1 + 2j)
    result = cgls(op, from_global(y, op.range, comm=comm), niter=4, tol=0)
    x, *_ = basic.cgls(serial, y, niter=4, tol=0)
    assert_close(result.x.gather(), x)


def test_images(comm):
    matrix = random_matrix(8, 6, "f8", comm.rank)
    flat, image = VStack([matrix], comm), VStack([matrix], comm, dims=(2, 3))
    y = from_global(random_matrix(8 * comm.size, 1, "f8", 3)[:, 0], flat.range, comm=comm)
    result = cgls(image, y, niter=3, damp=0.1)
    assert result.x.shape == (2, 3)
    assert_close(result.x.gather().ravel(), cgls(flat, y, niter=3, damp=0.1).x.gather())


@pytest.mark.parametrize("reductions", [1, 2, "pipelined"])
def test_stacked_data(comm, reductions):
    op, serial, y, yd = problem("vstack", comm, "f8")
    stacked = StackedVStack([op, 2 * op])
    result = cgls(stacked, StackedArray([yd, yd]), niter=4, tol=0, reductions=reductions)
    whole = np.vstack([serial.A, 2 * serial.A])
    from pylops import MatrixMult

    x, *_, cost = basic.cgls(MatrixMult(whole), np.concatenate([y, y]), niter=4, tol=0)
    assert_close(result.x.gather(), x)
    assert_close(result.residual_norms, cost)


@pytest.mark.parametrize("reductions", [2, "pipelined"])
def test_masks_solve_one_problem_per_group(comm, reductions):
    mask = [rank % 2 for rank in range(comm.size)]
    op = VStack([random_matrix(8, 5, "f8", comm.rank)], comm, mask=mask)
    y = zeros(op.range, comm=comm)
    y.local_array[...] = random_matrix(8, 1, "f8", 50 + comm.rank)[:, 0]
    # One group finishes before the other, and nobody waits for it.
    result = cgls(op, y, niter=5 + mask[comm.rank], tol=0, reductions=reductions)
    members = [rank for rank in range(comm.size) if mask[rank] == mask[comm.rank]]
    whole = np.vstack([random_matrix(8, 5, "f8", rank) for rank in members])
    data = np.concatenate([random_matrix(8, 1, "f8", 50 + rank)[:, 0] for rank in members])
    assert_close(result.x.local_array, np.linalg.lstsq(whole, data)[0], factor=100)


def messages_of_one_iteration(solver, op, y, **options):
    counts = []
    for niter in (2, 3):
        with profile.count_messages() as sent:
            solver(op, y, niter=niter, verify=False, **options)
        counts.append(sent)
    fewer, more = counts
    assert more["metadata"] == more["split"] == more["bcast"] == 0
    extra = list(more.records)
    for message in fewer.records:
        extra.remove(message)
    return extra


@pytest.mark.parametrize("damp", [0.0, 0.5])
def test_messages(comm, damp):
    op, _, _, yd = problem("vstack", comm, "f8")
    sent = messages_of_one_iteration(cgls, op, yd, damp=damp, tol=0)
    vectors = [message for message in sent if message.elements == op.domain.size]
    scalars = [message for message in sent if message.elements <= 2]
    assert all(message.operation == "allreduce" for message in sent)
    assert (len(vectors), len(scalars), len(sent)) == ((1, 2, 3) if comm.size > 1 else (0, 0, 0))
    diagonal, _, _, yd = problem("block_diag", comm, "f8")
    sent = messages_of_one_iteration(cgls, diagonal, yd, damp=damp, tol=0)
    assert [message.operation for message in sent] == ["allreduce"] * (2 if comm.size > 1 else 0)
    assert all(message.elements <= 2 for message in sent)


@pytest.mark.parametrize("damp", [0.0, 0.5])
def test_without_tolerances_a_replicated_model_needs_one_message(comm, damp):
    op, _, _, yd = problem("vstack", comm, "f8")
    method = CGLS(damp=damp, tol=0.0, precision=0.0)
    sent = messages_of_one_iteration(lambda op, y, **run: solve(method, op, y, **run), op, yd)
    scalars = [message.elements for message in sent if message.elements <= 4 and message.elements != op.domain.size]
    assert scalars == ([3] if comm.size > 1 else [])
    assert len(sent) == (2 if comm.size > 1 else 0)
    result = solve(method, op, yd, niter=6)
    usual = cgls(op, yd, niter=6, damp=damp, tol=0.0, verify=False)
    np.testing.assert_allclose(result.residual_norms, usual.residual_norms, rtol=1e-12)
    np.testing.assert_allclose(result.details["gradient_norm"], usual.details["gradient_norm"], rtol=1e-9)
    np.testing.assert_allclose(result.x.gather(), usual.x.gather(), rtol=1e-9)


@pytest.mark.parametrize("damp", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_reduction(comm, kind, damp):
    op, _, _, yd = problem(kind, comm, "f8")
    sent = messages_of_one_iteration(cgls, op, yd, damp=damp, tol=0, reductions=1)
    scalars = [message.elements for message in sent if message.elements <= 7 and message.elements != op.domain.size]
    assert scalars == ([7 if damp else 5] if comm.size > 1 else [])
    vectors = 0 if comm.size == 1 or kind == "block_diag" else 1
    assert len(sent) == len(scalars) + vectors


def ill_conditioned(kind: str, condition: float, dtype: str) -> np.ndarray:
    """Return a matrix with about this condition number: part of Hilbert's, or with a spectrum of equal steps."""
    generator = np.random.default_rng(3)
    if kind == "hilbert":
        columns = {1e2: 3, 1e4: 4, 1e6: 5, 1e8: 7, 1e10: 8}[condition]
        return (1 / (np.arange(60)[:, None] + np.arange(columns) + 1.0)).astype(dtype)
    left, _ = np.linalg.qr(generator.standard_normal((60, 40)))
    right, _ = np.linalg.qr(generator.standard_normal((40, 40)))
    return ((left * np.linspace(1, 1 / condition, 40)) @ right).astype(dtype)


def smallest_gradient(method, op, exact, data, dtype) -> tuple[float, int]:
    """Return the smallest gradient of an iterate, or rounding errors of one, and the iteration that comes near it."""
    iterates = []
    y = from_global(data, op.range, comm=op.comm)
    solve(method, op, y, niter=250, callback=lambda _, view: iterates.append(view.x.gather()))
    gradients = [np.linalg.norm(exact.T @ (data - exact @ x)) for x in iterates]
    best = max(np.finfo(dtype).eps * np.linalg.norm(data) * np.linalg.norm(exact, 2), min(gradients))
    return best, next(n for n, value in enumerate(gradients, 1) if value <= 2 * best)


@pytest.mark.serial
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6, 1e8, 1e10])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["hilbert", "random"])
def test_a_single_reduction_is_as_accurate(comm, kind, dtype, condition, noise):
    """In the median the smallest gradient is at most 10 times as large, after at most 4 times as many iterations."""
    if dtype == "f4" and condition > 1e6:
        pytest.skip("below the rounding of single precision")
    generator = np.random.default_rng(5)
    matrix = ill_conditioned(kind, condition, dtype)
    exact = matrix.astype("f8")
    op = VStack([np.array_split(matrix, comm.size)[comm.rank]], comm)
    ratios = []
    for _ in range(15):
        data = exact @ generator.standard_normal(exact.shape[1])
        data = (data + noise * np.linalg.norm(data) / 8 * generator.standard_normal(60)).astype(dtype)
        one, two = (
            smallest_gradient(method(tol=0.0, precision=0.0), op, exact, data, dtype)
            for method in (SingleReductionCGLS, CGLS)
        )
        ratios.append(np.divide(one, two))
    gradient, iterations = np.median(ratios, axis=0)
    assert gradient <= 10 and iterations <= 4, (gradient, iterations)


def test_options_are_checked(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    for options in (
        {"niter": -1},
        {"niter": 1.5},
        {"damp": -1.0},
        {"tol": float("nan")},
        {"damp": "x"},
        {"graph": "yes"},
        {"lag": -1},
        {"reductions": 3},
        {"reductions": "overlapped"},
    ):
        with pytest.raises(InputError, match=next(iter(options))):
            cgls(op, yd, **options)
    with pytest.raises(LayoutError, match="y must have the layout"):
        cgls(op, zeros(op.domain, comm=comm))
    with pytest.raises(LayoutError, match="x0 must have the layout"):
        cgls(op, yd, yd)
    with pytest.raises(UnsupportedTypeError, match="y must be a distributed array"):
        cgls(op, np.ones(3))
    with pytest.raises(UnsupportedTypeError, match="VStack or BlockDiag"):
        cgls(np.eye(3), yd)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedTypeError, match="graph=True"):
        cgls(op, yd, graph=True)


def test_half_precision_and_integers(comm):
    op = BlockDiag([np.diag(np.arange(1, 4)).astype("f2")], comm)
    y = zeros(op.range, comm=comm, dtype="f2") + np.float16(1)
    result = cgls(op, y, niter=3, tol=0)
    assert result.x.dtype == np.float16
    assert_close(result.x.local_array.astype("f4"), 1 / np.arange(1, 4), "f2")
    whole = cgls(BlockDiag([np.diag([1, 2, 3])], comm), y.astype("i4"), niter=3, tol=0)
    assert whole.x.dtype == np.float64
    assert_close(whole.x.local_array, 1 / np.arange(1, 4))
