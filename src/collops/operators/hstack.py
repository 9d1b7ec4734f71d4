"""HStack: local operators side by side, whose results are added up over all ranks."""

from __future__ import annotations

from collops.operators.shared_vector import SharedVectorStack

__all__ = ["HStack"]


class HStack(SharedVectorStack):
    """Operators side by side, spread over the ranks: :math:`y = A_0 x_0 + A_1 x_1 + …`.

    The mirror of :class:`VStack`: the model is split, each rank holding the part that its own operators read; the data
    are replicated. Forward sends one allreduce of the data. Adjoint sends nothing.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops, comm, mask
        As for :class:`~collops.operators.shared_vector.SharedVectorStack`.
    dims : sequence of int, optional
        Shape of the data; 1-D by default.

    Raises
    ------
    LayoutError
        On every rank, if the numbers of rows differ.
    UnsupportedTypeError
        On every rank, if an operator cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.operators import HStack
    >>> HStack([np.ones((2, 3)), np.eye(2)]).shape
    (2, 5)
    """

    shares_domain = False
