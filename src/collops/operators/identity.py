"""Identity: model to data as it is, cut or padded with zeros where the two have different extents."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from collops.array import Layout
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.errors import LayoutError
from collops.operators.base import LinearOperator
from collops.operators.dims import Dims, as_layout
from collops.operators.local import store

__all__ = ["Identity"]


class Identity(LinearOperator):
    """The identity, from a model to data of the same or of other extents. No messages.

    Where the data are larger than the model, forward pads them with zeros at the end of every axis; where they are
    smaller, it takes the first elements. Adjoint does the reverse. Every element stays on its rank: the layout of one
    side follows from that of the other.

    Parameters
    ----------
    N : Layout, int or sequence of int
        The data. A shape is distributed like the model: cut where the data are smaller, with larger last blocks where
        they are larger. Split along axis 0 where neither is a layout.
    M : Layout, int or sequence of int, optional
        The model; equal to the data by default. A shape is distributed like the data.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator.

    Raises
    ------
    LayoutError
        If the numbers of axes differ, one side is larger along one axis and smaller along another, or two layouts
        are given that hold an element on different ranks.

    Examples
    --------
    >>> import collops
    >>> from collops.operators import Identity
    >>> Identity(3, 5).forward(collops.ones(5)).gather()
    array([1., 1., 1.])
    """

    def __init__(
        self, N: Dims, M: Dims | None = None, *, comm: Communicator | None = None, dtype: Any = "float64"
    ) -> None:
        comm = communicator_or_world(comm)
        data, model = _both(N, N if M is None else M, comm)
        super().__init__(model, data, dtype, comm)
        blocks = model.local_shape(comm.rank), data.local_shape(comm.rank)
        self._common = tuple(slice(0, min(extents)) for extents in zip(*blocks, strict=True))

    def _forward(self, x: Any, out: Any) -> Any:
        return self._copied(x, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._copied(y, self._new(self.domain, y) if out is None else out)

    def _copied(self, source: Any, target: Any) -> Any:
        given, wanted = source.local_array, target.local_array
        if given.shape == wanted.shape:
            store(given, wanted)
            return target
        wanted.fill(0)
        store(given[self._common], wanted[self._common])
        return target


def _both(N: Dims, M: Dims, comm: Communicator) -> tuple[Layout, Layout]:
    """Return the layouts of data and model."""
    if isinstance(M, Layout):
        model = as_layout(M, comm)
        if not isinstance(N, Layout):
            return _like(model, as_layout(N, comm).shape), model
        data = as_layout(N, comm)
    elif isinstance(N, Layout):
        data = as_layout(N, comm)
        return data, _like(data, as_layout(M, comm).shape)
    else:
        data, model = as_layout(N, comm), as_layout(M, comm)
        # The larger one is split evenly.
        if _fits(data.shape, model.shape):
            return _like(model, data.shape), model
        return data, _like(data, model.shape)
    smaller, larger = (data, model) if _fits(data.shape, model.shape) else (model, data)
    if not _fits(smaller.shape, larger.shape):
        raise _misfit(data.shape, model.shape)
    for rank in range(comm.size):
        small, large = smaller.block(rank), larger.block(rank)
        kept = tuple(slice(min(s.start, n), min(s.stop, n)) for s, n in zip(large.slices, smaller.shape, strict=True))
        if 0 not in small.shape and small.slices != kept:
            raise LayoutError(
                f"between {model} and {data}, elements would move to other ranks: "
                "give a shape instead of one of the layouts, and redistribute"
            )
    return data, model


def _like(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of an array of another shape whose elements are where those of `layout` are."""
    if not (_fits(shape, layout.shape) or _fits(layout.shape, shape)):
        raise _misfit(shape, layout.shape)
    sizes = []
    for extent, blocks in zip(shape, layout.sizes, strict=True):
        ends = [min(end, extent) for end in accumulate(blocks)]
        ends[-1] = extent
        sizes.append([end - begin for begin, end in zip([0, *ends], ends, strict=False)])
    return Layout(shape, layout.ranks, layout.process_grid, layout.axes, sizes, layout.mask)


def _fits(inner: tuple[int, ...], outer: tuple[int, ...]) -> bool:
    return len(inner) == len(outer) and all(i <= o for i, o in zip(inner, outer, strict=True))


def _misfit(data: tuple[int, ...], model: tuple[int, ...]) -> LayoutError:
    return LayoutError(
        f"an identity between the shapes {model} and {data} needs one of them to be at least as large along every axis"
    )
