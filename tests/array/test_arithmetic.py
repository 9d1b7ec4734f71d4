"""The table of the design says what engines on hosts do with subnormal numbers, roundings, NaN and half precision."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg.blas import saxpy

from collops.array import kernels
from tests import arithmetic

pytestmark = pytest.mark.serial


def test_numpy():
    """A product and a sum are one call of BLAS, whose kernels have what the processor has."""
    functions = arithmetic.of_collops("numpy")
    by_blas = functions._replace(axpby=lambda a, x, b, y: saxpy(x, b * y, a=a))
    found, expected = arithmetic.words(functions), arithmetic.words(by_blas)
    assert found == expected
    found[1] = "as BLAS does"
    assert found == arithmetic.row_of_the_table("NumPy")


def test_numba():
    if kernels.loops() is None:
        pytest.skip("Numba is not installed")
    assert not {"divide", "norm_part", "sum"} & set(dir(kernels.loops()))
    functions = arithmetic.of_collops("numpy", divide=None, largest=None, total=None, size=kernels.LONG)
    assert arithmetic.words(functions) == arithmetic.row_of_the_table("Numba's loops over long vectors")


def test_jax():
    pytest.importorskip("jax", reason="JAX is not installed")
    assert arithmetic.words(arithmetic.of_jax()) == arithmetic.row_of_the_table("JAX on CPUs, compiled")


def test_words_of_wrong_numbers():
    """Experiments tell engines apart."""
    functions, noise = arithmetic.of_collops("numpy"), iter(range(100))
    wrong = functions._replace(
        axpby=lambda a, x, b, y: np.where(abs(x) < 1e-30, np.float32(0), a * x + b * y),
        divide=lambda x, y: x * (1 / y),
        largest=lambda x: max(x.tolist()),
        total=lambda x: np.cumsum(x)[-1],
        dot=lambda x, y: float(x @ y) + next(noise),
    )
    expected = ["zero", "three roundings", "within two units", "a number", "in float16", "other bits"]
    assert arithmetic.words(wrong) == expected
