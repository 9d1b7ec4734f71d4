"""The choice between the steps of the textbook and their variants, and that all of them have the same iterates."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from collops.array import from_global
from collops.errors import InputError
from collops.operators import Diagonal
from collops.solvers import CG, CGLS, LSQR, cg, cgls, lsqr, solve, variants
from collops.solvers.iterative_thresholding import IterativeThresholding, prepare
from collops.solvers.kernels import step_kernels_for
from collops.solvers.variants.cg import PreconditionedCG
from collops.solvers.variants.cgls import DampedCGLS, OneMessageCGLS
from collops.solvers.variants.lsqr import PreconditionedLSQR
from collops.solvers.variants.pipelined import PipelinedCG, PipelinedCGLS
from collops.solvers.variants.single_reduction import SingleReductionCG, SingleReductionCGLS
from collops.solvers.variants.thresholding import VaryingThresholding

from .problems import assert_close, problem
from .test_driver import OPTIONS


def preconditioner(op, comm):
    return Diagonal(from_global(np.linspace(0.5, 2, op.domain.size), op.domain, comm=comm))


def thresholding(op, y, **options):
    arguments = {**OPTIONS, "accelerated": False, "SOp": None, **options}
    return prepare(op, y, None, 3, **arguments)


def test_the_choice(comm, monkeypatch):
    op, _, _, y = problem("block_diag", comm, "f8")
    M = preconditioner(op, comm)
    damped = {"damp": 0.1, "tol": 1e-9}
    cases = [
        (CG(), 2, CG),
        (CG(damp=0.1), 2, CG),
        (CG(M=M), 2, PreconditionedCG),
        (CG(M=M), 1, SingleReductionCG),
        (CG(M=M), "pipelined", PipelinedCG),
        (CGLS(tol=1e-9), 2, CGLS),
        (CGLS(**damped), 2, DampedCGLS),
        (CGLS(M=M), 2, DampedCGLS),
        (CGLS(**damped), 1, SingleReductionCGLS),
        (CGLS(**damped), "pipelined", PipelinedCGLS),
        (CGLS(precision=0.0), 2, OneMessageCGLS if comm.size > 1 else CGLS),
        (CGLS(gtol=1e-3, precision=0.0), 2, CGLS),
        (LSQR(damp=0.1), 2, LSQR),
        (LSQR(calc_var=True), 2, PreconditionedLSQR),
        (LSQR(M=M), 2, PreconditionedLSQR),
        (thresholding(op, y), 2, IterativeThresholding),
        (thresholding(op, y, accelerated=True), 2, IterativeThresholding),
        (thresholding(op, y, SOp=M), 2, VaryingThresholding),
        (thresholding(op, y, decay=[1.0, 0.5, 0.2]), 2, VaryingThresholding),
        (thresholding(op, y, threshkind="soft-percentile", perc=30.0), 2, VaryingThresholding),
    ]
    for method, reductions, kind in cases:
        chosen = method.variant(y, reductions)
        assert type(chosen) is kind, (method, reductions)
        assert vars(chosen).keys() >= vars(method).keys() and chosen.variant(y) is chosen
        assert all(getattr(chosen, name) is value for name, value in vars(method).items())
    monkeypatch.setattr(variants, "sums_squares", lambda array: array is y)  # as on devices
    assert type(CG().variant(y)) is PreconditionedCG and type(CGLS().variant(y)) is not CGLS


def test_steps_of_the_textbook_refuse_options_that_they_ignore(comm):
    op, _, _, y = problem("block_diag", comm, "f8")
    M, normal = preconditioner(op, comm), op.H @ op

    class Conjugate(CG):
        """A method of a user, which stays as it is."""

    class Squares(CGLS):
        """Another one."""

    class Sparse(IterativeThresholding):
        """And another one."""

    assert solve(Conjugate(damp=0.1), normal, op.H @ y, niter=2).iterations == 2
    sparse = Sparse(**vars(thresholding(op, y, SOp=M)))
    for method, operator, data in (
        (Conjugate(M=M), normal, op.H @ y),
        (Squares(M=M), op, y),
        (Squares(damp=0.1), op, y),
        (sparse, op, y),
    ):
        with pytest.raises(InputError, match=f"{type(method).__name__} has the textbook steps only"):
            solve(method, operator, data, niter=2)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_variants_with_plain_options_have_the_same_iterates(comm, dtype):
    op, _, _, y = problem("vstack", comm, dtype)
    normal, right = op.H @ op, op.H @ y
    plain, fast = thresholding(op, y), thresholding(op, y, accelerated=True)
    for method, kind, A, data in (
        (CG(damp=0.3, precision=0.0), PreconditionedCG, normal, right),
        (CGLS(tol=1e-30), DampedCGLS, op, y),
        (LSQR(damp=0.3), PreconditionedLSQR, op, y),
        (plain, VaryingThresholding, op, y),
        (fast, VaryingThresholding, op, y),
    ):
        textbook, other = (solve(one, A, data, niter=3) for one in (method, kind(**vars(method))))
        assert textbook.iterations == other.iterations == 3
        np.testing.assert_array_equal(textbook.x.gather(), other.x.gather())
        np.testing.assert_array_equal(textbook.residual_norms, other.residual_norms)
    norms = [solve(kind(precision=0.0), op, y, niter=3).residual_norms for kind in (DampedCGLS, OneMessageCGLS)]
    assert_close(norms[1], norms[0], dtype)
    op, _, _, y = problem("block_diag", comm, dtype)  # split models need two messages, and all of both residuals
    norms = [solve(kind(precision=0.0), op, y, niter=3).residual_norms for kind in (DampedCGLS, OneMessageCGLS)]
    np.testing.assert_array_equal(*norms)


@pytest.mark.parametrize(
    ("reductions", "name"), [(2, "CGLS"), (1, "CGLS with a single reduction"), ("pipelined", "pipelined CGLS")]
)
def test_checkpoints_know_methods_by_these_names(comm, reductions, name):
    _, _, _, y = problem("block_diag", comm, "f8")
    assert CGLS(damp=0.1).variant(y, reductions).name == name


def test_kernels_of_devices_compute_the_scalars_of_lsqr(comm, monkeypatch):
    """They get the same arrays and numbers as the functions that replace them on hosts."""
    op, _, _, y = problem("vstack", comm, "f8")
    module, kernels, seen = importlib.import_module("collops.solvers.lsqr"), step_kernels_for(y.engine), []
    expected = lsqr(op, y, niter=3, damp=0.2, calc_var=True)
    functions = {"begin": module._begin, "after_u": module.after_u, "after_v": module.after_v}

    def launch(name, scalars, factors, *values):
        seen.append(name)
        assert scalars.shape == (16,) and factors.shape == (7,)
        with monkeypatch.context() as context:
            context.setattr(kernels, "launch_lsqr", None)
            return functions[name](y.engine, scalars, factors, *values)

    monkeypatch.setattr(kernels, "launch_lsqr", launch)
    result = lsqr(op, y, niter=3, damp=0.2, calc_var=True)
    assert seen == ["begin", *["after_u", "after_v"] * 3]
    np.testing.assert_array_equal(result.x.gather(), expected.x.gather())
    np.testing.assert_array_equal(result.details["var"].gather(), expected.details["var"].gather())


def test_options_of_users_reach_the_variant(comm):
    op, serial, data, y = problem("block_diag", comm, "f8")
    M = preconditioner(op, comm)
    whole = np.vstack([serial.A, 0.4 * np.eye(op.domain.size)])
    exact = np.linalg.lstsq(whole, np.concatenate([data, np.zeros(op.domain.size)]))[0]
    for options in ({}, {"M": M}, {"reductions": 1}, {"reductions": "pipelined", "M": M}):
        assert_close(cgls(op, y, niter=200, damp=0.4, tol=1e-26, **options).x.gather(), exact)
    normal = serial.A.T @ serial.A + 0.4 * np.eye(op.domain.size)
    for options in ({}, {"M": M}):
        x = cg(op.H @ op, op.H @ y, niter=200, damp=0.4, tol=1e-26, **options).x
        assert_close(x.gather(), np.linalg.solve(normal, serial.A.T @ data))


@pytest.mark.parametrize("options", [{}, {"damp": 0.3}, {"precision": 0.0}])
def test_the_numbers_of_an_iteration_of_cgls(comm, options):
    """The curvature belongs to the direction that the gradient before has led to."""
    op, serial, data, y = problem("vstack", comm, "f8")
    damp = options.get("damp", 0.0)
    method = CGLS(**options).variant(y)
    state = method.init(op, y, None)
    x, direction = np.zeros(6), serial.A.T @ data
    for _ in range(3):
        assert_close(state.p.gather(), direction)
        before = np.linalg.norm(serial.A.T @ (data - serial.A @ x) - damp**2 * x) ** 2
        state = method.step(op, state)
        now, x = method.numbers(*map(float, method.report(state))), state.x.gather()
        gradient = serial.A.T @ (data - serial.A @ x) - damp**2 * x
        curvature = np.linalg.norm(serial.A @ direction) ** 2 + damp**2 * np.linalg.norm(direction) ** 2
        expected = [gradient @ gradient, np.linalg.norm(data - serial.A @ x) ** 2, curvature, before]
        np.testing.assert_allclose(now, expected, rtol=1e-7)
        direction = gradient + (gradient @ gradient) / before * direction
