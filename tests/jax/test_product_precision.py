"""Products of float32 on JAX: every one that XLA gets has the precision of its dtype, or the precision of the user."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives

import collops
from collops import uncertainty

pytestmark = pytest.mark.serial  # a rank computes its own products

HIGHEST = jax.lax.Precision.HIGHEST
RANDOM = np.random.default_rng(3)
MATRIX = RANDOM.normal(size=(6, 6)).astype("f")
SQUARE = MATRIX @ MATRIX.T + 6 * np.eye(6, dtype="f")


@pytest.fixture
def products(monkeypatch):
    """The precision of each product and convolution that becomes part of a program of JAX."""
    found = []
    for primitive in (primitives.dot_general_p, primitives.conv_general_dilated_p):

        def bind(*values, known=primitive.bind, **parameters):
            found.append(parameters["precision"])
            return known(*values, **parameters)

        monkeypatch.setattr(primitive, "bind", bind)
    jax.clear_caches()
    yield found
    jax.clear_caches()


def array(layout, comm, seed=0):
    return collops.random(layout, comm=comm, dtype="float32", engine="jax", seed=seed)


OPERATORS = {
    "BlockDiag": lambda comm: collops.BlockDiag([SQUARE], comm),
    "VStack of a JAX array": lambda comm: collops.VStack([jnp.asarray(MATRIX)], comm),
    "HStack": lambda comm: collops.HStack([MATRIX], comm),
    "bfloat16": lambda comm: collops.BlockDiag([SQUARE], comm).astype("bfloat16"),
    "bfloat16 of a JAX array": lambda comm: collops.BlockDiag([jnp.asarray(SQUARE)], comm).astype("bfloat16"),
    "Fredholm1": lambda comm: collops.Fredholm1(jnp.ones((2, 3, 4), "f"), 2, comm=comm),
    "Fredholm1, stored adjoint": lambda comm: collops.Fredholm1(jnp.ones((2, 3, 4), "f"), 2, True, comm=comm),
    "MDC": lambda comm: collops.MDC(jnp.ones((4, 3, 3), "complex64"), nt=8 * comm.size - 1, nv=2, comm=comm),
    "MatrixMult by blocks": lambda comm: collops.MatrixMult(
        collops.from_global(SQUARE, engine="jax", comm=comm), 4, kind="block", comm=comm
    ),
    "MatrixMult by SUMMA": lambda comm: collops.MatrixMult(
        collops.from_global(SQUARE, engine="jax", comm=comm), 4, kind="summa", comm=comm
    ),
}


def applied(A):
    x, y = array(A.domain, A.comm), array(A.range, A.comm)
    A.forward(x)
    A.adjoint(y)
    jax.jit(A.forward)(x)
    jax.jit(A.adjoint)(y)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(comm, products, name):
    A = OPERATORS[name](comm)
    applied(A)
    assert products and all(precision == (HIGHEST, HIGHEST) for precision in products)


def test_the_precision_of_the_user(comm, products, request):
    A = OPERATORS["BlockDiag"](comm)
    x = array(A.domain, comm)

    def check(setting):
        products.clear()
        jax.clear_caches()
        A.forward(x)
        (precision,) = products
        jax.jit(lambda x: x @ x)(jnp.ones((2, 2), "f"))
        assert precision == (HIGHEST, HIGHEST) if setting is None else precision == products[-1]

    for setting in ("bfloat16", None, "float32", "bfloat16"):
        with jax.default_matmul_precision(setting):
            check(setting)
    request.addfinalizer(lambda: jax.config.update("jax_default_matmul_precision", None))
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    check("tensorfloat32")


def test_a_solver_is_compiled_for_each_precision(comm, products):
    A = OPERATORS["BlockDiag"](comm)
    y = array(A.range, comm)
    kinds = []
    for setting in (None, "bfloat16", None):
        products.clear()
        with jax.default_matmul_precision(setting):
            collops.cg(A, y, niter=2)
        kinds.append(set(products))
    assert kinds[0] == {(HIGHEST, HIGHEST)}
    assert len(kinds[1]) == 2  # inner products keep theirs
    assert not kinds[2]  # the first program


SOLVERS = {
    "derivative": lambda A, y: jax.grad(lambda y: collops.cgls(A, y, niter=3).x.vdot(y).real)(y),
    "lsqr": lambda A, y: collops.lsqr(A, y, niter=3),
    "gmres": lambda A, y: collops.gmres(A, y, niter=3),
    "ista": lambda A, y: collops.ista(A, y, niter=3),
    "block_cg": lambda A, y: collops.block_cg(A, [y, 2 * y + 1], niter=2),
    "Nuclear": lambda A, y: collops.Nuclear((2, 3)).prox(array(collops.Layout.replicated(6, A.comm.size), A.comm), 0.1),
    "randomized_svd": lambda A, y: uncertainty.randomized_svd(A, 2, engine="jax", dtype="float32"),
}


def test_solvers(comm, products):
    A = OPERATORS["BlockDiag"](comm)
    y = array(A.range, comm)
    for name, solve in SOLVERS.items():
        products.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            solve(A, y)
        assert products, name
        assert all(precision == (HIGHEST, HIGHEST) for precision in products), name
