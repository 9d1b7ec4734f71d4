"""Hybrid LSQR against Tikhonov's solutions from a dense singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import collops
from collops import profile
from collops.array import from_global
from collops.errors import InputError
from collops.operators import VStack
from collops.solvers import Status, hybrid_lsqr

from .problems import assert_close, problem, random_matrix, start

KINDS = [("vstack", "f8"), ("vstack", "c16"), ("hstack", "c16"), ("block_diag", "f8"), ("vstack", "f4")]


def tikhonov(matrix: np.ndarray, data: np.ndarray, damp: float) -> np.ndarray:
    return np.linalg.solve(matrix.conj().T @ matrix + damp**2 * np.eye(matrix.shape[1]), matrix.conj().T @ data)


def by_cross_validation(matrix: np.ndarray, data: np.ndarray) -> float:
    """Return the damping factor that minimises Lukas' function, from the matrix that maps data to fitted data."""
    n = len(data)

    def score(log: float) -> float:
        hat = matrix @ np.linalg.pinv(np.vstack([matrix, np.exp(log) * np.eye(matrix.shape[1])]))[:, :n]
        fit = n * np.linalg.norm(data - hat @ data) ** 2 / np.trace(np.eye(n) - hat).real ** 2
        return float(fit * (0.1 + 0.9 * np.trace(hat @ hat).real / n))

    trials = np.linspace(-6, 4, 60)
    best = trials[np.argmin([score(log) for log in trials])]
    return float(np.exp(scipy.optimize.minimize_scalar(score, bounds=(best - 0.2, best + 0.2), method="bounded").x))


def gravity(comm, seed=1):
    """Masses at a depth and their attraction, with noise of 1 %: singular values fall by many decades."""
    n, depth = 80, 0.25
    place = (np.arange(n) + 0.5) / n
    matrix = depth / (depth**2 + (place[:, None] - place) ** 2) ** 1.5 / n
    truth = np.sin(np.pi * place) + 0.5 * np.sin(2 * np.pi * place)
    noise = np.random.default_rng(seed).standard_normal(n)
    noise *= 0.01 * np.linalg.norm(matrix @ truth) / np.linalg.norm(noise)
    rows = np.array_split(matrix, comm.size + 1)
    mine = [*rows[:2]] if comm.rank == 0 else [rows[comm.rank + 1]]
    return matrix, truth, noise, VStack(mine, comm)


@pytest.mark.parametrize("with_start", [False, True])
@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_the_last_iterate_is_tikhonovs_solution(comm, kind, dtype, with_start):
    """After as many iterations as there are unknowns, the small problem is the whole one."""
    op, serial, noise, noise_d = problem(kind, comm, dtype)
    x0, x0d = start(op, comm, dtype) if with_start else (None, None)
    double = "c16" if np.dtype(dtype).kind == "c" else "f8"
    matrix = serial.A.astype(double)
    model = random_matrix(matrix.shape[1], 1, dtype, 7)[:, 0]
    y, yd = matrix @ model + 0.1 * noise, op @ from_global(model, op.domain, comm=comm) + 0.1 * noise_d
    shift = 0 * model if x0 is None else x0
    result = hybrid_lsqr(op, yd, x0d, niter=matrix.shape[1], tol=0)
    assert result.x.dtype == np.dtype(dtype)
    rest = y - matrix @ shift
    np.testing.assert_allclose(result.details["damp"], by_cross_validation(matrix, rest), rtol=1e-3)
    expected = shift + tikhonov(matrix, rest, result.details["damp"])
    assert_close(result.x.gather(), expected, dtype, factor=1e3)
    assert_close(result.residual_norms[-1], np.linalg.norm(y - matrix @ expected), dtype, factor=1e3)


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_the_error_is_as_small_as_damping_can_make_it(comm, seed):
    """Also where plain cross-validation fits noise, with errors five and 2500 times as large (seeds 1 and 6)."""
    matrix, truth, noise, op = gravity(comm, seed)
    y = from_global(matrix @ truth + noise, op.range, comm=comm)
    result = hybrid_lsqr(op, y)
    assert result.status is Status.CONVERGED and result.iterations < 20

    def error(x):
        return np.linalg.norm(x - truth)

    best = min(error(tikhonov(matrix, matrix @ truth + noise, damp)) for damp in np.geomspace(1e-3, 10, 80))
    more = hybrid_lsqr(op, y, niter=40, tol=0)  # further iterations do no harm, as they do without damping
    undamped = collops.lsqr(op, y, niter=40, atol=0, btol=0)
    assert max(error(result.x.gather()), error(more.x.gather())) < 1.25 * best < error(undamped.x.gather()) / 2


