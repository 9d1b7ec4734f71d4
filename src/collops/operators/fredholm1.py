"""The Fredholm integral of the first kind: one matrix product for every slice, with slices distributed over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, Layout
from collops.array.redistribute import Move
from collops.backend import LocalArray, engine_of
from collops.comm.agreement import collective_errors
from collops.comm.arguments import communicator_or_world
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.base import LinearOperator
from collops.operators.dense import forms_for
from collops.operators.dims import check_count
from collops.operators.memory import Buffers, check_holds, contiguous, filled

if TYPE_CHECKING:
    from collops.comm import Communicator

Form: TypeAlias = Literal["split", "replicated"]


class Fredholm1(LinearOperator):
    r"""Fredholm integral of the first kind: the matrix of each slice times the same slice of the model.

    Each rank passes any number of slices, possibly none; slices are numbered in the order of the ranks. If model
    and data are split by slices, no message is sent. A replicated side costs one allgatherv if it is the result,
    none if it is the input.

    Collective: shapes and types are exchanged once.

    Parameters
    ----------
    G : array, 3-D
        The slices of this rank, of shape (slices, nx, ny), on any engine; not copied if it is in C order.
    nz : int
        Columns that each matrix is applied to.
    saveGt : bool
        Whether to store the conjugate transposes in addition to `G`, in twice the memory. This is rarely faster, since
        BLAS can transpose; on GPUs it has no effect.
    usematmul : bool
        Whether one call multiplies all slices; otherwise (on the host) each slice takes one call.
    model, data : {"split", "replicated"}
        Whether each rank has the slices that its part of `G` needs, or all of them.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Type to convert `G` to; by default it is not converted.

    Attributes
    ----------
    nsl : int
        Number of slices of all ranks.
    nx, ny, nz : int
        Rows and columns of each matrix, and columns that it is applied to.
    dims, dimsd : tuple of int
        Shapes of model, (nsl, ny, nz), and data, (nsl, nx, nz).

    Raises
    ------
    LayoutError
        On every rank, if the shapes of the ranks' slices do not fit together.
    InputError
        On every rank, if an option has an invalid value.
    UnsupportedTypeError
        On every rank, if `dtype` would drop imaginary parts.

    Notes
    -----
    .. math::
        d(k, x, z) = \sum_y G(k, x, y)\, m(k, y, z), \qquad m(k, y, z) = \sum_x \overline{G(k, x, y)}\, d(k, x, z).

    Products are computed in the precision of `G`. They agree with ``pylops.signalprocessing.Fredholm1``.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> op = collops.Fredholm1(np.ones((2, 3, 4)))
    >>> op.dims, op.dimsd
    ((2, 4, 1), (2, 3, 1))
    >>> op.forward(collops.ones(op.domain)).gather()[0, 0]
    array([4.])
    """

    def __init__(
        self,
        G: LocalArray,
        nz: int = 1,
        saveGt: bool = False,
        usematmul: bool = True,
        *,
        model: Form = "split",
        data: Form = "split",
        comm: Communicator | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        comm = communicator_or_world(comm)
        with collective_errors(comm):
            check_count("nz", nz, smallest=1)
            for name, form in (("model", model), ("data", data)):
                if form not in ("split", "replicated"):
                    raise InputError(f"{name} must be 'split' or 'replicated', not {form!r}")
            matrices = _matrices(G, dtype)
            product = forms_for(engine_of(matrices)).batched(matrices, bool(saveGt), bool(usematmul))
        ranks = comm.allgather_metadata([*matrices.shape, matrices.dtype.name, product.capturable])
        shapes = {(rows, columns) for _, rows, columns, *_ in ranks}
        kinds = {kind for *_, kind, _ in ranks}
        if len(shapes) != 1 or len(kinds) != 1:
            raise LayoutError(
                "the slices of all ranks must be matrices of one shape and dtype, not "
                + ", ".join(sorted(f"{rows} x {columns} ({kind})" for _, rows, columns, kind, _ in ranks))
            )
        counts = [entry[0] for entry in ranks]
        self.nsl, (self.nx, self.ny), self.nz = sum(counts), next(iter(shapes)), int(nz)
        self.dims, self.dimsd = (self.nsl, self.ny, self.nz), (self.nsl, self.nx, self.nz)
        sides = _Side(self.dims, counts, model, comm), _Side(self.dimsd, counts, data, comm)
        super().__init__(sides[0].layout, sides[1].layout, matrices.dtype, comm)
        self.capturable = all(entry[-1] for entry in ranks)
        self._batch = product
        self._sides = (product.forward, *sides), (product.adjoint, *sides[::-1])
        self._engine = engine_of(matrices)
        self._buffers = Buffers()

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        product, operand_side, result_side = self._sides[adjoint]
        if x.engine is not self._engine:
            raise UnsupportedTypeError(
                f"Fredholm1 needs arrays of {self._engine.name}, the engine of G, not of {x.engine.name}"
            )
        buffers, local = self._buffers, x.local_array
        # Real matrices stay real when they multiply complex vectors.
        dtype = np.result_type(self.dtype, np.complex64) if local.dtype.kind == "c" else self.dtype
        slices = local if operand_side.to_slices is None else operand_side.to_slices.view(local)
        target = buffers.result("output", out, dtype)
        source = buffers.contiguous("input", slices, dtype, x.engine)
        if result_side.to_whole is None:
            return filled(out, product(source, target))
        part = product(source, buffers.local("part", result_side.part_shape, dtype, x.engine))
        return filled(out, result_side.to_whole(part, target))


class _Side:
    """The model or the data: its layout, and the split of a replicated array into slices and its assembly.

    Slices are views of the replicated array; an allgatherv assembles it.
    """

    def __init__(self, shape: tuple[int, int, int], counts: list[int], form: Form, comm: Communicator) -> None:
        split = Layout.split(shape, comm.size, sizes=counts)
        self.layout = split if form == "split" else Layout.replicated(shape, comm.size)
        self.part_shape = split.local_shape(comm.rank)
        self.to_slices = self.to_whole = None
        if self.layout is not split:
            self.to_slices, self.to_whole = Move(self.layout, split, comm), Move(split, self.layout, comm)


def _matrices(G: LocalArray, dtype: DTypeLike | None) -> LocalArray:
    """Return `G` in C order and in `dtype`."""
    engine_of(G)  # raises for anything but an array
    if G.ndim != 3:
        raise LayoutError(f"G must have three axes, (slices, nx, ny), not the shape {tuple(G.shape)}")
    kind = G.dtype if dtype is None else np.dtype(dtype)
    check_holds(kind, G.dtype)
    if kind.kind in "biu":
        kind = np.dtype(np.float64)
    return contiguous(G, kind)
