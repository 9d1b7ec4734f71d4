"""Local spectra against windows that NumPy transforms, and against the spectrum of a blur."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from scipy.ndimage import gaussian_filter

import collops
from collops import profile
from collops.errors import InputError, LayoutError
from collops.preconditioners import local_spectra
from collops.preconditioners.local_spectra import LocalSpectra


class Blur(collops.LinearOperator):
    """A Gaussian filter between two multiplications by a weight: symmetric, of replicated images."""

    def __init__(self, shape, comm):
        self.layout = collops.Layout.replicated(shape, comm.size)
        super().__init__(self.layout, self.layout, "f8", comm)
        self.weight = 1 + np.linspace(0, 3, shape[0])[:, None] * np.ones(shape)

    def _forward(self, x, out):
        image = self.weight * gaussian_filter(self.weight * x.local_array, 1.0, mode="constant")
        return collops.from_global(image, self.layout, comm=self.comm)

    def _adjoint(self, y, out):
        return self._forward(y, out)


def line(size, comm):
    """Return a blur of points on a line, split over the ranks."""
    column = np.exp(-0.5 * np.arange(size) ** 2) * (np.arange(size) < 8)
    return collops.CSRMatrix.from_global(sp.csr_array(scipy.linalg.toeplitz(column)), comm=comm)


def by_windows(image, halves, factors):
    """Multiply the windows of an image with zeros around it, one by one."""
    pads = [(half, half * (count + 1)) for half, count in zip(halves, factors.shape, strict=False)]
    around = np.pad(image, pads)
    total = np.zeros_like(around)
    window = np.ones(())
    for half in halves:
        window = np.multiply.outer(window, np.sin(np.pi * (np.arange(2 * half) + 0.5) / (2 * half)))
    for place in np.ndindex(*factors.shape[: image.ndim]):
        part = tuple(slice(one * half, (one + 2) * half) for one, half in zip(place, halves, strict=True))
        total[part] += window * np.fft.ifftn(np.fft.fftn(window * around[part]) * factors[place])
    return total[tuple(slice(half, half + extent) for half, extent in zip(halves, image.shape, strict=True))]


@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_windows_are_those_of_numpy(comm, dtype):
    rng = np.random.default_rng(0)
    halves, shape = [3, 2], (7, 5)
    factors = rng.uniform(0.5, 2, (4, 4, 6, 4))
    axes = (2, 3)
    factors += np.roll(np.flip(factors, axes), (1, 1), axes)  # even, as spectra of real images are
    image = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype == "c8" else 0)
    expected = by_windows(image.astype("c16"), halves, factors)
    for layout in (collops.Layout.replicated(shape, comm.size), collops.Layout.split(shape, comm.size)):
        M = LocalSpectra(layout, np.dtype("f8"), comm, halves, factors)
        assert M.dottest()
        x = collops.from_global(image.astype(dtype), layout, comm=comm)
        with profile.count_messages() as messages:
            found = M @ x
        assert found.layout is layout and found.dtype == np.result_type(dtype, "f8")
        np.testing.assert_allclose(found.gather(), expected, rtol=1e-6, atol=1e-6)
        assert messages.total == (0 if layout.is_replicated or comm.size == 1 else 1)


def test_the_spectrum_of_a_blur_becomes_white(comm):
    """Of the blur, with the preconditioner on both sides."""
    A = line(96, comm)
    M = local_spectra(A, 24)
    white = M @ A @ M
    columns = [(white @ collops.from_global(unit, A.rows, comm=comm)).gather() for unit in np.eye(96)]
    values = np.linalg.eigvalsh(np.stack(columns))
    assert values[-1] / values[0] < 7  # of the blur 69


def test_images_that_change_in_strength(comm):
    A = Blur((40, 33), comm)
    assert A.dottest()
    y = A @ collops.random(A.domain, seed=3, comm=comm)
    M = local_spectra(A, (16, 12))
    plain, quick = (collops.cg(A, y, M=one, niter=200, tol=0, rtol=1e-2).iterations for one in (None, M @ M))
    assert quick <= plain / 3
    # The random images are those of the seed on any number of ranks.
    single = Blur((40, 33), collops.comm.alone())
    alone = local_spectra(single, (16, 12))
    x = collops.random(A.domain, seed=4, comm=comm)
    same = alone @ collops.from_global(x.gather(), single.layout, comm=single.comm)
    np.testing.assert_allclose((M @ x).gather(), same.gather(), rtol=1e-10, atol=1e-12)


def test_what_it_refuses(comm):
    A = line(20, comm)
    with pytest.raises(InputError, match="floor must be positive"):
        local_spectra(A, floor=0.0)
    with pytest.raises(InputError, match="window must be an integer of at least 4"):
        local_spectra(A, 2)
    with pytest.raises(InputError, match="one for each of 1 axes"):
        local_spectra(A, (8, 8))
    with pytest.raises(InputError, match="maps random images to zero"):
        local_spectra(0.0 * A, 8)
    with pytest.raises(LayoutError, match="nonempty images of one layout"):
        local_spectra(collops.VStack([np.ones((3, 4))], comm))
