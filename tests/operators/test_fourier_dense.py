"""Short real transforms: the product with a matrix is the fast transform with all that comes before and after it."""

from __future__ import annotations

import numpy as np
import pytest

from collops.backend import engine
from collops.operators.fourier.engines import Workspace
from collops.operators.fourier.transform import AxisTransform, matrix_is_faster

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.complex64, 1e-6), (np.complex128, 1e-14)])
@pytest.mark.parametrize(
    "options",
    [{}, {"kept": 7, "shift_before": True, "scale": 3.0}, {"norm": "1/n", "shift_after": True}],
    ids=["plain", "band", "shifted"],
)
@pytest.mark.parametrize(("samples", "length"), [(31, 31), (30, 36), (36, 31)])
def test_is_the_fast_transform(samples, length, options, dtype, tolerance):
    transform = AxisTransform(0, samples, length, real=True, **options)
    workspace = Workspace(engine("numpy"), np.dtype(dtype), 1000, 1)
    rng = np.random.default_rng(0)
    model = rng.standard_normal((samples, 3, 2)).astype(workspace.real)
    data = (rng.standard_normal((transform.count, 3, 2)) + 1j * rng.standard_normal((transform.count, 3, 2))).astype(
        dtype
    )
    assert matrix_is_faster(samples, transform.count, 6)
    results = []
    for multiplies in (True, False):
        workspace.multiplies = multiplies
        forward, adjoint = np.full_like(data, np.nan), np.full_like(model, np.nan)
        transform.forward(model, forward, workspace)
        transform.adjoint(data.copy(), adjoint, workspace)
        results.append((forward, adjoint))
    for dense, fast in zip(*results, strict=True):
        np.testing.assert_allclose(dense, fast, rtol=0, atol=tolerance * np.linalg.norm(fast))
    left, right = np.vdot(results[0][0], data).real, np.vdot(model, results[0][1])
    assert abs(left - right) < 10 * tolerance * np.linalg.norm(model) * np.linalg.norm(results[0][1])


def test_long_transforms_and_many_lines_stay_fast():
    assert matrix_is_faster(101, 50, 20)
    assert not matrix_is_faster(101, 50, 100)
    assert not matrix_is_faster(300, 151, 1)
    assert not matrix_is_faster(0, 0, 5) and not matrix_is_faster(8, 0, 5)
