"""The kernels of the page on own kernels, as local operators on devices: values, adjoints, and recorded in graphs."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from tests.docs.pages import ROOT, blocks

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytest.importorskip("cuda.core", reason="cuda.core is not installed")


@pytest.fixture
def page(device):
    names = {"np": np}
    (program,) = blocks(ROOT / "docs" / "own-kernels.md", "py")
    exec(compile(program, "own-kernels.md", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("launch", ["elementwise", "by_cupy", "by_cuda_core"])
def test_kernels_are_recorded(comm, page, launch):
    weights = np.linspace(1, 2, 1000 + comm.rank)
    op = collops.BlockDiag([page["Scaling"](cupy.asarray(weights), page[launch])], comm)
    A = op @ collops.FirstDerivative(op.domain, comm=comm) + 3 * op
    assert A.dottest(engine="cupy")
    x = collops.random(op.domain, seed=1, comm=comm, engine="cupy")
    np.testing.assert_allclose((op @ x).local_array.get(), weights * x.local_array.get())
    recorded, launched = (collops.cgls(A, x, niter=12, tol=0, graph=graph) for graph in (True, False))
    assert recorded.execution == "replayed CUDA graph"
    np.testing.assert_allclose(recorded.x.gather().get(), launched.x.gather().get(), rtol=1e-12)
