"""GMRES and flexible GMRES against SciPy and dense solutions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg

from collops import profile
from collops.array import from_global
from collops.errors import InputError, LayoutError
from collops.operators import BlockDiag, CSRMatrix, Diagonal, LinearOperator
from collops.solvers import GMRES, Status, blocks, gmres

from .problems import assert_close, problem, random_matrix
from .systems import KINDS, convection_diffusion, masked, system, whole


def by_scipy(matrix, data, restart: int, cycles: int = 1, rtol: float = 0.0):
    """Return SciPy's solution, and the norm of the residual after each iteration, relative to that of the data."""
    norms: list[float] = []
    options = {"callback": norms.append, "callback_type": "pr_norm"}
    x, _ = scipy.sparse.linalg.gmres(matrix, data, rtol=rtol, atol=0, restart=restart, maxiter=cycles, **options)
    return x, np.array(norms)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_iterates_are_those_of_scipy(comm, monkeypatch, kind, dtype, flexible):
    """Two cycles of three iterations, from a starting point; columns of the basis are in several pieces."""
    monkeypatch.setattr(blocks, "_PIECE", 3)
    op, matrix, data, distributed = system(kind, comm, dtype)
    start = np.linspace(-1, 1, len(data)).astype(dtype)
    y = distributed((data + matrix @ start).astype(dtype))
    result = gmres(op, y, distributed(start), niter=6, restart=3, rtol=0, flexible=flexible)
    x, norms = by_scipy(matrix, data, 3, cycles=2)
    assert result.iterations == 6 and result.x.dtype == np.dtype(dtype)
    assert_close(whole(result.x) - start, x, dtype, factor=10)
    assert_close(result.residual_norms[1:] / np.linalg.norm(data), norms, dtype, factor=10)


@pytest.mark.serial
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
def test_an_ill_conditioned_matrix(comm, condition):
    """The basis stays orthonormal, which one pass of Gram and Schmidt's classical method would not achieve."""
    u, v = (np.linalg.qr(np.random.default_rng(seed).standard_normal((50, 50)))[0] for seed in (1, 2))
    matrix = (u * np.geomspace(1, 1 / condition, 50)) @ v.T + 0.1 * np.diag(np.geomspace(1, 1 / condition, 50))
    op, data = BlockDiag([matrix], comm), matrix @ np.ones(50)
    defects = []

    def watch(_, view):
        basis = view.state.basis.local_array[: view.state.k]
        defects.append(np.abs(basis @ basis.T - np.eye(len(basis))).max())

    y = from_global(data, op.range, comm=comm)
    for tol in (1e-3, 1e-10):
        result = gmres(op, y, niter=60, restart=60, rtol=tol, callback=watch)
        assert abs(result.iterations - len(by_scipy(matrix, data, 50, rtol=tol)[1])) <= 2
        assert result.status is Status.CONVERGED
        assert np.linalg.norm(matrix @ result.x.gather() - data) <= 1.01 * tol * np.linalg.norm(data)
    assert max(defects) < 1e-14 * 50


def test_a_preconditioner(comm):
    matrix = convection_diffusion(11)
    scale = 1 / (matrix.diagonal() + np.linspace(0, 9, 121))
    data = np.sin(np.arange(121.0))
    op = CSRMatrix.from_global(matrix, comm=comm)
    y, M = from_global(data, op.range, comm=comm), Diagonal(from_global(scale, op.domain, comm=comm))
    z, norms = by_scipy(matrix @ scipy.sparse.diags_array(scale), data, 20, cycles=9, rtol=1e-8)
    for flexible in (False, True):
        result = gmres(op, y, M=M, flexible=flexible, restart=20, niter=200, rtol=1e-8)
        assert abs(result.iterations - len(norms)) <= 1
        assert_close(result.x.gather(), scale * z, factor=1e6)
        assert_close(result.residual_norms[-1], np.linalg.norm(data - matrix @ result.x.gather()), factor=1e-2)


class Alternating(LinearOperator):
    """A preconditioner that scales with other numbers every second time."""

    def __init__(self, scales, comm) -> None:
        super().__init__(scales[0].layout, scales[0].layout, scales[0].dtype, comm)
        self._scales, self._calls = [Diagonal(scale) for scale in scales], 0

    def _forward(self, x, out):
        self._calls += 1
        return self._scales[self._calls % 2]._forward(x, out)


def test_a_preconditioner_that_changes_needs_the_flexible_form(comm):
    op, matrix, data, distributed = system("split", comm, "f8")
    scales = [distributed(np.linspace(0.2, 1, len(data))), distributed(np.linspace(1, 0.1, len(data)))]
    errors = {}
    for flexible in (False, True):
        options = {"niter": 6, "rtol": 0, "flexible": flexible, "verify": False}
        result = gmres(op, distributed(data), M=Alternating(scales, comm), **options)
        errors[flexible] = np.linalg.norm(matrix @ result.x.gather() - data) - result.residual_norms[-1]
    assert abs(errors[True]) < 1e-12 < 1e-3 < abs(errors[False])


