"""The array API of CuPy arrays on ranks, against NumPy: the cases of ``tests/bridges``."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from tests.bridges.test_array_api import CASES, NEW_IN_NUMPY, A, B, check, layouts

pytestmark = pytest.mark.gpu
pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.parametrize("name", sorted({*CASES} - {*NEW_IN_NUMPY}))
def test_against_numpy(comm, name):
    for layout, whole in layouts(comm):
        x, y = (collops.from_global(values, layout, comm=comm, engine="cupy") for values in (A, B))
        xp = x.__array_namespace__()
        assert xp.engine.name == "cupy" and x.device == xp.__array_namespace_info__().default_device()
        check(CASES[name](xp, x, y, whole), CASES[name](np, A, B, whole))
