"""VStack: local operators on top of each other, which all read the same vector."""

from __future__ import annotations

from collops.operators.shared_vector import SharedVectorStack

__all__ = ["VStack"]


class VStack(SharedVectorStack):
    """Operators on top of each other, spread over the ranks: :math:`y = [A_0 x; A_1 x; …]`.

    Every rank brings any number of operators, none included. The model is replicated; the data are split, each rank
    holding the rows of its own operators. Forward sends nothing. Adjoint sends one allreduce of the model.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops, comm, mask
        As for :class:`~collops.operators.shared_vector.SharedVectorStack`.
    dims : sequence of int, optional
        Shape of the model, so that images keep theirs; 1-D by default.

    Raises
    ------
    LayoutError
        On every rank, if the numbers of columns differ.
    UnsupportedTypeError
        On every rank, if an operator cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.operators import VStack
    >>> VStack([np.ones((3, 2)), np.eye(2)]).shape
    (5, 2)
    """

    shares_domain = True
