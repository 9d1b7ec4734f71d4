"""The Kirchhoff operator of one rank: from an image to the traces of the rank's shots, on flat arrays of its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine, engine_of, kernel_table, repeatable
from collops.extend.engines import engine as engine_called
from collops.extend.operators import applied_on_host, contiguous, store
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.geometry import checked_wavelet
from collops.seismic.kirchhoff.weights import Bands, Weights

_kernels_of = kernel_table("collops.seismic.kirchhoff", "host", cupy="gpu")


class LocalKirchhoff:
    r"""Kirchhoff demigration (forward) and migration (adjoint) in the memory of one process or one device.

    Parameters
    ----------
    tables : FixedTables
        Travel times of the sources and receivers; see :meth:`FixedTables.from_seconds`.
    dims : sequence of int
        Shape of the image, depth last.
    wavelet : array
        Taps of the wavelet, at the sampling interval of the traces.
    wavelet_center : int
        Index of the tap at time zero.
    weights : Weights, optional
        Factors of the arrivals, with the same rows and the operator's dtype; none by default.
    bands : Bands, optional
        Filters against aliasing; by default none.
    engine : str or Engine, optional
        ``"numpy"`` or ``"cupy"``; by default the environment's COLLOPS_ENGINE, or NumPy.
    kernels : {"numba", "numpy"}, optional
        On the numpy engine: the multi-threaded kernels (the default), or plain NumPy, which is many times slower.
        Without Numba, plain NumPy is the default, with a warning.
    threads : int, optional
        Threads of the Numba kernels; by default NUMBA_NUM_THREADS, or else all cores of this process.
    deterministic : bool, optional
        Whether results on a device are bitwise reproducible, which is slower; on hosts they always are. The
        environment's COLLOPS_DETERMINISTIC requests it for all operators.

    Attributes
    ----------
    shape : tuple of int
        Number of data samples and number of image points.
    dtype : numpy.dtype
        float32 or float64.
    dims, dimsd : tuple of int
        Shapes of the image and of the data: (sources, receivers, samples).
    engine : Engine
        The engine of the operator.

    Raises
    ------
    InputError
        If an argument cannot be used.
    UnsupportedTypeError
        If the engine has no kernels.

    Notes
    -----
    With travel times :math:`\tau`, wavelet :math:`w` and sampling interval :math:`\Delta t`, forward is

    .. math::
        d(s, r, t) = \sum_b w_b(t) * \sum_{p \in P_b(r)} m(p)\, W(s, r, p)\,
        \Lambda\left(\frac{t - \tau(s, p) - \tau(r, p)}{\Delta t}\right)

    where :math:`\Lambda` is the hat function, that is, linear interpolation between the two nearest samples. The
    weights :math:`W` are 1 without `weights`. Each of the `bands` has a wavelet :math:`w_b`, and for each receiver the
    image points :math:`P_b(r)` that use it; without `bands` there is one wavelet. Arrivals before the first sample, at
    the last or after it are omitted. Travel times are stored as integers, with relative errors below 1e-5 in float32 on
    traces of any length; for float64 operators, and for float32 operators on more than 8,191 samples, they take 8 bytes
    a number instead of 4. Taps at the ends of the wavelet that are below the rounding error are omitted. Unless
    `deterministic` is true, the summation order on devices varies, and results of two calls differ by rounding; on
    hosts results do not depend on the number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff import FixedTables, LocalKirchhoff
    >>> tables = FixedTables.from_seconds(np.array([[0.004, 0.006]]), np.zeros((1, 2)), 0.004, 5, "float64")
    >>> LocalKirchhoff(tables, (2,), np.ones(1), 0, kernels="numpy").forward_local(np.ones(2))
    array([0. , 1.5, 0.5, 0. , 0. ])
    """

    capturable = True

    def __init__(
        self,
        tables: FixedTables,
        dims: Sequence[int],
        wavelet: ArrayLike,
        wavelet_center: int,
        *,
        weights: Weights | None = None,
        bands: Bands | None = None,
        engine: str | Engine | None = None,
        kernels: str | None = None,
        threads: int | None = None,
        deterministic: bool = False,
    ) -> None:
        self.engine = engine if isinstance(engine, Engine) else engine_called(engine)
        self.dims = tuple(int(n) for n in dims)
        points = math.prod(self.dims)
        nodes = tables.nodes
        if nodes.points != points or (nodes.factor > 1 and nodes.shape != self.dims):
            raise InputError(f"travel times for an image of shape {nodes.shape} do not fit one of shape {self.dims}")
        self.dimsd = (len(tables.sources), len(tables.receivers), tables.scale.samples)
        self.dtype = tables.scale.dtype
        self.shape = (math.prod(self.dimsd), points)
        for name, table in (("weights", weights and weights.fields), ("bands", bands and bands.choice)):
            if table is not None and table.shape[-1] != nodes.size:
                raise InputError(f"{name} of shape {table.shape} do not fit {nodes.size} points of the travel times")
        if weights is not None and len(weights.fields) != len(tables.times):
            raise InputError(f"weights of {len(weights.fields)} stations do not fit times of {len(tables.times)}")
        if bands is not None and len(bands.receivers) != len(tables.receivers):
            raise InputError(f"bands of {len(bands.receivers)} receivers do not fit {len(tables.receivers)}")
        taps, center = _significant_taps(*checked_wavelet(wavelet, wavelet_center), self.dtype)
        wavelets, center = (taps[np.newaxis], center) if bands is None else bands.wavelets(taps, center)
        if self.engine.traced:
            raise UnsupportedTypeError(f"Kirchhoff operators need the engine numpy or cupy, not {self.engine.name}")
        # An object whose forward(image, traces) and adjoint(traces, image) fill flat arrays.
        self._kernels = _kernels_of(self.engine).kernels(
            tables,
            {"wavelets": wavelets, "center": center, "weights": weights, "bands": bands},
            self.dims,
            name=kernels,
            threads=threads,
            deterministic=deterministic or repeatable(),
        )

    def __repr__(self) -> str:
        return f"<LocalKirchhoff {self.dims} -> {self.dimsd}, {self.dtype}, {self.engine.name}>"

    def forward_local(self, x: LocalArray, out: LocalArray = None) -> LocalArray:
        """Demigrate a flat image; return flat data, trace by trace. `out` may be used for them."""
        return self._apply(x, out)

    def adjoint_local(self, y: LocalArray, out: LocalArray = None) -> LocalArray:
        """Migrate flat data; return a flat image. `out` may be used for it."""
        return self._apply(y, out, adjoint=True)

    def forward_columns(self, X: LocalArray, out: LocalArray) -> LocalArray:
        """Demigrate each row of `X`, on the host, and return `out`."""
        return self._apply(X, out, len(X))

    def adjoint_columns(self, Y: LocalArray, out: LocalArray) -> LocalArray:
        """Migrate each row of `Y`, on the host, and return `out`."""
        return self._apply(Y, out, len(Y), adjoint=True)

    def matvec(self, x: LocalArray) -> LocalArray:
        """Demigrate, as PyLops and SciPy call it."""
        return self.forward_local(x)

    def rmatvec(self, y: LocalArray) -> LocalArray:
        """Migrate, as PyLops and SciPy call it."""
        return self.adjoint_local(y)

    def _apply(self, source: LocalArray, out: LocalArray, count: int = 1, *, adjoint: bool = False) -> LocalArray:
        shape, engine = self.shape[::-1] if adjoint else self.shape, engine_of(source)
        check_arrays(self.engine, engine, source.dtype)
        if engine is not self.engine:  # a host operator for vectors of JAX
            apply, transposed = self.forward_local, self.adjoint_local
            if adjoint:
                apply, transposed = transposed, apply
            return applied_on_host(apply, transposed, shape, self.dtype, source)
        result_size, size = count * shape[0], count * shape[1]
        if source.size != size:
            raise LayoutError(f"expected {size} elements, got {source.size}")
        source = contiguous(source, self.dtype).reshape(-1)
        fits = out is not None and out.dtype == self.dtype and out.flags.c_contiguous and out.size == result_size
        result: LocalArray = out if fits else self.engine.xp.empty(result_size, self.dtype)
        (self._kernels.adjoint if adjoint else self._kernels.forward)(source, result.reshape(-1))
        return store(result, out)


class StreamedKirchhoff:
    """A local Kirchhoff operator that is constructed for each application and freed after it, to save memory.

    Parameters
    ----------
    make : callable
        Returns the :class:`LocalKirchhoff`.
    tables : FixedTables
        Its tables, which determine the numbers of traces and samples.
    points : int
        Number of image points.
    """

    capturable = False

    def __init__(self, make: Callable[[], LocalKirchhoff], tables: FixedTables, points: int) -> None:
        self._make, self.dtype = make, tables.scale.dtype
        self.shape = (len(tables.sources) * len(tables.receivers) * tables.scale.samples, points)

    def forward_local(self, x: LocalArray, out: LocalArray = None) -> LocalArray:
        """Demigrate a flat image; return flat data, trace by trace. `out` may be used for them."""
        return self._make().forward_local(x, out)

    def adjoint_local(self, y: LocalArray, out: LocalArray = None) -> LocalArray:
        """Migrate flat data; return a flat image. `out` may be used for it."""
        return self._make().adjoint_local(y, out)

    def forward_columns(self, X: LocalArray, out: LocalArray) -> LocalArray:
        """Demigrate each row of `X`, on the host, and return `out`."""
        return self._make().forward_columns(X, out)

    def adjoint_columns(self, Y: LocalArray, out: LocalArray) -> LocalArray:
        """Migrate each row of `Y`, on the host, and return `out`."""
        return self._make().adjoint_columns(Y, out)


def check_arrays(engine: Engine, actual: Engine, dtype: np.dtype) -> None:
    """Raise UnsupportedTypeError for arrays that an operator on `engine` does not accept; host operators accept JAX."""
    if actual is not engine and not (actual.traced and engine.memory == "host"):
        raise UnsupportedTypeError(f"this Kirchhoff operator needs arrays of {engine.name}, not of {actual.name}")
    if dtype.kind == "c":
        raise UnsupportedTypeError(
            "a Kirchhoff operator needs real arrays; apply it to the real and the imaginary part separately"
        )


def _significant_taps(taps: np.ndarray, center: int, dtype: np.dtype) -> tuple[np.ndarray, int]:
    """Omit taps at both ends that are below the rounding error: a third to a half of a Ricker wavelet.

    The sum of their magnitudes is below a quarter of the floating-point spacing at the largest tap.
    """
    sizes = np.abs(taps)
    limit = 0.125 * float(np.finfo(dtype).eps) * float(sizes.max())
    first = min(int(np.searchsorted(np.cumsum(sizes), limit, side="right")), center)
    behind = min(int(np.searchsorted(np.cumsum(sizes[::-1]), limit, side="right")), taps.size - 1 - center)
    return taps[first : taps.size - behind], center - first
