"""PETSc: operators as its matrices, vectors in the memory of arrays, and its matrices and preconditioners as operators.

A vector of PETSc holds the elements of rank 0, then of rank 1, and so on. Here the elements of a rank are its
part of a distributed array in C order, and the parts of a stacked array follow each other. Arrays of any layout without
copies are such vectors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, count
from typing import Any, overload

import numpy as np
from petsc4py import PETSc
from scipy import sparse

import collops
from collops import Communicator, CSRMatrix, DistributedArray, Layout, LinearOperator, StackedArray
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import Array
from collops.extend.communication import collective_errors, communicator_or_world
from collops.extend.operators import AnyLayout, contiguous, filled

__all__ = ["as_petsc", "from_petsc", "preconditioner", "to_petsc"]

_SCALAR = np.dtype(PETSc.ScalarType)
_ASSEMBLED = ("seqaij", "mpiaij")
_numbers = count()  # prefixes of options


def as_petsc(op: LinearOperator) -> PETSc.Mat:
    """Return a matrix of PETSc that applies a distributed operator to vectors of PETSc, without copies. Collective.

    Parameters
    ----------
    op : LinearOperator
        The operator, or a preconditioner, which solvers of PETSc use by ``ksp.setOperators(A, as_petsc(M))`` and
        ``pc.setType("mat")``.

    Returns
    -------
    petsc4py.PETSc.Mat
        A matrix of type ``python`` on the ranks of ``op.comm``, with products, transposed and Hermitian ones included,
        and with a diagonal if `op` has a method ``diagonal``. Products send the messages of `op`.

    Raises
    ------
    UnsupportedTypeError
        If `op` is not a distributed operator, is complex where PETSc was built for real numbers, or is linear over the
        real numbers only (``op.clinear``), or if the ranks were started without MPI.
    LayoutError
        If a vector of the domain or the range has copies on several ranks.

    Examples
    --------
    >>> import collops
    >>> from collops.bridges.petsc import as_petsc, from_petsc
    >>> A = as_petsc(3 * collops.Identity((2, 2)))
    >>> x, y = A.createVecs()
    >>> x.set(1)
    >>> A.mult(x, y)
    >>> from_petsc(y).gather().real
    array([3., 3., 3., 3.])
    """
    if not isinstance(op, LinearOperator):
        raise UnsupportedTypeError(f"as_petsc takes a distributed operator, not {type_name(op)}")
    _check_type(op.dtype, f"{type(op).__name__} has coefficients")
    if not op.clinear:
        raise UnsupportedTypeError(
            f"the adjoint of {type(op).__name__} takes real parts, which the methods of PETSc do not expect; use the "
            "solvers of collops"
        )
    sizes = tuple((_part_sizes(layout)[op.comm.rank], layout.size) for layout in (op.range, op.domain))
    matrix = PETSc.Mat().createPython(sizes, _Shell(op), comm=_petsc_comm(op.comm))
    matrix.setUp()
    return matrix


@overload
def to_petsc(x: DistributedArray) -> PETSc.Vec: ...


@overload
def to_petsc(x: CSRMatrix) -> PETSc.Mat: ...


def to_petsc(x: DistributedArray | CSRMatrix) -> PETSc.Vec | PETSc.Mat:
    """Return an array as a vector, which shares its memory, or a sparse matrix as a copy of type ``aij``. Collective.

    PETSc keeps norms of a vector until it learns of a change: call ``vector.stateIncrease()`` after changing the array.

    Parameters
    ----------
    x : DistributedArray or CSRMatrix
        An array of NumPy in the scalar type of PETSc, or a sparse matrix, for PETSc's preconditioners.

    Raises
    ------
    UnsupportedTypeError
        If `x` is something else, has another dtype, is not in C order or is read-only, or the ranks were started
        without MPI.
    LayoutError
        If the array has copies on several ranks.

    Examples
    --------
    >>> import collops
    >>> from petsc4py import PETSc
    >>> from collops.bridges.petsc import to_petsc
    >>> x = collops.zeros(4, dtype=PETSc.ScalarType)
    >>> to_petsc(x).set(1)
    >>> x.gather().real
    array([1., 1., 1., 1.])
    """
    if isinstance(x, CSRMatrix):
        _check_type(x.dtype, "the matrix has entries")
        return _assembled(x)
    if not isinstance(x, DistributedArray):
        raise UnsupportedTypeError(
            f"to_petsc takes a distributed array or a CSRMatrix, not {type_name(x)}; as_petsc takes other operators, "
            "and from_petsc(vector, layout) makes a stacked array in the memory of a vector"
        )
    values = x.local_array
    _check_engine(x)
    if x.dtype != _SCALAR:
        raise UnsupportedTypeError(f"vectors of PETSc are {_SCALAR} here: use x.astype('{_SCALAR}'), not {x.dtype}")
    if not (values.flags.c_contiguous and values.flags.writeable):
        raise UnsupportedTypeError("the memory of a vector must be contiguous and writable: use x.copy()")
    sizes = _part_sizes(x.layout)[x.comm.rank], x.layout.size
    return PETSc.Vec().createWithArray(values.reshape(-1), sizes, comm=_petsc_comm(x.comm))


def from_petsc(
    x: PETSc.Vec | PETSc.Mat | PETSc.PC, layout: AnyLayout | None = None, *, comm: Communicator | None = None
) -> Any:
    """Return a vector as an array in its memory, or a matrix or preconditioner of PETSc as an operator. Collective.

    Parameters
    ----------
    x : petsc4py.PETSc.Vec, Mat or PC
        On the host. A matrix of type ``aij`` becomes a copy, a :class:`collops.CSRMatrix` with the same rows on each
        rank; from the result of :func:`as_petsc` its operator is returned. Any other matrix, and a preconditioner that
        has been set up, is applied by PETSc to arrays of NumPy.
    layout : Layout or StackedLayout, optional
        Layout of the vector, or a Layout for both sides of the preconditioner, with as many elements on each rank as
        the vector. By default one axis. Matrices have one axis on either side.
    comm : Communicator, optional
        The ranks of `x`; the world by default.

    Returns
    -------
    DistributedArray, StackedArray or LinearOperator
        The adjoint of an operator needs the transposed product of PETSc.

    Raises
    ------
    UnsupportedTypeError
        If `x` is another object.
    InputError
        If `layout` is given for a matrix.
    LayoutError
        If `x` is on other ranks, or `layout` does not fit.

    Examples
    --------
    >>> from petsc4py import PETSc
    >>> from collops.bridges.petsc import from_petsc
    >>> v = PETSc.Vec().createMPI(4)
    >>> x = from_petsc(v)
    >>> x += 1
    >>> v.stateIncrease()
    >>> v.sum().real
    4.0
    """
    if not isinstance(x, PETSc.Vec | PETSc.Mat | PETSc.PC):
        raise UnsupportedTypeError(f"from_petsc takes a Vec, Mat or PC of petsc4py, not {type_name(x)}")
    comm = communicator_or_world(comm)
    _check_comm(x, comm)
    if isinstance(x, PETSc.Vec):
        return _wrapped(x.getArray(), _fitting(layout, x.owner_ranges), comm)
    if isinstance(x, PETSc.PC):
        matrix = x.getOperators()[1]
        chosen = _fitting(layout, matrix.getOwnershipRanges())
        if not isinstance(chosen, Layout):
            raise LayoutError(f"a preconditioner of PETSc needs one layout, not {chosen}")
        return _Lifted(chosen, chosen, comm, matrix, x.apply, _conjugated(x.applyTranspose))
    if layout is not None:
        raise InputError("a matrix of PETSc has a layout of one axis on either side: leave out layout=")
    if x.getType() == PETSc.Mat.Type.PYTHON and isinstance(shell := x.getPythonContext(), _Shell):
        return shell.op
    rows, columns = (_in_parts(ends) for ends in (x.getOwnershipRanges(), x.getOwnershipRangesColumn()))
    if x.getType() in _ASSEMBLED:
        begins, indices, entries = x.getValuesCSR()
        shape = (len(begins) - 1, columns.size)
        return CSRMatrix(sparse.csr_array((entries, indices, begins), shape=shape), columns, comm=comm)
    return _Lifted(columns, rows, comm, x, x.mult, x.multHermitian)


def preconditioner(A: CSRMatrix, options: str | Mapping[str, Any]) -> LinearOperator:
    """Return a preconditioner of PETSc for a sparse matrix, for the argument ``M`` of solvers. Collective.

    Parameters
    ----------
    A : CSRMatrix
        The matrix, of which PETSc gets a copy. Rows and columns are split alike.
    options : str or dict
        Options of PETSc without the leading hyphen, such as ``{"pc_type": "hypre", "pc_hypre_type": "boomeramg"}``,
        with ``True`` for an option without a value; or only the type, such as ``"gamg"``. The same on every rank. PETSc
        ignores names that it does not know. Options of a program's command line and of ``PETSC_OPTIONS`` do not apply.

    Returns
    -------
    LinearOperator
        On the host. Applying it sends PETSc's messages. It has an adjoint if PETSc can apply the transpose.

    Raises
    ------
    InputError
        On every rank, if PETSc has no such type, cannot use the value of an option or cannot set up the preconditioner,
        or if it is not finite.
    LayoutError
        If rows and columns are split differently.
    UnsupportedTypeError
        If `A` is not a CSRMatrix, is complex where PETSc was built for real numbers, or the ranks were started without
        MPI.

    Examples
    --------
    >>> import collops
    >>> import scipy.sparse as sp
    >>> from collops.bridges.petsc import preconditioner
    >>> line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(200, 200))
    >>> A = collops.CSRMatrix.from_global(line)
    >>> M = preconditioner(A, {"pc_type": "gamg", "pc_gamg_threshold": 0.02})
    >>> collops.cg(A, collops.ones(200), M=M, rtol=1e-8).iterations < 20
    True
    """
    if not isinstance(A, CSRMatrix):
        raise UnsupportedTypeError(f"preconditioner takes a CSRMatrix, not {type_name(A)}")
    if A.columns is not A.rows:
        raise LayoutError("a preconditioner of PETSc needs a square matrix whose rows and columns are split alike")
    named = {"pc_type": options} if isinstance(options, str) else dict(options)
    matrix, ones = to_petsc(A), collops.ones(A.rows, comm=A.comm, dtype=_SCALAR)
    pc = PETSc.PC().create(_petsc_comm(A.comm))
    pc.setOptionsPrefix(f"collops_{next(_numbers)}_")
    pc.setOperators(matrix)
    database = PETSc.Options(pc.getOptionsPrefix())
    with collective_errors(A.comm):
        try:
            for name, value in named.items():
                database.setValue(name, None if value is True else value)
            pc.setFromOptions()
            pc.setUp()
            M = from_petsc(pc, A.rows, comm=A.comm)
            image = M.forward(ones)  # some parts are set up now; factors of singular blocks are no error of PETSc
        except PETSc.Error as problem:
            reason = str(problem).splitlines()[-1].rpartition("] ")[2]
            raise InputError(f"PETSc cannot set up the preconditioner {named}: {reason}") from problem
        finally:
            for name in named:
                database.delValue(name)
        if not np.isfinite(image.local_array).all():
            raise InputError(
                f"the preconditioner {named} of PETSc is not finite: a block of the matrix may be singular"
            )
    return M


class _Shell:
    """The context of a shell matrix: PETSc calls its methods."""

    def __init__(self, op: LinearOperator) -> None:
        self.op, self._adjoint = op, op.H
        self._transposed = op.T if _SCALAR.kind == "c" else op.H
        if callable(getattr(op, "diagonal", None)):
            self.getDiagonal = self._diagonal

    def mult(self, matrix: PETSc.Mat, x: PETSc.Vec, y: PETSc.Vec) -> None:
        self._apply(self.op, x, y)

    def multHermitian(self, matrix: PETSc.Mat, x: PETSc.Vec, y: PETSc.Vec) -> None:
        self._apply(self._adjoint, x, y)

    def multTranspose(self, matrix: PETSc.Mat, x: PETSc.Vec, y: PETSc.Vec) -> None:
        self._apply(self._transposed, x, y)

    def _apply(self, op: LinearOperator, x: PETSc.Vec, y: PETSc.Vec) -> None:
        source = _wrapped(x.getArray(readonly=True), op.domain, op.comm)
        op.forward(source, _wrapped(y.getArray(), op.range, op.comm))

    def _diagonal(self, matrix: PETSc.Mat, diagonal: PETSc.Vec) -> None:
        diagonal.getArray()[:] = self.op.diagonal().local_array.reshape(-1)  # pyright: ignore[reportAttributeAccessIssue]


class _Lifted(LinearOperator):
    """A product of PETSc between two vectors, whose memory is replaced by the memory of arrays for each product."""

    capturable = False

    def __init__(
        self,
        domain: Layout,
        range: Layout,
        comm: Communicator,
        matrix: PETSc.Mat,
        product: Callable[[PETSc.Vec, PETSc.Vec], None],
        adjoint: Callable[[PETSc.Vec, PETSc.Vec], None],
    ) -> None:
        super().__init__(domain, range, _SCALAR, comm)
        self._vectors = matrix.createVecs()
        self._products = product, adjoint

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        assert isinstance(x, DistributedArray) and isinstance(out, DistributedArray)
        _check_engine(x)
        values = contiguous(x.local_array, _SCALAR)
        result = out.local_array if out.dtype == _SCALAR else np.empty(out.local_array.shape, _SCALAR)
        source, target = self._vectors[::-1] if adjoint else self._vectors
        source.placeArray(values.reshape(-1))
        target.placeArray(result.reshape(-1))
        try:
            self._products[adjoint](source, target)
        finally:
            source.resetArray()
            target.resetArray()
        return filled(out, result)


def _conjugated(transposed: Callable[[PETSc.Vec, PETSc.Vec], None]) -> Callable[[PETSc.Vec, PETSc.Vec], None]:
    """Return the Hermitian product for a transposed one."""
    if _SCALAR.kind != "c":
        return transposed

    def hermitian(x: PETSc.Vec, y: PETSc.Vec) -> None:
        conjugate = x.copy()
        conjugate.conjugate()
        transposed(conjugate, y)
        y.conjugate()

    return hermitian


def _assembled(matrix: CSRMatrix) -> PETSc.Mat:
    rank = matrix.comm.rank
    first = matrix.columns.offset(rank)[0]
    own = np.arange(first, first + matrix.columns.local_size(rank))
    rows = sparse.csr_array(sparse.hstack(matrix.blocks))
    columns = np.concatenate([own, matrix.ghosts])[rows.indices]
    rows = sparse.csr_array((rows.data, columns, rows.indptr), shape=(rows.shape[0], matrix.columns.size))
    rows.sort_indices()  # as PETSc expects
    entries = rows.indptr.astype(PETSc.IntType), rows.indices.astype(PETSc.IntType), rows.data.astype(_SCALAR)
    sizes = tuple((layout.local_size(rank), layout.size) for layout in (matrix.rows, matrix.columns))
    return PETSc.Mat().createAIJ(sizes, csr=entries, comm=_petsc_comm(matrix.comm))


def _wrapped(values: np.ndarray, layout: AnyLayout, comm: Communicator) -> Array:
    """Return this rank's elements as an array, without copying them."""
    if isinstance(layout, Layout):
        return DistributedArray(layout, comm, values.reshape(layout.local_shape(comm.rank)))
    ends = accumulate(part.local_size(comm.rank) for part in layout)
    pieces = np.split(values, list(ends)[:-1])
    return StackedArray([_wrapped(piece, part, comm) for piece, part in zip(pieces, layout, strict=True)])


