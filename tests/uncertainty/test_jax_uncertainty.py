"""The same numbers on arrays of JAX as on those of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from collops.operators import VStack
from collops.uncertainty import probe_diagonal, randomized_svd
from tests.solvers.problems import random_matrix

pytestmark = pytest.mark.usefixtures("jax_double")
jax = pytest.importorskip("jax", reason="JAX is not installed")


def test_singular_values_and_probes(comm):
    own = np.array_split(random_matrix(14, 6, "f8", 1), comm.size)[comm.rank]
    host, op = VStack([own], comm), VStack([jax.numpy.asarray(own)], comm)
    found, expected = randomized_svd(op, 2, engine="jax"), randomized_svd(host, 2)
    assert isinstance(found.U.local_array, jax.Array)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-12)
    probed, known = (probe_diagonal(A.H @ A, 3, engine=engine) for A, engine in ((op, "jax"), (host, "numpy")))
    np.testing.assert_allclose(probed.value.gather(), known.value.gather(), rtol=1e-12)
    np.testing.assert_allclose(probed.error.gather(), known.error.gather(), rtol=1e-10, atol=1e-12)