def test_the_basis_stays_orthonormal(comm):
    """One pass of Gram and Schmidt's classical method would lose six digits in twenty iterations."""
    matrix, truth, noise, op = gravity(comm)
    y = from_global(matrix @ truth + noise, op.range, comm=comm)
    defects = []

    def watch(_, view):
        basis = np.array([vector.local_array for vector in view.state.basis.arrays[: view.state.k]])
        found = basis.any(axis=1)  # vectors after the last one of the space are zero
        defects.append(np.abs(basis @ basis.T - np.diag(found)).max())

    hybrid_lsqr(op, y, niter=80, tol=0, callback=watch)
    assert len(defects) >= 40 and max(defects) < 1e-13


def test_known_noise(comm):
    matrix, truth, noise, op = gravity(comm)
    y = from_global(matrix @ truth + noise, op.range, comm=comm)
    size = float(np.linalg.norm(noise))
    result = hybrid_lsqr(op, y, noise=size)
    np.testing.assert_allclose(result.residual_norms[-1], size, rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(y.gather() - matrix @ result.x.gather()), size, rtol=1e-9)
    # Noise as large as the data leaves nothing to explain; no noise, no damping.
    nothing, all_of_it = (hybrid_lsqr(op, y, noise=each, niter=5) for each in (float(y.norm()), 0.0))
    assert float(nothing.x.norm()) < 1e-6 < 0.1 < float(all_of_it.x.norm())
    with pytest.raises(InputError, match="noise must be a finite number of at least 0"):
        hybrid_lsqr(op, y, noise=-1.0)


def test_messages(comm):
    op, _, _, yd = problem("block_diag", comm, "f8")
    counts = []
    for niter in (2, 3):
        with profile.count_messages() as sent:
            hybrid_lsqr(op, yd, niter=niter, tol=0)
        counts.append(sent)
    extra = list(counts[1].records)
    for message in counts[0].records:
        extra.remove(message)
    allreduces = sorted(message.elements for message in extra if message.operation == "allreduce")
    others = sorted(message.operation for message in extra if message.operation != "allreduce")
    assert (allreduces, others) == ([1, 4, 4] if comm.size > 1 else [], ["bcast"])


def test_data_that_few_vectors_explain(comm):
    """The bidiagonalisation ends early, with an exact solution; iterations beyond that change nothing."""
    op = VStack([2 * np.eye(5)], comm)
    y = op @ from_global(np.arange(5.0), op.domain, comm=comm)
    result = hybrid_lsqr(op, y, niter=4, noise=0.0, tol=0)
    np.testing.assert_allclose(result.x.gather(), np.arange(5.0), atol=1e-6)
    assert hybrid_lsqr(op, 0 * y).status is Status.EXACT_ZERO


def test_resumed(comm, tmp_path):
    """From a checkpoint it goes on to the same bits."""
    matrix, truth, noise, op = gravity(comm)
    y = from_global(matrix @ truth + noise, op.range, comm=comm)
    folder = comm.allgather_metadata(str(tmp_path / "checkpoints"))[0]
    through = hybrid_lsqr(op, y, niter=8, tol=0)
    with pytest.raises(RuntimeError, match="enough"):
        hybrid_lsqr(op, y, niter=8, tol=0, checkpoint=folder, every=3, callback=stopping)
    resumed = hybrid_lsqr(op, y, niter=8, tol=0, checkpoint=folder, resume=True)
    assert resumed.resumed_from == 3
    np.testing.assert_array_equal(resumed.x.gather(), through.x.gather())


def stopping(iteration, view):
    if iteration == 5:
        raise RuntimeError("enough")


@pytest.mark.parametrize("niter", [3, 8])
def test_an_exact_solution_is_a_success(comm, niter):
    """After as many iterations as there are unknowns no iteration can improve it; more of them were allowed or not."""
    rows = 6 * comm.size
    matrix, truth = random_matrix(rows, 3, "f8", 3), np.array([1.0, -2.0, 3.0])
    op = VStack([np.split(matrix, comm.size)[comm.rank]], comm)
    result = hybrid_lsqr(op, from_global(matrix @ truth, op.range, comm=comm), niter=niter)
    assert result.status is Status.CONVERGED and result.iterations == 3
    assert_close(result.x.gather(), truth, factor=1e3)
    # An iteration limit that ends it earlier is one.
    early = hybrid_lsqr(op, from_global(matrix @ truth, op.range, comm=comm), niter=2)
    assert early.status is Status.ITERATION_LIMIT


def test_the_damping_remains_when_the_space_has_as_many_vectors_as_data(comm):
    """Cross-validation has no data left then, and would take the largest damping for data without noise."""
    generator = np.random.default_rng(1)
    matrix = generator.normal(size=(6, 10))
    op = VStack([np.array_split(matrix, comm.size)[comm.rank]], comm)
    y = from_global(matrix @ generator.normal(size=10), op.range, comm=comm)
    before, last = (hybrid_lsqr(op, y, niter=niter) for niter in (5, 20))
    assert (last.status, last.iterations) == (Status.CONVERGED, 6)
    assert last.details["damp"] == pytest.approx(before.details["damp"], rel=1e-6)
    assert last.residual_norms[-1] < before.residual_norms[-1]
