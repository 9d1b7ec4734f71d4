"""Sliding: a local operator applied to overlapping windows along the leading axes of a distributed array."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from collops.array import Array, Layout
from collops.array.dtypes import as_dtype, real_of
from collops.array.layout_arguments import as_shape
from collops.array.redistribute import agree_on_values
from collops.array.regions import Region, transfers
from collops.backend import Engine, LocalArray
from collops.backend import engine as find_engine
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.errors import InputError, LayoutError
from collops.exchange import Box, ExchangePlan
from collops.operators.base import LinearOperator
from collops.operators.dims import Dims, check_count, placed
from collops.operators.local import LocalOperator, in_precision, lift_local
from collops.operators.memory import Buffers, Coefficients, filled

_POWERS = {"hanning": 1.0, "cosine": 1.0, "cosinesquare": 2.0, "cosinesqrt": 0.5}


class Sliding(LinearOperator):
    r"""A local operator applied to each of many overlapping windows, which are tapered and added up.

    Windows slide along the leading axes of the data, one for each number in `nwin`, and span the other axes. A window
    belongs to the rank that holds its first sample. Forward computes the windows of each rank and sends the samples
    beyond the rank's block to their owners; adjoint receives these samples. Each is one exchange, with the neighbours
    that the windows reach; no message is sent if no windowed axis is split.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    Op : local operator, or list or tuple of local operators
        From the model of a window, of shape `nop`, to a window; any type that :func:`collops.operators.lift_local`
        accepts. Or one for each window of all ranks, in C order; the entries for other ranks' windows are not used, and
        may be ``None``.
    dims : int or sequence of int
        Shape of the model as for PyLops: along windowed axes the number of windows times the extent of the model of a
        window. ``sliding1d_design`` and the other design functions of PyLops compute it.
    dimsd : Layout, int or sequence of int
        The data, on any process grid that leaves the axes without windows whole; a shape is split along axis 0.
    nwin : int or sequence of int
        Samples of a window along each windowed axis.
    nover : int or sequence of int
        Samples by which consecutive windows overlap, per windowed axis.
    tapertype : {"hanning", "cosine", "cosinesquare", "cosinesqrt"}, optional
        Taper of the overlaps; ``None`` applies none.
    savetaper : bool
        Whether to store the product of the tapers of all windowed axes for this rank's windows, which is multiplied in
        one pass, instead of one taper for each axis.
    scalings : sequence of float, optional
        A factor for each window of all ranks, in C order.
    comm : Communicator, optional
        The ranks; the world by default.

    Attributes
    ----------
    nwins : tuple of int
        Number of windows along each windowed axis.
    dims, dimsd : tuple of int
        Shapes of model, ``(*nwins, *nop)``, and data.

    Raises
    ------
    InputError
        If windows do not fit the data, overlap by a window or more, or with a taper by more than half a window; if
        the taper is unknown, or the numbers of operators or scalings and of windows differ.
    LayoutError
        On every rank, if `dims` or an operator does not fit the windows, or an axis without windows is split.
    UnsupportedTypeError
        On every rank, if an operator cannot be used.

    Notes
    -----
    With the windows :math:`W_i` of the data, which begin every ``nwin - nover`` samples, and tapers :math:`t_i`,

    .. math:: y = \sum_i W_i^T\, t_i\, A_i\, x_i, \qquad x_i = A_i^H\, t_i\, W_i\, y.

    Samples after the last window are zero in the data, and ignored in the adjoint. Outer edges are not tapered. Results
    equal the results of ``Sliding1D``, ``Sliding2D`` and ``Sliding3D`` of ``pylops.signalprocessing``, whose `nop`
    follows from `dims`. An operator for all windows at once, which they also accept, would need the windows of all
    ranks, and is refused. PyLops 2.8 tapers one outer edge of an axis with a single window (which one depends on
    `savetaper`), and applies no taper if it does not know its name.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> S = collops.Sliding(np.eye(4), 12, 10, nwin=4, nover=1, tapertype=None)  # windows begin at 0, 3 and 6
    >>> S.dims, (S @ collops.ones(S.domain)).gather()
    ((3, 4), array([1., 1., 1., 2., 1., 1., 2., 1., 1., 1.]))
    """

    def __init__(
        self,
        Op: Any,
        dims: SupportsIndex | Sequence[SupportsIndex],
        dimsd: Dims,
        nwin: SupportsIndex | Sequence[SupportsIndex],
        nover: SupportsIndex | Sequence[SupportsIndex],
        tapertype: str | None = "hanning",
        savetaper: bool = True,
        *,
        scalings: ArrayLike | None = None,
        comm: Communicator | None = None,
    ) -> None:
        data, comm = placed(dimsd, comm)
        axes = _window_axes(data, nwin, nover, tapertype)
        self.nwins = tuple(axis.windows for axis in axes)
        nop = _model_of_a_window(as_shape(dims), self.nwins, data)
        cuts = zip(axes, data.starts, data.sizes, strict=False)
        blocks = [axis.of_blocks(starts, sizes) for axis, starts, sizes in cuts]
        model = Layout(
            (*self.nwins, *nop),
            data.ranks,
            data.process_grid,
            (*data.axes[: len(axes)], *[None] * len(nop)),
            [*([count for _, count in block] for block in blocks), *[None] * len(nop)],
            data.mask,
        )
        firsts, counts = zip(*_windows_of(data, blocks, comm.rank), strict=True)
        spanned = data.shape[len(axes) :]
        self._window = (*(axis.samples for axis in axes), *spanned)
        self._operators = _lifted(Op, model, comm, self._window)
        kinds = comm.allgather_metadata(sorted({_kind(op) for op in self._operators}))
        entries = [entry for rank in kinds for entry in rank]
        super().__init__(model, data, np.result_type(*(as_dtype(name) for name, *_ in entries)), comm)
        self.capturable, self.clinear = (all(entry[column] for entry in entries) for column in (1, 2))
        self.dims, self.dimsd = model.shape, data.shape
        self._counts, self._pieces = counts, _pieces(axes, counts)
        # The axes of an array of windows, with each windowed axis after the axis that numbers its windows.
        pairs = [axis for number in range(len(axes)) for axis in (number, len(axes) + number)]
        self._interleaved = [*pairs, *range(2 * len(axes), len(axes) + len(self._window))]
        self._extended = (*(axis.padded(count) for axis, count in zip(axes, counts, strict=True)), *spanned)
        factors = _factors(axes, firsts, counts, tapertype, len(spanned))
        if scalings is not None:
            own = tuple(slice(first, first + count) for first, count in zip(firsts, counts, strict=True))
            values = _scalings(scalings, self.nwins)
            agree_on_values(comm, "scalings", values)
            factors.append(values[own].reshape(*counts, *[1] * len(self._window)))
        self._factors = [reduce(np.multiply, factors)] if factors and savetaper else factors
        self._weights: dict[np.dtype, list[Coefficients]] = {}

        def regions(rank: int) -> list[Region]:
            windows = zip(axes, _windows_of(data, blocks, rank), strict=True)
            return [(*(axis.reach(*some) for axis, some in windows), *((0, extent) for extent in spanned))]

        moves = transfers(data, comm.rank, regions)
        sends, receives = ([(peer, box) for peer, _, box in side] for side in moves[:2])
        self._fill = ExchangePlan(comm, sends, receives, travels=moves.travels)
        self._add_back = ExchangePlan(comm, receives, sends, travels=moves.travels)
        self._buffers = Buffers()

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        with collective_errors(self.comm):
            converted = {op: in_precision(op, dtype) for op in dict.fromkeys(self._operators)}
        other = self._retyped(dtype)
        other._operators, other._buffers = [converted[op] for op in self._operators], Buffers()
        return other

    def _forward(self, x: Array, out: Array | None) -> Array:
        out = self._new(self.range, x) if out is None else out
        engine, buffers = x.engine, self._buffers
        dtype = engine.dtype(np.result_type(self.dtype, x.dtype))
        result = buffers.result("data", out, dtype)
        models = buffers.contiguous("model", x.local_array, x.dtype, engine)
        windows = buffers.local("windows", (*self._counts, *self._window), dtype, engine)
        windows = self._weighted(self._transformed(models, windows, self._window, "forward", engine), engine)
        extended = self._added(windows, buffers.local("extended", self._extended, dtype, engine), engine)
        target = engine.xp.zeros(out.local_array.shape, dtype) if result is None else engine.put(result, ..., 0)
        return filled(out, self._add_back(extended.astype(dtype, copy=False), target, op="sum"))

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        out = self._new(self.domain, y) if out is None else out
        engine, buffers = y.engine, self._buffers
        result = buffers.result("model", out, engine.dtype(np.result_type(self.dtype, y.dtype)))
        samples = buffers.contiguous("data", y.local_array, y.dtype, engine)
        extended = buffers.local("extended", self._extended, y.dtype, engine)
        if extended is None:
            extended = engine.xp.zeros(self._extended, y.dtype)
        extended = self._fill(samples, extended)
        windows = buffers.local("windows", (*self._counts, *self._window), y.dtype, engine)
        windows = self._weighted(self._cut(extended, windows, engine), engine)
        model = self.dims[len(self.nwins) :]
        return filled(out, self._transformed(windows, result, model, "adjoint", engine))

    def _transformed(
        self, source: LocalArray, target: LocalArray, shape: tuple[int, ...], direction: str, engine: Engine
    ) -> LocalArray:
        """Return the images of all windows, each of `shape`, or of their models; in `target` on mutable engines."""
        count = len(self._operators)
        rows = source.reshape(count, prod(source.shape[len(self._counts) :]))
        if target is None:
            apply = [getattr(op, f"{direction}_local") for op in self._operators]
            images = [function(row, None) for function, row in zip(apply, rows, strict=True)]
            # A rank without windows also contributes to derivatives, which have messages: its arrays, without elements,
            # are made of each other.
            return (engine.xp.stack(images) if images else source).reshape(*self._counts, *shape)
        results = target.reshape(count, prod(shape))
        first = self._operators[0] if count else None
        if first is not None and all(op is first for op in self._operators) and _multiplies(first, engine):
            getattr(first, f"{direction}_columns")(rows, results)
            return target
        for op, row, result in zip(self._operators, rows, results, strict=True):
            getattr(op, f"{direction}_local")(row, result)
        return target

    def _weighted(self, windows: LocalArray, engine: Engine) -> LocalArray:
        """Return windows times tapers and scalings, in the same memory if the engine is mutable."""
        dtype = real_of(windows.dtype)
        if dtype not in self._weights:
            self._weights[dtype] = [Coefficients(factor.astype(dtype)) for factor in self._factors]
        for weights in self._weights[dtype]:
            factor = weights.on_engine(engine)
            windows = engine.xp.multiply(windows, factor, out=windows) if engine.mutable else windows * factor
        return windows

    def _added(self, windows: LocalArray, extended: LocalArray, engine: Engine) -> LocalArray:
        """Return the sum of the windows, in `extended` if the engine is mutable."""
        windows = windows.transpose(self._interleaved)
        if engine.mutable:
            extended.fill(0)
            for piece in self._pieces:
                view = extended[piece.box].reshape(piece.steps + extended.shape[len(self._counts) :])
                view[piece.begin] += windows[piece.part]
            return extended
        if not self._pieces:
            return windows.reshape(self._extended)
        extended = engine.xp.zeros(self._extended, windows.dtype)
        for piece in self._pieces:
            values = windows[piece.part]
            widths = [(0, step - have) for step, have in zip(piece.steps, values.shape, strict=False)]
            values = engine.xp.pad(values, [*widths, *[(0, 0)] * (values.ndim - len(widths))])
            shape = tuple(part.stop - part.start for part in piece.box)
            extended = engine.add(extended, piece.box, values.reshape(shape + extended.shape[len(shape) :]))
        return extended

    def _cut(self, extended: LocalArray, windows: LocalArray, engine: Engine) -> LocalArray:
        """Return the windows of `extended`, in `windows` if the engine is mutable."""
        shape = (*self._counts, *self._window)
        if windows is None and not self._pieces:
            return extended.reshape(shape)
        windows = engine.xp.zeros(shape, extended.dtype) if windows is None else windows
        turned = windows.transpose(self._interleaved)
        for piece in self._pieces:
            view = extended[piece.box].reshape(piece.steps + extended.shape[len(self._counts) :])
            turned = engine.put(turned, piece.part, view[piece.begin])
        return windows if engine.mutable else turned.transpose(np.argsort(self._interleaved).tolist())


class _WindowAxis(NamedTuple):
    """Windows along one axis: their number, their samples, and the distance between their first samples."""

    windows: int
    samples: int
    step: int

    def tapers(self, first: int, count: int, power: float) -> np.ndarray:
        """Return the tapers of some windows as rows; outer edges are not tapered."""
        overlap = self.samples - self.step
        rise = np.hanning(2 * overlap - 1)[:overlap] ** power
        rows = np.ones((count, self.samples))
        numbers = np.arange(first, first + count)
        rows[numbers > 0, :overlap] = rise
        rows[numbers < self.windows - 1, self.step :] = rise[::-1]
        return rows

    def of_blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Return, for each block of the data, its first window and the number of windows that begin in it."""
        bounds = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        numbers = [[min(self.windows, -(-bound // self.step)) for bound in pair] for pair in bounds]
        return [(first, last - first) for first, last in numbers]

    def reach(self, first: int, count: int) -> tuple[int, int]:
        """Return the first sample of some windows, and the sample after the last."""
        begin = first * self.step
        return begin, begin + (count - 1) * self.step + self.samples if count else begin

    def padded(self, count: int) -> int:
        """Return the samples of consecutive windows, rounded up so that each of their pieces has a whole step."""
        return (count - 1 + -(-self.samples // self.step)) * self.step if count else 0


class _Piece(NamedTuple):
    """At most one step of every window: pieces of one number do not overlap, and are copied or added at once.

    `box` is where they are in the extended array, whose windowed axes are then divided into `steps`, windows and
    samples in turn; `begin` is the part of each step that they fill; `part` is where they are in the windows.
    """

    box: Box
    steps: tuple[int, ...]
    begin: Box
    part: Box


def _pieces(axes: Sequence[_WindowAxis], counts: Sequence[int]) -> list[_Piece]:
    """Return the pieces of windows of which this rank has `counts` along each axis."""
    pieces = []
    for offsets in product(*(range(0, axis.samples, axis.step) for axis in axes)) if prod(counts) else ():
        along = list(zip(axes, counts, offsets, strict=True))
        lengths = [min(axis.step, axis.samples - offset) for axis, _, offset in along]
        pieces.append(
            _Piece(
                tuple(slice(offset, offset + count * axis.step) for axis, count, offset in along),
                tuple(extent for axis, count, _ in along for extent in (count, axis.step)),
                _after_each_count(slice(0, length) for length in lengths),
                _after_each_count(map(slice, offsets, map(operator.add, offsets, lengths))),
            )
        )
    return pieces


def _after_each_count(parts: Iterator[slice]) -> Box:
    return tuple(index for part in parts for index in (slice(None), part))


def _window_axes(data: Layout, nwin: Any, nover: Any, tapertype: str | None) -> list[_WindowAxis]:
    """Return the windows along each of the leading axes."""
    samples, overlaps = ([numbers] if np.ndim(numbers) == 0 else [*numbers] for numbers in (nwin, nover))
    if len(samples) != len(overlaps) or not 1 <= len(samples) <= data.ndim:
        raise InputError(
            f"nwin and nover must be integers for the same leading axes of {data.ndim}, not {nwin!r} and {nover!r}"
        )
    if tapertype not in (None, *_POWERS):
        raise InputError(f"tapertype must be {', '.join(map(repr, _POWERS))} or None, not {tapertype!r}")
    if any(axis is not None for axis in data.axes[len(samples) :]):
        raise LayoutError(f"windows span the axes from {len(samples)} on, which must not be split as in {data}")
    axes = []
    for extent, window, overlap in zip(data.shape, samples, overlaps, strict=False):
        window, overlap = check_count("nwin", window, smallest=1), check_count("nover", overlap)
        if window > extent:
            raise InputError(f"nwin must be at most the extent of the axis, {extent}, not {window}")
        longest = window - 1 if tapertype is None else window // 2
        if overlap > longest:
            raise InputError(
                f"nover must be at most {longest} for windows of {window} samples with tapertype={tapertype!r}, "
                f"not {overlap}"
            )
        step = window - overlap
        axes.append(_WindowAxis((extent - window) // step + 1, window, step))
    return axes


def _model_of_a_window(dims: tuple[int, ...], nwins: tuple[int, ...], data: Layout) -> tuple[int, ...]:
    """Return the shape of the model of one window."""
    if len(dims) != data.ndim or any(extent % count for extent, count in zip(dims, nwins, strict=False)):
        raise LayoutError(
            f"dims must have {data.ndim} extents for data of shape {data.shape}, the first of them multiples of the "
            f"numbers of windows, {nwins}, not {dims}"
        )
    return (*(extent // count for extent, count in zip(dims, nwins, strict=False)), *dims[len(nwins) :])


def _windows_of(data: Layout, blocks: Sequence[list[tuple[int, int]]], rank: int) -> list[tuple[int, int]]:
    """Return the first window of a rank along each windowed axis, and how many it has."""
    coordinates = data.coordinates(rank)
    return [
        block[0 if grid_axis is None else coordinates[grid_axis]]
        for block, grid_axis in zip(blocks, data.axes, strict=False)
    ]


def _lifted(Op: Any, model: Layout, comm: Communicator, window: tuple[int, ...]) -> list[LocalOperator]:
    """Return the operator of each of this rank's windows. Collective."""
    nwins = model.shape[: model.ndim - len(window)]
    shape = prod(window), prod(model.shape[len(nwins) :])
    with collective_errors(comm):
        numbers = np.arange(prod(nwins)).reshape(nwins)[model.slices(comm.rank)[: len(nwins)]].ravel()
        if isinstance(Op, list | tuple):
            if len(Op) != prod(nwins):
                raise InputError(f"Op must be one operator, or a list of {prod(nwins)}, one per window, not {len(Op)}")
            operators = [lift_local(Op[number]) for number in numbers]
        else:
            operators = [lift_local(Op)]  # checked on ranks without windows, too
        for op in operators:
            if tuple(map(operator.index, op.shape)) != shape:
                raise LayoutError(
                    f"the operator of a window of shape {window} needs the shape {shape}, not {tuple(op.shape)}"
                )
    return operators if isinstance(Op, list | tuple) else operators * len(numbers)


def _kind(op: LocalOperator) -> tuple[str, bool, bool]:
    """Return an operator's dtype, and whether it can be captured and is linear over complex numbers."""
    return np.dtype(op.dtype).name, bool(getattr(op, "capturable", True)), bool(getattr(op, "clinear", True))


def _multiplies(op: LocalOperator, engine: Engine) -> bool:
    """Return whether an operator applies to all rows of arrays of an engine at once."""
    both = hasattr(op, "forward_columns") and hasattr(op, "adjoint_columns")
    name = getattr(op, "columns_engine", "numpy")
    return both and name is not None and find_engine(name) is engine


def _factors(
    axes: Sequence[_WindowAxis], firsts: Sequence[int], counts: Sequence[int], tapertype: str | None, spanned: int
) -> list[np.ndarray]:
    """Return the tapers of each windowed axis, for arrays of this rank's windows."""
    if tapertype is None:
        return []
    ndim = len(axes)
    factors = []
    for number, (axis, first, count) in enumerate(zip(axes, firsts, counts, strict=True)):
        shape = [1] * (2 * ndim + spanned)
        shape[number], shape[ndim + number] = count, axis.samples
        factors.append(axis.tapers(first, count, _POWERS[tapertype]).reshape(shape))
    return factors


def _scalings(scalings: ArrayLike, nwins: tuple[int, ...]) -> np.ndarray:
    """Return the factors of all windows, one for each."""
    values = np.asarray(scalings)
    if values.size != prod(nwins) or values.dtype.kind not in "biuf":
        raise InputError(f"scalings must be {prod(nwins)} real numbers, one per window, not of shape {values.shape}")
    return values.astype(np.float64).reshape(nwins)