def test_messages(comm):
    """One message in an iteration, and one for the solution at the end and at a restart."""
    op, _, data, distributed = system("split", comm, "f8")
    y = distributed(data)
    with profile.count_messages() as sent:
        gmres(op, y, niter=6, restart=4, rtol=0)
    elements = [message.elements for message in sent.records if message.operation == "allreduce"]
    assert elements == ([1, 4, 6, 8, 10, 5, 4, 6, 3, 1] if comm.size > 1 else [])


def test_masks_solve_one_problem_per_group(comm):
    op, y, solution = masked(comm)
    assert_close(gmres(op, y, rtol=1e-13, restart=8).x.local_array, solution)


def test_the_space_ends_with_the_solution(comm):
    """Three eigenvalues take three iterations, and the space has no fourth vector."""
    values = np.resize([1.0, -2.0, 5.0], 4 + 3 * comm.size)
    op = Diagonal(from_global(values, comm=comm))
    for flexible in (False, True):
        for niter in (3, 9):
            result = gmres(op, from_global(np.ones_like(values), comm=comm), niter=niter, rtol=0, flexible=flexible)
            assert_close(result.x.gather(), 1 / values)
        assert result.status is Status.COMPATIBLE_TO_ROUNDING and 3 <= result.iterations <= 4


def test_a_space_that_is_nearly_invariant(comm):
    """The norm of a new vector, 1e-9 of its image, is below the rounding of the theorem of Pythagoras."""
    matrix = 2 * np.eye(5) + 1e-9 * random_matrix(5, 5, "f8", 3)
    op = BlockDiag([matrix], comm)
    y = from_global(np.tile(np.arange(1.0, 6), comm.size), op.range, comm=comm)
    result = gmres(op, y, rtol=1e-13)
    assert result.status is Status.CONVERGED and result.iterations <= 4
    assert float((y - op @ result.x).norm()) <= 2e-13 * float(y.norm())


def test_singular_systems(comm):
    """A solution where there is one, and otherwise what is left of the data, for ever."""
    values = np.resize([1.0, 0.0, 3.0], 4 + 3 * comm.size)
    op = Diagonal(from_global(values, comm=comm))
    result = gmres(op, from_global(values, comm=comm), niter=9, rtol=0)
    assert_close(values * result.x.gather(), values)
    assert result.status is Status.COMPATIBLE_TO_ROUNDING
    result = gmres(op, from_global(np.ones_like(values), comm=comm), niter=9, rtol=0)
    assert result.status is Status.ITERATION_LIMIT and not result.status.successful
    assert_close(result.residual_norms[-1], np.sqrt(np.sum(values == 0)))
    assert_close(values * result.x.gather(), np.sign(values))


@pytest.mark.serial
@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_singular_matrix_without_zeros(comm, seed, flexible):
    """Rounding makes vectors beyond the end of the space, which must not become part of the solution."""
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((9, 9)))[0]
    matrix, data = turn @ np.diag(np.resize([1.0, 0.0, 3.0], 9)) @ turn.T, turn @ np.ones(9)
    op = BlockDiag([matrix], comm)
    result = gmres(op, from_global(data, op.range, comm=comm), niter=9, rtol=0, flexible=flexible)
    assert_close(result.residual_norms[-1], np.sqrt(3))
    assert_close(np.linalg.norm(data - matrix @ result.x.gather()), np.sqrt(3))


@pytest.mark.parametrize("name", ["restart", "flexible", "M"])
@pytest.mark.needs_ranks(2)
def test_ranks_that_disagree(comm, name):
    op, _, data, distributed = system("split", comm, "f8")
    value = {"restart": 3, "flexible": True, "M": op}[name]
    with pytest.raises(InputError, match="a solver's start differs between ranks"):
        gmres(op, distributed(data), **({name: value} if comm.rank else {}))


def test_what_it_cannot_solve(comm):
    op, _, _, y = problem("vstack", comm, "f8")
    with pytest.raises(LayoutError, match="gmres needs an operator with one layout on both sides"):
        gmres(op, y)
    square = op.H @ op
    with pytest.raises(LayoutError, match="M must map"):
        gmres(square, op.H @ y, M=op)
    with pytest.raises(InputError, match="restart must be an integer of at least 1"):
        gmres(square, op.H @ y, restart=0)
    assert gmres(square, op.H @ y, restart=1000, niter=20).status.successful
    assert not GMRES.traceable


def test_directions_of_the_flexible_form_have_the_length_of_the_basis(comm):
    """Near a multiple of the identity the theorem of Pythagoras gives few digits of the length of a new vector."""
    rows = [3, 5, 4, 2][comm.rank]
    op = BlockDiag([np.eye(rows) + 1e-7 * np.triu(random_matrix(rows, rows, "f8", 3))], comm)
    y = from_global(random_matrix(op.domain.size, 1, "f8", 4)[:, 0], op.range, comm=comm)
    result = gmres(op, y, flexible=True, niter=3, rtol=0, verify=False)
    assert float((y - op @ result.x).norm()) <= 1e-13 * float(y.norm())
