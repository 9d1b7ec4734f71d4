"""NonStationaryConvolve1D: convolution with filters that vary along an axis, split or not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array
from collops.array.dtypes import real_of
from collops.array.halo import HaloPlan
from collops.array.layout_arguments import normal_axis
from collops.array.redistribute import agree_on_values
from collops.backend import Engine, LocalArray, kernel_table
from collops.comm import Communicator
from collops.errors import UnsupportedTypeError
from collops.operators.base import LinearOperator, is_complex
from collops.operators.convolve.blocks import Convolution, FilterBank
from collops.operators.dims import Dims, placed
from collops.operators.memory import Buffers, filled

_kernels_for = kernel_table("collops.operators.convolve", "blocks", cupy="gpu")


class NonStationaryConvolve1D(LinearOperator):
    r"""Convolution along one axis with a compact filter that varies along it.

    Filters are specified at regularly spaced samples and interpolated linearly; before the first and after the last
    of them they are constant. If the axis is split, each application sends one halo exchange with a width of half a
    filter on either side; otherwise it sends no message.

    Collective.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        Model and data; a shape is split along axis 0.
    hs : array, 2-D
        The filters, of shape (filters, taps), the same on every rank; centred in the middle of an odd number of taps.
    ih : sequence of int
        The samples of the filters along `axis`, regularly spaced.
    axis : int, optional
        The axis of the convolution.
    comm, dtype
        As for :class:`Identity`.

    Raises
    ------
    InputError
        If the filters have an even number of taps, or `ih` is not regularly spaced or not inside the axis.
    UnsupportedTypeError
        If the filters are complex and `dtype` is not.

    Notes
    -----
    With the filter :math:`h_i` of sample i, whose taps count from its middle, forward is

    .. math:: y_n = \sum_i h_i[n - i]\, x_i

    and adjoint :math:`x_i = \sum_n \overline{h_i[n - i]}\, y_n`. (Serial PyLops 2.8 does not conjugate complex filters
    in its adjoint.)

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> filters = np.array([[0.0, 1.0, 0.0], [0.0, 2.0, 0.0]])  # at the samples 1 and 3; interpolated between them
    >>> C = collops.NonStationaryConvolve1D(5, filters, ih=(1, 3))
    >>> (C @ collops.ones(5)).gather()
    array([1. , 1. , 1.5, 2. , 2. ])
    """

    def __init__(
        self,
        dims: Dims,
        hs: LocalArray,
        ih: Sequence[int] | np.ndarray,
        axis: int = -1,
        *,
        comm: Communicator | None = None,
        dtype: DTypeLike = "float64",
    ) -> None:
        layout, comm = placed(dims, comm)
        super().__init__(layout, layout, dtype, comm)
        self.axis = axis = normal_axis(axis, layout.ndim)
        self._bank = FilterBank(hs, ih, layout.shape[axis], self.dtype)
        agree_on_values(comm, "hs", self._bank.taps)
        half = self._bank.half
        self._halo = HaloPlan(layout, [(half, half) if a == axis else (0, 0) for a in range(layout.ndim)], comm)
        self._block = layout.block(comm.rank)
        self._extended = self._halo.extended.local_shape(comm.rank)
        self._kernels: dict[tuple[Engine, np.dtype], Convolution] = {}
        self._buffers = Buffers()

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        engine = x.engine
        if not engine.mutable:
            raise UnsupportedTypeError(f"NonStationaryConvolve1D does not support arrays of the engine {engine.name}")
        dtype = self.dtype if x.dtype == self.dtype else np.result_type(self.dtype, x.dtype)
        source = self._buffers.contiguous("given", x.local_array, dtype, engine)
        result = self._buffers.result("result", out, dtype)
        extended = self._halo.fill(source, self._buffers.local("extended", self._extended, dtype, engine))
        if is_complex(dtype) and not is_complex(self.dtype):
            dtype = real_of(dtype)  # real and imaginary parts are convolved as neighbouring columns
        outer, inner = prod(self._block.shape[: self.axis]), prod(self._block.shape[self.axis + 1 :])
        inner *= source.dtype.itemsize // dtype.itemsize
        kernel = self._kernels.get((engine, dtype))
        if kernel is None:
            block_range = self._block.offset[self.axis], self._block.shape[self.axis]
            kernel = self._kernels[engine, dtype] = _kernels_for(engine).Convolution(
                self._bank.converted(dtype), *block_range
            )
        kernel(
            extended.reshape(-1).view(dtype).reshape(outer, self._extended[self.axis], inner),
            result.reshape(-1).view(dtype).reshape(outer, self._block.shape[self.axis], inner),
            adjoint=adjoint,
        )
        return filled(out, result)
