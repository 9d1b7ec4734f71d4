"""Multi-dimensional convolution: one matrix product for each frequency, with frequencies distributed over ranks."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from collops.array import Array, Layout
from collops.array.dtypes import real_of
from collops.comm.arguments import communicator_or_world
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.base import AnyLayout, LinearOperator
from collops.operators.dims import check_count
from collops.operators.fourier.operator import Fourier
from collops.operators.fourier.spread import find_product
from collops.operators.fourier.transform import AxisTransform
from collops.operators.fredholm1 import Fredholm1
from collops.operators.memory import Buffers, filled

if TYPE_CHECKING:
    from collections.abc import Callable

    from collops.backend import Engine, LocalArray
    from collops.comm import Communicator
    from collops.operators.fourier.spread import SpreadProduct

Form: TypeAlias = Literal["replicated", "split"] | Layout


class MDC(LinearOperator):
    r"""Multi-dimensional convolution of real wavefields with a kernel whose frequencies are split over the ranks.

    Each rank passes any number of frequencies, possibly none, numbered in the order of the ranks. Model and data are
    in the time domain. Messages are sent in the frequency domain and hold only the frequencies of the kernel. A
    replicated side sends nothing as input and one allgatherv as result; every rank transforms all of its traces. If
    both sides are replicated and large, each GPU of one host transforms a share of the input's traces, and the GPUs
    pipeline the exchange of spectra with the computation. A split side sends one all-to-all-v; each rank holds and
    transforms its share of the receivers (model) or sources (data). A side in any other layout takes the messages of
    the transform of its time axis and of the redistribution.

    By default both sides are replicated, which sends the fewest messages: one in forward and one in adjoint. With
    three ranks or more, split sides move fewer bytes, and their vectors and transforms are divided by the number of
    ranks: use them for large wavefields.

    Collective: shapes and types are exchanged once.

    Parameters
    ----------
    G : array, 3-D
        Spectra of the kernel at the lowest frequencies, this rank's share, of shape (frequencies, ns, nr).
    nt : int
        Samples in time of model and data; with `twosided` an odd number, including both halves.
    nv : int
        Number of virtual sources.
    nfmax : int, optional
        Number of frequencies of all ranks together; counted by default.
    dt, dr : float
        Sampling of time (s) and of receivers (m), which scales the integrals.
    twosided : bool
        Whether the model has negative times too, with its zero in the middle.
    saveGt, usematmul : bool
        As for :class:`Fredholm1`.
    conj : bool
        Whether to convolve with the conjugate of `G`.
    prescaled : bool
        Whether `G` is already scaled by ``dt * dr * sqrt(nt)``.
    model, data : {"replicated", "split"} or Layout
        Distribution of model and data; see above.
    comm : Communicator, optional
        The ranks; the world by default.

    Attributes
    ----------
    dims, dimsd : tuple of int
        Shapes of model, (nt, nr, nv), and data, (nt, ns, nv).
    dtype : numpy.dtype
        The real type of the precision of `G`; model and data are real.
    kernel : LinearOperator
        The operator that is applied to the spectra.

    Raises
    ------
    InputError
        On every rank, if `nt` is even and `twosided`, `nfmax` is not the number of frequencies of all ranks, or is
        larger than the number of frequencies of `nt` samples; or `dt` or `dr` is not finite.
    LayoutError
        On every rank, if the ranks' kernels or a layout do not fit.
    UnsupportedTypeError
        When the operator is applied, if the input is complex.

    Notes
    -----
    .. math::
        y(t, s, v) = \mathscr{F}^{-1} \Big( \sqrt{n_t}\, \Delta t\, \Delta r \sum_r G(f, s, r)
        \mathscr{F} (x(t, r, v)) \Big)

    Results equal the results of ``pylops.waveeqprocessing.MDC``.

    References
    ----------
    .. [1] Wapenaar, K., van der Neut, J., Ruigrok, E., Draganov, D., Hunziker, J., Slob, E., Thorbecke, J., and
       Snieder, R., "Seismic interferometry by crosscorrelation and by multi-dimensional deconvolution: a systematic
       comparison", Geophysical Journal International, 185, 1335-1364, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> op = collops.MDC(np.ones((4, 2, 3), complex), nt=9, nv=1)
    >>> op.dims, op.dimsd, op.dtype
    ((9, 3, 1), (9, 2, 1), dtype('float64'))
    """

    def __init__(
        self,
        G: LocalArray,
        nt: int,
        nv: int,
        nfmax: int | None = None,
        dt: float = 1.0,
        dr: float = 1.0,
        twosided: bool = True,
        saveGt: bool = True,
        conj: bool = False,
        prescaled: bool = False,
        *,
        usematmul: bool = True,
        model: Form = "replicated",
        data: Form = "replicated",
        comm: Communicator | None = None,
    ) -> None:
        comm = communicator_or_world(comm)
        fredholm = Fredholm1(G, nv, saveGt, usematmul, comm=comm)
        samples = _samples(nt, twosided, fredholm.nsl, nfmax)
        self.dims = (samples, fredholm.ny, fredholm.nz)
        self.dimsd = (samples, fredholm.nx, fredholm.nz)
        domain, range = (
            _layout(form, name, shape, comm)
            for form, name, shape in ((model, "model", self.dims), (data, "data", self.dimsd))
        )
        super().__init__(domain, range, real_of(fredholm.dtype), comm)
        self.capturable = fredholm.capturable
        self.kernel = fredholm.conj() if conj else fredholm
        self._spectral = np.result_type(fredholm.dtype, np.complex64)
        # Included in the factors of the frequencies, so that neither `G` nor the arrays are scaled.
        scale = 1.0 if prescaled else _interval("dt", dt) * _interval("dr", dr) * math.sqrt(samples)
        batch = fredholm._batch
        by_pieces = batch.by_rows and self.kernel is fredholm and domain.is_replicated and range.is_replicated
        model_side = self._side(domain, fredholm.domain, shift_before=twosided, scale=scale)
        data_side = self._side(range, fredholm.range)
        # For each direction: the transform of the input, the kernel, the transform of the result; and for the pipelined
        # product: products of some rows, and the function that prepares it.
        self._steps = [
            (source.fourier, apply, target.fourier, compute, self._finder(source, target) if by_pieces else None)
            for source, apply, target, compute in (
                (model_side, self.kernel._forward, data_side, batch.forward),
                (data_side, self.kernel._adjoint, model_side, batch.adjoint),
            )
        ]
        self._buffers = Buffers()

    def _side(self, times: Layout, spectra: Any, **options: Any) -> _Side:
        samples = times.shape[0]
        transform = AxisTransform(0, samples, samples, real=True, kept=spectra.shape[0], **options)
        fourier = Fourier(times, [transform], self._spectral, self.comm, clinear=False, range_layout=spectra)
        return _Side(transform, fourier)

    def _finder(self, source: _Side, target: _Side) -> Callable[[Engine], SpreadProduct | None]:
        """Return a function that prepares the product by pieces for an engine; its first call is collective."""
        layouts = source.fourier.range, target.fourier.range
        return cache(partial(find_product, source.transform, target.transform, *layouts, self._spectral, self.comm))

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        source, kernel, target, compute, find = self._steps[adjoint]
        if x.dtype.kind == "c":
            raise UnsupportedTypeError(
                f"MDC needs real wavefields, not {x.dtype}; apply it to the real and the imaginary part"
            )
        if find is not None and x.local_array.dtype == out.local_array.dtype == real_of(self._spectral):
            product = find(x.engine)
            if product is not None:
                return filled(out, product.apply(compute, x.local_array, out.local_array))
        spectra = source._forward(x, self._buffer("spectra", source.range, x))
        product = kernel(spectra, self._buffer("product", target.range, x))
        return target._adjoint(product, out)

    def _buffer(self, slot: str, layout: AnyLayout, x: Array) -> Array:
        return self._buffers.get((slot, layout), layout, x, self._spectral)


class _Side(NamedTuple):
    """The transform of model or data from time to the frequencies of the kernel."""

    transform: AxisTransform
    fourier: Fourier


def _interval(name: str, value: float) -> float:
    if not (np.isrealobj(value) and np.isfinite(value)):
        raise InputError(f"{name} must be a finite number, not {value!r}")
    return value


def _samples(nt: int, twosided: bool, frequencies: int, nfmax: int | None) -> int:
    """Return the number of samples in time, if it allows all frequencies."""
    samples = check_count("nt", nt, smallest=1)
    if twosided and samples % 2 == 0:
        raise InputError(f"nt must be odd for two-sided wavefields, not {nt}: equally many negative and positive times")
    if nfmax is not None and nfmax != frequencies:
        raise InputError(f"nfmax must be the number of frequencies of all ranks, {frequencies}, not {nfmax}")
    if frequencies > samples // 2 + 1:
        raise InputError(f"{samples} samples have {samples // 2 + 1} frequencies, fewer than the {frequencies} of G")
    return samples


def _layout(form: Layout | str, name: str, shape: tuple[int, ...], comm: Communicator) -> Layout:
    if isinstance(form, Layout):
        if form.shape != shape or form.ranks != comm.size:
            raise LayoutError(f"the {name} must have a layout of shape {shape} on {comm.size} ranks, not {form}")
        return form
    if form == "replicated":
        return Layout.replicated(shape, comm.size)
    if form == "split":
        return Layout.split(shape, comm.size, 1)
    raise InputError(f"{name} must be 'replicated', 'split' or a Layout, not {form!r}")
