"""Threads of one process that apply one operator, or solve with it, at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse

from collops import random
from collops.comm import alone
from collops.operators import (
    FFT,
    BlockToeplitz,
    CSRMatrix,
    Gradient,
    Identity,
    Laplacian,
    MatrixMult,
    SecondDerivative,
    VStack,
)
from collops.operators.dense.generic import bfloat16_matrix
from collops.solvers import cg, gmres, minres

pytestmark = pytest.mark.serial
THREADS, PRODUCTS = 3, 20
COMM = alone()
RNG = np.random.default_rng(0)
MATRIX = VStack([RNG.normal(size=(60, 50))], COMM)
SQUARE = MATRIX.H @ MATRIX + 3 * Identity(MATRIX.domain, comm=COMM)
KERNEL = RNG.normal(size=(8, 30, 40))
GRADIENT = Gradient((60, 40), comm=COMM)

OPERATORS = {
    "product and sum": SQUARE,
    "stack": VStack([RNG.normal(size=(30, 50)), RNG.normal(size=(40, 50))], COMM).H,
    "stack in bfloat16": VStack([bfloat16_matrix(RNG.normal(size=(1500, 400)))], COMM),
    "transform": FFT((64, 32), axis=1, comm=COMM),
    "second derivative": SecondDerivative((400, 60), comm=COMM),
    "gradient": GRADIENT.H @ GRADIENT,
    "laplacian": Laplacian((400, 60), comm=COMM),
    "convolution": BlockToeplitz(KERNEL, comm=COMM),
    "convolution in half precision": BlockToeplitz(RNG.normal(size=(2, 270, 270)), stored="float16", comm=COMM),
    "sparse": CSRMatrix.from_global(scipy.sparse.random_array((90, 90), density=0.2, rng=0).tocsr(), comm=COMM),
    "dense": MatrixMult(RNG.normal(size=(30, 20)), 8, comm=COMM),
}
SOLVERS = {"cg": cg, "gmres": gmres, "minres": minres}


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def assert_each_thread_has_its_result(compute, inputs):
    expected = [compute(x) for x in inputs]
    together = threading.Barrier(len(inputs))

    def worst(x, right):
        together.wait(10)
        return max(np.abs(compute(x) - right).max() for _ in range(PRODUCTS)) / np.abs(right).max()

    with ThreadPoolExecutor(len(inputs)) as pool:
        assert max(pool.map(worst, inputs, expected)) < 1e-10


@pytest.mark.parametrize("name", OPERATORS)
def test_threads_share_an_operator(name):
    op = OPERATORS[name]
    inputs = [random(op.domain, seed=seed, comm=COMM, dtype=op.dtype) for seed in range(THREADS)]
    assert_each_thread_has_its_result(lambda x: (op @ x).gather(), inputs)


@pytest.mark.parametrize("name", SOLVERS)
def test_threads_solve_with_one_operator(name):
    data = [random(SQUARE.range, seed=seed, comm=COMM) for seed in range(THREADS)]
    assert_each_thread_has_its_result(lambda y: SOLVERS[name](SQUARE, y, niter=3).x.gather(), data)
