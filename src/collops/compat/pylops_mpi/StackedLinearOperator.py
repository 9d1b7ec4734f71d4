"""PyLops-MPI's stacked operator: what maps from or to stacked arrays."""

from __future__ import annotations

from typing import Any

from collops.compat.pylops_mpi._operator import Operator

__all__ = ["MPIStackedLinearOperator"]


class MPIStackedLinearOperator(Operator):
    """A linear operator whose model or data are stacked arrays.

    Parameters
    ----------
    shape : tuple of int, optional
        Numbers of rows and columns; by default by `dims` and `dimsd`.
    dims, dimsd : tuple of int, optional
        Shapes of model and data.
    dtype : dtype, optional
        Element type.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks; ``MPI.COMM_WORLD`` by default.

    Notes
    -----
    Derived classes implement ``_matvec(x)`` and ``_rmatvec(x)``.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> L = pylops_mpi.MPILaplacian((4, 3))
    >>> isinstance(pylops_mpi.MPIStackedVStack([L, L]), pylops_mpi.MPIStackedLinearOperator)
    True
    """

    def __init__(
        self,
        shape: tuple[int, int] | None = None,
        dims: Any = None,
        dimsd: Any = None,
        dtype: Any = None,
        base_comm: Any = None,
    ) -> None:
        self.base_comm = base_comm
        self.dtype = dtype
        if dims is not None:
            self.dims = dims
        if dimsd is not None:
            self.dimsd = dimsd
        if shape is not None:
            self.shape = shape

    def _blank(self, *parts: Operator) -> Any:
        return MPIStackedLinearOperator()