def _part_sizes(layout: AnyLayout) -> list[int]:
    """Return the number of elements on each rank; raise LayoutError if there are copies."""
    for leaf in (layout,) if isinstance(layout, Layout) else layout.leaves:
        if leaf.has_copies or leaf.has_group_values:
            raise LayoutError(
                f"each element of a vector of PETSc is on one rank, unlike in the layout {leaf}; split it with "
                "redistribute()"
            )
    return [layout.local_size(rank) for rank in range(layout.ranks)]


def _fitting(layout: AnyLayout | None, ends: Sequence[int]) -> AnyLayout:
    """Return `layout`, by default of one axis; raise unless its parts are the vector's, which begin at `ends`."""
    default = _in_parts(ends)
    if layout is None:
        return default
    if (found := _part_sizes(layout)) != list(default.sizes[0]):
        raise LayoutError(
            f"the ranks have {list(default.sizes[0])} elements of PETSc's vector, but {found} in the layout {layout}"
        )
    return layout


def _in_parts(ends: Sequence[int]) -> Layout:
    sizes = np.diff(ends).tolist()
    return Layout.split(sum(sizes), len(sizes), sizes=sizes)


def _check_engine(x: DistributedArray) -> None:
    if not x.engine.mutable or x.engine.memory != "host":
        raise UnsupportedTypeError(f"PETSc takes arrays of the engine numpy here, not {x.engine.name}")


def _check_type(dtype: np.dtype, what: str) -> None:
    if dtype.kind == "c" and _SCALAR.kind != "c":
        raise UnsupportedTypeError(f"{what} of {dtype}, but this PETSc is built for real numbers: use a complex one")


def _petsc_comm(comm: Communicator) -> object:
    """Return the communicator for objects of PETSc, of mpi4py if there are several ranks."""
    if comm.control is None:
        return PETSc.COMM_SELF
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(comm.control, mpi.Intracomm):
        raise UnsupportedTypeError("PETSc sends messages by MPI, without which these ranks were started: use mpiexec")
    return comm.control


def _check_comm(x: PETSc.Object, comm: Communicator) -> None:
    """Raise LayoutError unless an object of PETSc is on the ranks of `comm`."""
    _petsc_comm(comm)
    if comm.control is None:
        same = x.comm.size == 1
    else:
        same = comm.control.Compare(x.comm.tompi4py()) <= 1  # MPI.IDENT or MPI.CONGRUENT
    if not same:
        raise LayoutError(
            f"the {type(x).__name__} of PETSc is on {x.comm.size} ranks, not on the ranks of comm=: pass "
            "comm=collops.from_mpi4py(x.comm.tompi4py())"
        )
