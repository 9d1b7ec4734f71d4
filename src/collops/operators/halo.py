"""Halo: every rank's block extended by its neighbours' values, so that local operators can use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

from numpy.typing import DTypeLike

from collops.array import Array
from collops.array.halo import HaloPlan, halo_widths
from collops.comm import Communicator
from collops.operators.base import LinearOperator
from collops.operators.dims import Dims, placed
from collops.operators.memory import contiguous, filled


class Halo(LinearOperator):
    r"""Extend the block of every rank on all sides by the adjacent values of its neighbours.

    Forward fills each rank's halo, corners included, with the values of the owning ranks, and with zeros beyond the
    ends of the array. Adjoint adds the values in the halos to the elements that they are copies of. Each is one
    exchange with all neighbours at once.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        Layout of the array, on any process grid; or its shape, which is split along axis 0.
    halo : int or sequence of int
        Width on all sides; or one width per axis; or widths before and after the block, for every axis in turn. A halo
        may be wider than a neighbour's block.
    comm, dtype
        As for :class:`Identity`.

    Attributes
    ----------
    widths : tuple of (int, int)
        Before and after the block, per axis.
    inner : tuple of slice
        Position of this rank's block in its extended block.

    Raises
    ------
    InputError
        If the number of widths does not match the axes, or a width is negative.

    Notes
    -----
    With :math:`R_r` the restriction to the extended block of rank :math:`r` (zero outside the array), forward stacks
    :math:`R_r x` over the ranks, and adjoint is :math:`\sum_r R_r^T y_r`. Empty blocks also have a halo. To apply local
    operators to extended blocks, use ``H.H @ BlockDiag(...) @ H``; to stack a halo with other operators, use
    ``H.flat``.

    Examples
    --------
    >>> import collops
    >>> H = collops.Halo((4,), halo=1)
    >>> H.forward(collops.ones((4,))).gather()
    array([0., 1., 1., 1., 1., 0.])
    """

    _has_coefficients = False

    def __init__(
        self,
        dims: Dims,
        halo: SupportsIndex | Sequence[SupportsIndex],
        *,
        comm: Communicator | None = None,
        dtype: DTypeLike = "float64",
    ) -> None:
        layout, comm = placed(dims, comm)
        self._plan = HaloPlan(layout, halo_widths(halo, layout.ndim), comm)
        super().__init__(layout, self._plan.extended, dtype, comm)
        self.widths = self._plan.widths
        self.inner = self._plan.inner

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        move = self._plan.add_back if adjoint else self._plan.fill
        return filled(out, move(contiguous(x.local_array, out.dtype), out.local_array))
