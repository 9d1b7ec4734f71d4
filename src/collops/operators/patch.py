"""Patch: a local operator applied to overlapping patches, which are windows along all axes of a distributed array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from numpy.typing import ArrayLike

from collops.array.layout_arguments import as_shape
from collops.comm import Communicator
from collops.errors import InputError, LayoutError
from collops.operators.dims import Dims
from collops.operators.sliding import Sliding


class Patch(Sliding):
    """A local operator applied to each of many overlapping patches, which are tapered and added up.

    A :class:`Sliding` with windows along all axes of the data, with the arguments of ``Patch2D`` and ``Patch3D`` of
    PyLops; see there for messages, other parameters and exceptions.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    Op, dims, dimsd
        As for :class:`Sliding`.
    nwin, nover : sequence of int
        Samples of a patch, and of the overlap of neighbours, along each axis.
    nop : sequence of int
        Shape of the model of a patch.
    tapertype, savetaper, comm
        As for :class:`Sliding`.
    scalings : sequence of float, optional
        A factor for each patch of all ranks, in C order. (PyLops 2.8 accepts scalings, but does not apply them.)

    Raises
    ------
    LayoutError
        If `dims` is not the number of patches times `nop`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> P = collops.Patch(np.eye(4), (4, 6), (4, 4), nwin=(2, 2), nover=(0, 1), nop=(2, 2), tapertype=None)
    >>> P.dims
    (2, 3, 2, 2)
    >>> (P @ collops.ones(P.domain)).gather()[0]
    array([1., 2., 2., 1.])
    """

    def __init__(
        self,
        Op: Any,
        dims: Sequence[SupportsIndex],
        dimsd: Dims,
        nwin: Sequence[SupportsIndex],
        nover: Sequence[SupportsIndex],
        nop: Sequence[SupportsIndex],
        tapertype: str | None = "hanning",
        savetaper: bool = True,
        scalings: ArrayLike | None = None,
        *,
        comm: Communicator | None = None,
    ) -> None:
        super().__init__(Op, dims, dimsd, nwin, nover, tapertype, savetaper, scalings=scalings, comm=comm)
        axes = len(self.nwins)
        if axes != len(self.dimsd):
            raise InputError(f"a patch needs {len(self.dimsd)} extents, not nwin={nwin!r}")
        if self.dims[axes:] != as_shape(nop):
            raise LayoutError(
                f"dims {tuple(dims)} are {self.nwins} patches with models of {self.dims[axes:]}, not {nop!r}"
            )
