"""Traces are a linear function of the wavelet, which a solver finds from them."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.errors import UnsupportedTypeError
from collops.seismic.waves import Geometry, Propagator
from tests.seismic.test_waves import arrays_of, small


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("common", [True, False])
def test_traces_are_convolutions(comm, common, tiled):
    grid, geometry = small(2, 4)
    if not common:
        wavelets = np.asarray(geometry.wavelet) * np.array([[1.0], [-0.5], [2.0]])
        geometry = Geometry(geometry.sources, geometry.receivers, wavelets, geometry.interval)
    tiles = (1, comm.size) if tiled and comm.size < 4 else None
    F = Propagator(grid, geometry, dtype="float64", kernels="numpy", tiles=tiles, comm=comm)
    model = arrays_of(F)[0]
    W, observed = F.wavelet_operator(model, common=common), F(model)
    wavelet = collops.from_global(np.asarray(geometry.wavelet), layout=W.domain, comm=comm)
    assert float((W @ wavelet - observed).norm()) < 1e-12 * float(observed.norm())
    assert W.dottest()
    if not tiled:
        found = collops.cgls(W, observed, niter=60, rtol=0.0).x
        assert float((W @ found - observed).norm()) < 0.02 * float(observed.norm())
        # Waves of the last samples do not reach a receiver within the record.
        early, expected = (x.gather()[..., :15] for x in (found, wavelet))
        np.testing.assert_allclose(early, expected, rtol=0, atol=0.1 * np.abs(expected).max())


def test_unusable_models(comm):
    F = Propagator(*small(2, 2), kernels="numpy", comm=comm)
    with pytest.raises(UnsupportedTypeError, match="distributed"):
        F.wavelet_operator(np.ones(F.grid.shape))
