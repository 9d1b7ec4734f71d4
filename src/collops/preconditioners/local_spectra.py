"""A preconditioner for imaging: division by the local spectra of a blurring operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.fft

from collops.array import Array, Layout, from_global
from collops.array.dtypes import real_of
from collops.backend import Engine, LocalArray
from collops.errors import InputError, LayoutError
from collops.operators.base import LinearOperator
from collops.operators.memory import Coefficients, filled
from collops.solvers.problem import check_count, check_number, check_operator, on_host

if TYPE_CHECKING:
    from collops.comm import Communicator

_SMOOTH = 1 / 24  # standard deviation of the average over wavenumbers, relative to the extent of a window


def local_spectra(
    A: LinearOperator,
    window: int | Sequence[int] = 32,
    *,
    floor: float = 2e-3,
    probes: int = 2,
    seed: int = 0,
    engine: str | None = None,
) -> LinearOperator:
    r"""Return an approximate inverse root of a blurring normal operator, such as of imaging. Collective.

    Near a point, such an operator multiplies wavenumbers by a spectrum, the Fourier transform of the local point spread
    function, which varies slowly in space. The preconditioner divides by the root of the spectrum, window by window,
    like deblurring filters for migrated images [Hu et al. 2001; Guitton 2004].

    Parameters
    ----------
    A : LinearOperator
        The normal operator, ``op.H @ op``, of images with any number of axes and one layout on both sides.
    window : int or sequence of int
        Extent of a window in points, for all axes or for each: about eight times the width of the point spread
        function, within which the spectrum should vary little.
    floor : float
        Added to the spectra, relative to their maximum. Smaller values need fewer iterations, but amplify noise and
        errors of the spectra.
    probes : int
        Number of random images for estimating the spectra; each takes one product with `A`.
    seed : int
        Seed of the images, which do not depend on the number of ranks.
    engine : str, optional
        Engine of the images.

    Returns
    -------
    LinearOperator
        Hermitian positive definite, for every engine. Use it for :func:`collops.cgls` with ``op``, and its square
        ``M @ M`` for :func:`collops.cg` and others with `A`. Applying it sends one message to gather the image unless
        it is replicated.

    Raises
    ------
    LayoutError
        If `A` has two layouts, stacked ones, or no points.
    InputError
        If a number is invalid, or `A` maps random images to zero or to numbers that are not finite.

    Notes
    -----
    A probe applies the operator, with the current preconditioner on both sides, to random signs. The ratio of output
    and input power, averaged over neighbouring wavenumbers, corrects the spectra. Because strong wavenumbers leak into
    weak ones, the first probe yields a rough shape only; outputs of later probes are nearly white.

    Windows overlap by half, and their squares add up to 1. Every rank stores all spectra: for an image with d axes,
    about 2^d numbers per point.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.preconditioners import local_spectra
    >>> blur = np.exp(-0.5 * np.subtract.outer(np.arange(64.0), np.arange(64.0)) ** 2)
    >>> A = collops.VStack([blur])
    >>> data = A @ collops.random(A.domain, seed=1)
    >>> plain, quick = (
    ...     collops.cgls(A, data, niter=100, rtol=0.01, M=M) for M in (None, local_spectra(A.H @ A, 16))
    ... )
    >>> quick.iterations < plain.iterations / 2
    True
    """
    check_operator("A", A)
    layout = A.domain
    if layout is not A.range or not isinstance(layout, Layout) or not layout.size:
        raise LayoutError(f"local_spectra needs an operator between nonempty images of one layout, not {A!r}")
    halves = _half_extents(window, layout.shape)
    if not check_number("floor", floor):
        raise InputError("floor must be positive: spectra have zeros")
    probes, seed = check_count("probes", probes, smallest=1), check_count("seed", seed)
    return _estimated(A, layout, halves, floor, probes, np.random.default_rng(seed), engine)


def _estimated(
    A: LinearOperator,
    layout: Layout,
    halves: list[int],
    floor: float,
    probes: int,
    random: np.random.Generator,
    engine: str | None,
) -> LocalSpectra:
    """Estimate the spectra of `A` from random images, and return the preconditioner."""
    dtype = np.result_type(A.dtype, np.float32)
    # An even number of windows, so that every second one tiles the image.
    counts = [2 * (-(-extent // half) // 2 + 1) for extent, half in zip(layout.shape, halves, strict=True)]
    spectra = np.ones((*counts, *(2 * half for half in halves)))
    M = LocalSpectra(layout, dtype, A.comm, halves, spectra)
    for _ in range(probes):
        signs = random.choice([-1.0, 1.0], size=layout.shape).astype(dtype)
        image = (M @ A @ M)._forward(from_global(signs, layout, comm=A.comm, engine=engine), None)
        spectra *= _amplitude_ratios(image.engine.to_host(image.gather()), signs, halves, counts)
        largest = float(spectra.max())
        if not 0 < largest < np.inf:
            raise InputError("the operator maps random images to zero, or to numbers that are not finite")
        spectra += floor * largest
        M = LocalSpectra(layout, dtype, A.comm, halves, spectra**-0.5)
    return M


def _half_extents(window: int | Sequence[int], shape: tuple[int, ...]) -> list[int]:
    """Return half the extent of a window along each axis of the image."""
    extents = list(window) if isinstance(window, Sequence) else [window] * len(shape)
    if len(extents) != len(shape):
        raise InputError(f"window must be one number or one for each of {len(shape)} axes, not {window!r}")
    return [(check_count("window", extent, smallest=4) + 1) // 2 for extent in extents]


def _amplitude_ratios(image: np.ndarray, probe: np.ndarray, halves: list[int], counts: list[int]) -> np.ndarray:
    """Return the amplitude spectra of `image` relative to `probe`, averaged over neighbouring wavenumbers."""
    from scipy.ndimage import gaussian_filter

    smooth = [0.0] * len(halves) + [2 * _SMOOTH * half for half in halves]
    output, input = (gaussian_filter(_powers(values, halves, counts), smooth, mode="wrap") for values in (image, probe))
    return np.sqrt(output / np.maximum(input, np.finfo(probe.dtype).eps * input.max()))


class LocalSpectra(LinearOperator):
    """The sum of windows, each multiplied by real numbers in wavenumber; see :func:`local_spectra`.

    `halves` are half the extents of a window, and `factors` has an axis of windows for each axis of the image, then an
    axis of wavenumbers for each. Window centres are half an extent apart, from the first point to beyond the last.
    """

    capturable = False  # transforms on devices create plans

    def __init__(
        self, layout: Layout, dtype: np.dtype, comm: Communicator, halves: list[int], factors: np.ndarray
    ) -> None:
        super().__init__(layout, layout, dtype, comm)
        self._layout, self._replicated = layout, Layout.replicated(layout.shape, comm.size)
        self._halves, self._count = halves, [count // 2 for count in factors.shape[: layout.ndim]]
        real, window = real_of(dtype), _sines(halves)
        self._window = Coefficients(window.reshape(_paired([1] * layout.ndim, window.shape)).astype(real))
        # Over every second window along each axis, which together tile the image.
        order = _paired(range(layout.ndim), range(layout.ndim, 2 * layout.ndim))
        self._tilings = {
            shift: Coefficients(factors[tuple(slice(begin, None, 2) for begin in shift)].transpose(order).astype(real))
            for shift in product((0, 1), repeat=layout.ndim)
        }

    def _apply(self, x: Any, out: Array, adjoint: bool) -> Array:
        if self._layout.is_replicated:
            return filled(out, self._filtered(x.local_array.astype(out.dtype), x.engine))
        result = self._filtered(x.redistribute(self._replicated).local_array.astype(out.dtype), x.engine)
        return filled(out, result[self._layout.slices(self.comm.rank)])

    def _filtered(self, image: LocalArray, engine: Engine) -> LocalArray:
        """Return the sum of the filtered windows of a local array with the entire image."""
        xp, window, axes = engine.xp, self._window.on_engine(engine), tuple(range(1, 2 * image.ndim, 2))
        fft = scipy.fft if on_host(engine) else xp.fft  # takes half of NumPy's time for such short transforms
        tiles = _paired(self._count, [2 * half for half in self._halves])
        extents = [(2 * count + 1) * half for count, half in zip(self._count, self._halves, strict=True)]
        inside = tuple(slice(half, half + extent) for half, extent in zip(self._halves, image.shape, strict=True))
        padded = engine.put(xp.zeros(extents, image.dtype), inside, image)
        total = xp.zeros(extents, image.dtype)
        for shift, factors in self._tilings.items():
            part = tuple(
                slice(offset * half, offset * half + 2 * half * count)
                for offset, half, count in zip(shift, self._halves, self._count, strict=True)
            )
            blocks, factor = padded[part].reshape(tiles) * window, factors.on_engine(engine)
            if image.dtype.kind == "c":
                blocks = fft.ifftn(fft.fftn(blocks, axes=axes) * factor, axes=axes)
            else:  # the factors of opposite wavenumbers are equal
                blocks = fft.rfftn(blocks, axes=axes) * factor[..., : tiles[-1] // 2 + 1]
                blocks = fft.irfftn(blocks, s=tuple(tiles[1::2]), axes=axes)
            total = engine.add(total, part, (blocks * window).reshape(padded[part].shape))
        return total[inside]


def _powers(image: np.ndarray, halves: list[int], counts: list[int]) -> np.ndarray:
    """Return the power spectra of an image in all windows: axes of windows, then of wavenumbers."""
    window = _sines(halves) ** 2
    padding = [(half, count * half - extent) for half, count, extent in zip(halves, counts, image.shape, strict=True)]
    strides = tuple(slice(None, None, half) for half in halves)
    parts = np.lib.stride_tricks.sliding_window_view(np.pad(image, padding), window.shape)[strides]
    return np.abs(np.fft.fftn(parts * window, axes=range(-len(halves), 0))) ** 2


def _sines(halves: list[int]) -> np.ndarray:
    """Return a window whose square and the squares of its shifts by half its extents add up to 1."""
    window = np.ones(())
    for half in halves:
        window = np.multiply.outer(window, np.sin(np.pi * (np.arange(2 * half) + 0.5) / (2 * half)))
    return window


def _paired(first: Iterable[int], second: Iterable[int]) -> list[int]:
    """Return the elements of both, alternating."""
    return [element for pair in zip(first, second, strict=True) for element in pair]
