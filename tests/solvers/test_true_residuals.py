"""A status of success holds for the residual that is computed from the solution, and that residual is reported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

from collops import profile
from collops.array import from_global, from_local
from collops.operators import CSRMatrix, Diagonal, LinearOperator, VStack
from collops.solvers import Status, bicgstab, block_cg, block_cgls, cg, cgls, gmres, hybrid_lsqr, lsmr, lsqr, minres

from .problems import assert_close, problem, random_matrix

REDUCTIONS = (1, 2, "pipelined")
SQUARE = {
    **{f"cg-{kind}": lambda A, y, kind=kind, **o: cg(A, y, reductions=kind, **o) for kind in REDUCTIONS},
    "minres": minres,
    "gmres": lambda A, y, **options: gmres(A, y, restart=80, **options),
    "bicgstab": bicgstab,
    "block_cg": lambda A, y, **options: block_cg(A, [y], **options),
}
LEAST_SQUARES = {
    **{f"cgls-{kind}": lambda A, y, kind=kind, **o: cgls(A, y, reductions=kind, **o) for kind in REDUCTIONS},
    "lsqr": lambda A, y, rtol, **o: lsqr(A, y, atol=rtol, btol=rtol, conlim=0, **o),
    "lsmr": lambda A, y, rtol, **o: lsmr(A, y, atol=rtol, btol=rtol, conlim=0, **o),
    "block_cgls": lambda A, y, **options: block_cgls(A, [y], **options),
}


def beam(n: int) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([1.0, -4.0, 6.0, -4.0, 1.0], offsets=[-2, -1, 0, 1, 2], shape=(n, n)))


@pytest.mark.parametrize("rtol", [1e-6, 1e-12])
@pytest.mark.parametrize("name", SQUARE)
def test_the_residual_is_the_one_of_the_solution(comm, name, rtol):
    """A clamped beam, condition 2e6: a tolerance that can be met, and one below rounding."""
    matrix = beam(80)
    op = CSRMatrix.from_global(matrix, comm=comm)
    load = np.ones(80)
    result = SQUARE[name](op, from_global(load, op.range, comm=comm), niter=4000, rtol=rtol)
    true = np.linalg.norm(load - matrix @ result.x.gather().reshape(-1)) / np.linalg.norm(load)
    if result.status is Status.CONVERGED:
        assert true <= 1.01 * rtol
    elif result.status.successful:
        assert result.status is Status.COMPATIBLE_TO_ROUNDING
        assert true <= 100 * np.finfo(float).eps * np.linalg.cond(matrix.toarray())
    if result.status.successful or result.status is Status.STAGNATED:
        np.testing.assert_allclose(result.residual_norms[-1] / np.linalg.norm(load), true, rtol=0.1, atol=1e-15)
    if rtol > 1e-9 and name != "bicgstab":
        assert result.status is Status.CONVERGED


@pytest.mark.parametrize("name", ["minres", "cg-2", "cg-pipelined", "block_cg"])
def test_single_precision_claims_nothing_that_it_cannot_have(comm, name):
    """With a condition number of 3e8 residuals by recurrences fall to 1e-5, while the true one exceeds the data."""
    matrix = beam(300)
    op = CSRMatrix.from_global(matrix.astype("f4"), comm=comm)
    load = np.ones(300, "f4")
    result = SQUARE[name](op, from_global(load, op.range, comm=comm), niter=3000, rtol=1e-5)
    true = np.linalg.norm(load - matrix @ result.x.gather().reshape(-1).astype(float)) / np.linalg.norm(load)
    assert not result.status.successful or true <= 1e-2


@pytest.mark.parametrize("damp", [0.0, 1e-3])
@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_the_gradient_is_the_one_of_the_solution(comm, name, damp):
    rows = 12 * comm.size
    matrix = random_matrix(rows, 8, "f8", 3) * np.logspace(0, -4, 8)
    op = VStack([np.split(matrix, comm.size)[comm.rank]], comm)
    data = random_matrix(rows, 1, "f8", 4)[:, 0]
    result = LEAST_SQUARES[name](op, from_global(data, op.range, comm=comm), niter=600, rtol=1e-7, damp=damp)
    x = result.x.gather().reshape(-1)
    residual = data - matrix @ x
    gradient = np.linalg.norm(matrix.T @ residual - damp**2 * x)
    assert result.status.successful
    assert gradient <= 1e-4 * np.linalg.norm(matrix.T @ data)
    expected = np.linalg.norm(residual)
    if name == "block_cgls":
        expected = np.hypot(expected, damp * np.linalg.norm(x))
    np.testing.assert_allclose(result.residual_norms[-1], expected, rtol=1e-7)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("shape", "rank"), [((30, 20), 12), ((20, 30), 12), ((25, 25), 15)])
def test_singular_systems_have_the_smallest_solution(comm, shape, rank, dtype):
    """Also where no tolerance can be met: rounding errors in the null space do not grow."""
    for seed in range(3):
        matrix = random_matrix(shape[0], rank, dtype, seed) @ random_matrix(rank, shape[1], dtype, seed + 10)
        parts = np.array_split(np.arange(shape[0]), comm.size)
        op = VStack([matrix[parts[comm.rank]]], comm)
        data = random_matrix(shape[0], 1, dtype, seed + 20)[:, 0]
        y = from_global(data, op.range, comm=comm)
        for damp in (0.0, 0.1):
            left, s, right = np.linalg.svd(matrix.astype(float))
            weights = s[:rank] / (s[:rank] ** 2 + damp**2)
            exact = right[:rank].T @ (weights * (left[:, :rank].T @ data))
            for solver in (lsqr, lsmr):
                for options in ({}, {"atol": 0, "btol": 0, "conlim": 0}):
                    result = solver(op, y, niter=200, damp=damp, **options)
                    x = result.x.gather().astype(float)
                    assert result.status.successful and result.iterations < 40
                    assert_close(x, exact, dtype, factor=10 if options or dtype == "f4" else 1e7)
                    np.testing.assert_allclose(result.residual_norms[-1], np.linalg.norm(data - matrix @ x), rtol=1e-5)


class Drifting(LinearOperator):
    """An operator that is right in few products, as if recurrences had lost the residual in the others."""

    capturable = False

    def __init__(self, operator, wrong: set[int], factor: float = 1.5) -> None:
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self._operator, self._wrong, self._factor, self.products = operator, wrong, factor, 0

    def _forward(self, x, out):
        self.products += 1
        image = self._operator._forward(x, out)
        return image * self._factor if self.products in self._wrong else image

    def _adjoint(self, y, out):
        return self._operator._adjoint(y, out)


OTHERS = {
    "hybrid_lsqr": lambda A, y, rtol, **o: hybrid_lsqr(A, y, tol=rtol, **o),
    "lsqr-conlim": lambda A, y, rtol, **o: lsqr(A, y, atol=rtol, btol=rtol, conlim=2.5, **o),
    "lsmr-conlim": lambda A, y, rtol, **o: lsmr(A, y, atol=rtol, btol=rtol, conlim=1.5, **o),
}


# The others update a residual vector, and save the product.
MEASURED = [name for name in (*SQUARE, *LEAST_SQUARES, *OTHERS) if not name.startswith(("cg-1", "cg-2", "cgls-"))]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", MEASURED)
def test_the_last_residual_is_computed_whatever_the_status(comm, name, stopped):
    exact = Diagonal(np.linspace(1.0, 3.0, 12), comm=comm)
    y = exact @ from_global(np.ones(12), exact.domain, comm=comm)
    solver, wrong = (SQUARE | LEAST_SQUARES | OTHERS)[name], {2} if name.endswith("conlim") else {4}
    options = {"callback": lambda iteration, _: iteration == 6} if stopped else {}
    result, recurrence = (
        solver(Drifting(exact, wrong), y, niter=10 if stopped else 6, rtol=1e-12, verify=verify, **options)
        for verify in (True, False)
    )
    limit = Status.STOPPED if stopped else Status.ITERATION_LIMIT
    assert result.status is recurrence.status is (Status.ILL_CONDITIONED if name.endswith("conlim") else limit)
    expected = np.linalg.norm(np.linspace(1.0, 3.0, 12) * (1 - result.x.gather().reshape(-1)))
    np.testing.assert_allclose(result.residual_norms[-1], expected, rtol=1e-9)
    assert abs(recurrence.residual_norms[-1] - expected) > 0.01 * expected
    np.testing.assert_array_equal(result.residual_norms[:-1], recurrence.residual_norms[:-1])


@pytest.mark.parametrize("name", ["cg-2", "minres", "gmres", "bicgstab", "block_cg", "cgls-2"])
def test_a_solver_begins_anew_where_the_residual_was_lost(comm, name):
    exact = Diagonal(np.linspace(1.0, 3.0, 12), comm=comm)
    options = {"niter": 200, "rtol": 1e-8, **({"gtol": 1e-8} if name.startswith("cgls") else {})}
    y = exact @ from_global(np.ones(12), exact.domain, comm=comm)
    result = (SQUARE | LEAST_SQUARES)[name](Drifting(exact, {4}), y, **options)
    assert result.status is Status.CONVERGED
    assert_close(result.x.gather().reshape(-1), np.ones(12), factor=1e9)
    again = (SQUARE | LEAST_SQUARES)[name](Drifting(exact, {4}), y, verify=False, **options)
    assert again.iterations < result.iterations
    assert np.abs(again.x.gather().reshape(-1) - 1).max() > 1e-4


@pytest.mark.parametrize("name", ["cg-2", "minres", "bicgstab", "cgls-2"])
def test_restarts_are_bounded(comm, name):
    """Every second operator is another one, so that no residual is what it seems."""

    @dataclass
    class Wrong:
        def __contains__(self, number: int) -> bool:
            return number % 3 == 0

    exact = Diagonal(np.linspace(1.0, 3.0, 12), comm=comm)
    y = exact @ from_global(np.ones(12), exact.domain, comm=comm)
    result = (SQUARE | LEAST_SQUARES)[name](Drifting(exact, Wrong()), y, niter=3000, rtol=1e-8)  # type: ignore[arg-type]
    assert not result.status.successful


def test_damped_lsqr_does_not_restart_from_another_start(comm):
    exact = Diagonal(np.linspace(1.0, 3.0, 12), comm=comm)
    y = exact @ from_global(np.ones(12), exact.domain, comm=comm)
    for solver in (lsqr, lsmr):
        result, unchecked = (
            solver(Drifting(exact, {4}), y, niter=200, damp=0.5, verify=each) for each in (True, False)
        )
        assert result.status is Status.STAGNATED and not result.status.successful
        assert result.iterations == unchecked.iterations


def test_the_check_costs_one_product_at_the_end(comm):
    exact = Diagonal(np.linspace(1.0, 3.0, 12), comm=comm)
    y = exact @ from_global(np.ones(12), exact.domain, comm=comm)
    counts = {}
    for verify in (True, False):
        op = Drifting(exact, set())
        with profile.count_messages() as sent:
            result = cg(op, y, niter=50, rtol=1e-5, verify=verify)
        counts[verify] = op.products, sent["allreduce"], result.iterations
    assert counts[True][0] == counts[False][0] + 1 and counts[True][2] == counts[False][2]
    assert counts[True][1] == counts[False][1] + (comm.size > 1)


def test_results_without_a_tolerance_are_not_checked(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    wrapped = Drifting(op, set())
    cgls(wrapped, yd, niter=2, rtol=0, gtol=0)
    assert wrapped.products == 2


def test_a_limit_after_a_restart_reports_the_solution_there(comm):
    """Without tolerances nothing is computed at the limit: its residual is not the one before the restart."""
    exact = Diagonal(np.linspace(1.0, 3.0, 12), comm=comm)
    y = exact @ from_global(np.ones(12), exact.domain, comm=comm)
    ended = cg(Drifting(exact, {4}), y, niter=200, tol=0, verify=False).iterations
    result = cg(Drifting(exact, {4}), y, niter=ended + 3, tol=0)
    assert result.status is Status.ITERATION_LIMIT
    expected = float((y - exact @ result.x).norm())
    np.testing.assert_allclose(result.residual_norms[-1], expected, rtol=1e-6)
    assert result.residual_norms[-1] < 0.1 * result.residual_norms[ended]


def test_a_limit_at_the_solution_is_success(comm):
    """GMRES overestimates the residual of the last vector that a space can have; the solution itself is accurate."""
    matrix = random_matrix(12, 12, "f8", 3)
    op = CSRMatrix.from_global(sp.csr_array(matrix), comm=comm)
    y = from_global(np.ones(12), op.range, comm=comm)
    result = gmres(op, y, niter=12, rtol=1e-12)
    assert result.status is Status.CONVERGED and result.iterations == 12
    stopped = gmres(op, y, niter=20, rtol=1e-12, callback=lambda iteration, _: iteration == 12)
    assert stopped.status is Status.STOPPED


def test_a_checkpoint_after_a_restart_can_be_resumed(comm, tmp_path):
    folder = comm.allgather_metadata(str(tmp_path / "checkpoints"))[0]
    matrix = beam(80)
    op = CSRMatrix.from_global(matrix, comm=comm)
    y = from_global(np.ones(80), op.range, comm=comm)
    whole = minres(op, y, niter=3000, rtol=1e-9)
    for niter, resume in ((whole.iterations // 2, False), (3000, True)):
        result = minres(op, y, niter=niter, rtol=1e-9, checkpoint=folder, every=50, resume=resume)
    assert (result.status, result.iterations) == (whole.status, whole.iterations)
    np.testing.assert_array_equal(result.x.gather(), whole.x.gather())


@pytest.mark.parametrize("verify", [True, False])
def test_numbers_of_the_bidiagonalisation(comm, verify):
    """All numbers of LSQR and LSMR with a start and a damping, computed or by recurrence, by dense algebra."""
    rows, damp = 9 * comm.size, 0.7
    matrix = random_matrix(rows, 5, "c16", 3)
    op = VStack([np.split(matrix, comm.size)[comm.rank]], comm)
    data, start = random_matrix(rows, 1, "c16", 4)[:, 0], 3 * random_matrix(5, 1, "c16", 5)[:, 0]
    y, x0 = from_global(data, op.range, comm=comm), from_local(start, op.domain)
    for solver, damped in ((lsqr, "r2norm"), (lsmr, "rnorm")):
        for niter in (3, 50):  # in the midst, and at the end
            result = solver(op, y, x0, niter=niter, damp=damp, verify=verify)
            x = np.asarray(result.x.local_array)
            residual = data - matrix @ x
            expected = {
                "r1norm": np.linalg.norm(residual),
                damped: np.hypot(np.linalg.norm(residual), damp * np.linalg.norm(x - start)),
                "xnorm": np.linalg.norm(x),
            }
            for key, value in expected.items():
                np.testing.assert_allclose(result.details[key], value, rtol=1e-9)
            gradient = np.linalg.norm(matrix.conj().T @ residual - damp**2 * (x - start))
            np.testing.assert_allclose(result.details["arnorm"], gradient, rtol=1e-6, atol=1e-12)
            np.testing.assert_allclose(result.residual_norms[-1], expected["r1norm"], rtol=1e-9)
            if niter == 50:
                inverse = np.linalg.inv(matrix.conj().T @ matrix + damp**2 * np.eye(5))
                exact = start + inverse @ matrix.conj().T @ (data - matrix @ start)
                np.testing.assert_allclose(x, exact, rtol=1e-6)
