"""Infinity and NaN: the iteration, the array, and the last good iterate, wherever they come from."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import from_global, zeros
from collops.errors import NotFiniteError
from collops.operators import BlockDiag, LinearOperator
from collops.solvers import bicgstab, cg, cgls, fista, gmres, hybrid_lsqr, ista, lsmr, lsqr, minres, power_iteration
from collops.solvers.proximal import L1, L2, admm, admm_l2, linearized_admm, primal_dual, proximal_gradient

from .problems import assert_close, problem, start

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Spoilt(LinearOperator):
    """An operator whose images, or those of its adjoint, hold a value that is not finite from some call on."""

    def __init__(self, operator, *, forward: int = 1 << 30, adjoint: int = 1 << 30, value: float = np.nan) -> None:
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self._operator, self._value = operator, value
        self._left = {"forward": forward, "adjoint": adjoint}

    def _forward(self, x, out):
        return self._spoilt("forward", self._operator._forward(x, out))

    def _adjoint(self, y, out):
        return self._spoilt("adjoint", self._operator._adjoint(y, out))

    def _spoilt(self, way, image):
        self._left[way] -= 1
        if self._left[way] < 0 and (self.comm.rank == 0 or image.layout.is_replicated):
            image.local_array[1] = self._value
        return image


def _start(op, y):
    return start(op, y.comm, y.dtype)[1]


# Calls of the operator and of its adjoint before the first iteration and in each, and the name of what they make.
METHODS = {
    "cgls": (lambda op, y, **run: cgls(op, y, tol=0, **run), (0, 1), (1, 1), ("image", "gradient")),
    "damped cgls": (lambda op, y, **run: cgls(op, y, damp=0.3, tol=0, **run), (0, 1), (1, 1), ("image", "gradient")),
    "cgls, one reduction": (
        lambda op, y, **run: cgls(op, y, tol=0, damp=0.1, reductions=1, **run),
        (1, 1),
        (1, 1),
        ("image", "gradient"),
    ),
    "pipelined cgls": (
        lambda op, y, **run: cgls(op, y, tol=0, reductions="pipelined", **run),
        (1, 1),  # two before the first, and each iteration makes an image for the next one
        (1, 1),
        ("image", "gradient"),
    ),
    "lsqr": (lsqr, (0, 1), (1, 1), ("image", "back")),
    "lsmr": (lsmr, (0, 1), (1, 1), ("image", "back")),
    "hybrid": (lambda op, y, **run: hybrid_lsqr(op, y, tol=0, **run), (0, 1), (1, 1), ("image", "basis")),
    "gmres": (
        lambda op, y, **run: gmres(op.H @ op, op.H @ y, rtol=0, **run),
        (0, 1),
        (1, 1),
        ("image", "image"),
    ),
    "flexible gmres": (
        lambda op, y, **run: gmres(op.H @ op, op.H @ y, restart=3, flexible=True, rtol=0, **run),
        (1, 2),  # at the restart
        (1, 1),
        ("image", "image"),
    ),
    "bicgstab": (lambda op, y, **run: bicgstab(op.H @ op, op.H @ y, rtol=0, **run), (0, 1), (2, 2), ("image", "image")),
    "minres": (lambda op, y, **run: minres(op.H @ op, op.H @ y, rtol=0, **run), (1, 2), (1, 1), ("image", "image")),
    "ista": (lambda op, y, **run: ista(op, y, alpha=0.003, **run), (0, 0), (1, 1), ("image", "gradient")),
    "fista": (lambda op, y, **run: fista(op, y, alpha=0.003, **run), (0, 0), (1, 1), ("image", "gradient")),
    "proximal gradient": (
        lambda op, y, **run: proximal_gradient(L2(op, y), L1(0.3), _start(op, y), tau=0.003, **run),
        (0, 0),
        (1, 1),
        ("x", "x"),
    ),
    "ADMM": (
        lambda op, y, **run: admm(L2(op, y, niter=2, warm=False), L1(0.3), _start(op, y), 0.1, **run),
        (0, 1),
        (2, 2),
        ("x", "x"),
    ),
    "ADMM, least squares": (
        lambda op, y, **run: admm_l2(L1(0.3), op, y, op, _start(op, y), 0.1, inner=2, **run),
        (1, 0),
        (7, 8),
        ("x", "x"),
    ),
    "linearised ADMM": (
        lambda op, y, **run: linearized_admm(L2(), L1(0.3), op, _start(op, y), 0.1, 0.001, **run),
        (1, 0),
        (1, 1),
        ("difference", "x"),
    ),
    "primal-dual": (
        lambda op, y, **run: primal_dual(L2(), L1(0.3), op, _start(op, y), 0.05, 0.05, **run),
        (0, 0),
        (1, 1),
        ("y", "x"),
    ),
}


def assert_stopped(error, comm, iteration: int, array: str, solve) -> None:
    """An error names iteration and array, is the same on all ranks, and has an iterate that is one, or next to it."""
    assert (error.iteration, error.array) == (iteration, array), (error.iteration, error.array)
    assert error.on_all_ranks and array in str(error)
    assert len(set(comm.allgather_metadata(str(error)))) == 1
    found = error.x.gather()
    assert np.isfinite(found).all()
    if iteration:
        iterates = [solve(niter=number).x.gather() for number in (iteration - 1, iteration)]
        assert (np.isclose(found, iterates[0]) | np.isclose(found, iterates[1])).all()


@pytest.mark.parametrize("way", ["forward", "adjoint"])
@pytest.mark.parametrize("name", METHODS)
def test_from_the_operator_in_some_iteration(comm, name, way):
    run, before, each, arrays = METHODS[name]
    op, _, _, y = problem("vstack", comm, "f8")
    number = 0 if way == "forward" else 1
    spoilt = Spoilt(op, **{way: before[number] + 3 * each[number]})
    with pytest.raises(NotFiniteError) as caught:
        run(spoilt, y, niter=12)
    assert_stopped(caught.value, comm, 4, arrays[number], lambda niter: run(op, y, niter=niter))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_from_the_data(comm, value):
    op, _, _, y = problem("block_diag", comm, "f8")
    if comm.rank == 0:
        y.local_array[1] = value
    for solve, name in [(cgls, "residual"), (lsqr, "u"), (ista, "residual"), (fista, "residual")]:
        options = {"alpha": 0.1} if solve in (ista, fista) else {}
        with pytest.raises(NotFiniteError) as caught:
            solve(op, y, niter=10, **options)
        assert_stopped(caught.value, comm, 0, name, None)
        assert not caught.value.x.gather().any()


def test_cg_keeps_the_iterate_before(comm):
    op, _, _, y = problem("vstack", comm, "f8")
    normal, right = op.H @ op, op.H @ y
    with pytest.raises(NotFiniteError) as caught:
        cg(Spoilt(normal, forward=2), right, niter=9, tol=0)
    assert_stopped(caught.value, comm, 3, "image", lambda niter: cg(normal, right, niter=niter, tol=0))
    assert_close(caught.value.x.gather(), cg(normal, right, niter=2, tol=0).x.gather())


def test_power_iteration_keeps_the_vector_before(comm):
    op, *_ = problem("vstack", comm, "f8")
    normal = op.H @ op
    with pytest.raises(NotFiniteError) as caught:
        power_iteration(Spoilt(normal, forward=2), niter=9, tol=0)
    assert_stopped(caught.value, comm, 3, "image", lambda niter: power_iteration(normal, niter=niter, tol=0))


def test_squares_that_overflow_in_single_precision(comm):
    """The image of the first direction is finite, but its square is not: the operator is divided by a power of two."""
    op = BlockDiag([1e12 * np.eye(3, dtype="f4")], comm)
    y = from_global(np.full(3 * comm.size, 1e4, "f4"), op.range, comm=comm)
    np.testing.assert_allclose(cgls(op, y, niter=5, tol=0).x.gather(), 1e-8, rtol=1e-6)


def test_options_whose_squares_overflow(comm):
    """A large tolerance is met at once; a large damping factor is reported, not Python's OverflowError."""
    op, _, _, y = problem("vstack", comm, "f8")
    normal = op.H @ op
    b = op.H @ y
    huge = 1e300
    for result in (
        cg(normal, b, niter=3, rtol=huge),
        cg(normal, b, niter=3, atol=huge),
        cgls(op, y, niter=3, rtol=huge),
        cgls(op, y, niter=3, gtol=huge),
        ista(op, y, niter=3, alpha=0.003, tol=huge),
        fista(op, y, niter=3, alpha=0.003, tol=huge),
        primal_dual(L2(), L1(0.3), op, _start(op, y), 0.05, 0.05, niter=3, tol=huge),
    ):
        assert result.status.successful
    assert power_iteration(normal, niter=9, tol=huge).iterations < 9
    for reductions in (1, 2, "pipelined"):
        with pytest.raises(NotFiniteError):
            cgls(op, y, b, niter=3, damp=huge, reductions=reductions)


def test_a_checkpoint_never_holds_them(comm, tmp_path):
    folder = comm.allgather_metadata(str(tmp_path / "checkpoints"))[0]
    op, _, _, y = problem("vstack", comm, "f8")
    with pytest.raises(NotFiniteError):
        # One call more than those of the iterations describes the problem.
        cgls(Spoilt(op, forward=6), y, niter=12, tol=0, checkpoint=folder, every=1)
    result = cgls(op, y, niter=12, tol=0, checkpoint=folder, resume=True)
    assert result.resumed_from == 5
    assert_close(result.x.gather(), cgls(op, y, niter=12, tol=0).x.gather())


def test_zeros_are_finite(comm):
    op, *_ = problem("vstack", comm, "f8")
    result = cgls(op, zeros(op.range, comm=comm), niter=3, tol=-0.0)
    assert not result.x.gather().any() and result.status.successful
