"""The record of a collective call, and the validation of its arguments.

A communicator makes a :class:`Call` from the user's arguments, and a transport runs it. :func:`validated` raises all
errors of the arguments before this rank begins the call, so that other ranks can be notified.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from collops.backend import Engine, LocalArray, engine_of
from collops.comm.agreement import AnyCommunicator
from collops.comm.reductions import check_dtype, check_reduction
from collops.errors import InputError, LayoutError, UnsupportedTypeError

__all__ = ["Call", "check_rank", "check_tag", "in_elements", "rows_of_ranks"]

_USER_TAGS = 1 << 20
_HOST = engine_of(np.empty(0))
engines: dict[type, Engine] = {np.ndarray: _HOST}
"""The engines of array types that transports send directly; JAX arrays are not among them."""
# Dtypes, and operations with dtypes, that have passed their check.
_carried: set[np.dtype] = set()
_reduced: set[tuple[str, np.dtype]] = set()
PARAMETERS = {
    "allreduce": ("op",),
    "reduce": ("op", "root"),
    "bcast": ("root",),
    "allgather": (),
    "allgatherv": ("counts",),
    "gather": ("root",),
    "gatherv": ("counts", "root"),
    "scatter": ("root",),
    "scatterv": ("counts", "root"),
    "reduce_scatter": ("op",),
    "alltoall": (),
    "alltoallv": ("send_counts", "receive_counts"),
}
"""The parameters of the communicator's methods, besides the array and ``out``."""
KINDS = (*PARAMETERS, "barrier")
# Shape of the result where it differs from the shape of the array: the first axis has one block per rank, and one or
# all blocks are received; or it has rows for each rank; or the result has an additional axis of ranks.
_LAYOUTS = {
    **dict.fromkeys(("scatter", "reduce_scatter"), "block"),
    "alltoall": "blocks",
    **dict.fromkeys(("allgatherv", "gatherv", "scatterv", "alltoallv"), "rows"),
    **dict.fromkeys(("allgather", "gather"), "stacked"),
}
_CONCATENATED = frozenset({"allgatherv", "gatherv"})
# For each kind: whether it reduces, whether it has a root, its layout, whether only the root has a result, and whether
# source and target may be the same array. A single table, so that a call needs one lookup.
_RULES = {
    kind: (
        "op" in names,
        "root" in names,
        _LAYOUTS.get(kind),
        kind in ("reduce", "gather", "gatherv"),
        kind in ("allreduce", "reduce", "bcast"),
    )
    for kind, names in PARAMETERS.items()
}


class Call:
    """One collective call of this rank.

    Attributes
    ----------
    kind : str
        Its name: ``allreduce, reduce, bcast, allgather, allgatherv, gather, gatherv, scatter, scatterv,
        reduce_scatter, alltoall, alltoallv`` or ``barrier``.
    source, target : array or None
        C-contiguous arrays of one engine and dtype; ``None`` if this rank sends or receives nothing. For ``allreduce``,
        ``reduce`` and ``bcast`` they may be the same array.
    op : str or None
        The reduction.
    resolved : object
        The transport's entry for the dtype and `op`, if the communicator has looked it up.
    root : int or None
        The root.
    counts : sequence of int or None
        Number of elements that each rank sends or receives; in ``alltoallv``, that this rank sends to each rank.
        ``None`` in ``allgather``, ``reduce_scatter`` and ``alltoall``, whose blocks are equal.
    receive_counts : sequence of int or None
        Elements that this rank receives from each rank in ``alltoallv``.
    out : array or None
        The user's array if it is not contiguous, so that the result must be copied to it from `target`.
    """

    # Class defaults for attributes that few calls have: every call makes a record, and each assignment takes time.
    resolved: Any = None
    receive_counts: Any = None
    out: LocalArray = None

    def __init__(
        self,
        kind: str,
        source: LocalArray = None,
        target: LocalArray = None,
        op: Any = None,
        root: Any = None,
        counts: Any = None,
    ) -> None:
        self.kind = kind
        self.source = source
        self.target = target
        self.op = op
        self.root = root
        self.counts = counts

    def with_arrays(self, source: LocalArray, target: LocalArray, op: str | None = None) -> Call:
        """Return the same call on other arrays, and with another reduction if `op` is given."""
        call = Call(self.kind, source, target, op or self.op, self.root, self.counts)
        call.receive_counts = self.receive_counts
        return call

    @property
    def array(self) -> LocalArray:
        """The array that this rank sends, or else the array that it receives."""
        return self.target if self.source is None else self.source

    def copied(self) -> LocalArray:
        """Copy the result to `out`, and return `out`."""
        self.out[...] = self.target
        return self.out


def validated(
    comm: AnyCommunicator,
    kind: str,
    x: LocalArray,
    out: LocalArray,
    op: Any,
    root: Any,
    counts: Sequence[int] | None,
    receive_counts: Sequence[int] | None,
) -> tuple[Call, Engine]:
    """Return the record of a collective call, and the engine of its arrays.

    Parameters are the communicator and the parameters of its methods, with counts in rows; missing counts are
    exchanged. Raises `InputError` for a rank that does not exist, and on a rank that passes neither `x` nor `out` to a
    scatter; `LayoutError` if shapes and counts do not match, or an array inside a group is not contiguous;
    `UnsupportedTypeError` if the dtype cannot be sent, `op` is not defined for it, or `out` has another engine or dtype
    or is read-only.
    """
    reducing, rooted, layout, to_root, in_place = _RULES[kind]
    size = comm.size
    if rooted:
        check_rank(root, size, "root")
        if comm.rank != root and kind in ("scatter", "scatterv"):
            return _scattered_here(comm, kind, x, out, root, counts)
    source, engine, dtype = contiguous(x, comm)
    if reducing and (type(op) is not str or (op, dtype) not in _reduced):
        check_reduction(op, dtype)
        _reduced.add((op, dtype))
    shape, elements, receive_elements = source.shape, None, None
    if layout is None:
        pass
    elif layout == "stacked":
        shape = (size, *shape)
        elements = [source.size] * size if rooted else None
    elif layout == "rows":
        elements, receive_elements, shape = _rows(comm, kind, shape, counts, receive_counts)
    else:
        if not shape or shape[0] != size:
            raise LayoutError(f"{kind} needs a first axis of {size} blocks, one for each rank, not shape {shape}")
        if layout == "block":
            shape = shape[1:]
            elements = [source.size // size] * size if rooted else None
    if to_root and comm.rank != root:
        return Call(kind, source, None, op, root, elements), engine
    target, copied_to = _target(out, source, dtype, shape, engine, comm)
    if (target is source and not in_place) or overlap(source, target):
        source = source.copy()
    call = Call(kind, source, target, op, root, elements)
    if receive_elements is not None:
        call.receive_counts = receive_elements
    if copied_to is not None:
        call.out = copied_to
    return call, engine


def overlap(x: LocalArray, out: LocalArray) -> bool:
    """Return whether two different arrays may share memory, which MPI and NCCL do not allow in a call."""
    if x is out or (x.base is None and out.base is None):  # arrays with memory of their own
        return False
    return engine_of(x).xp.may_share_memory(x, out)


def contiguous(x: LocalArray, comm: AnyCommunicator) -> tuple[LocalArray, Engine, np.dtype]:
    """Return `x` as a C-contiguous array of a dtype that messages carry, its engine and its dtype.

    Raises `LayoutError` if a copy would be needed in a group, which reads the array later, and `UnsupportedTypeError`
    if `x` is not an array or its dtype cannot be sent.
    """
    engine = engines.get(type(x))
    if engine is None:
        if isinstance(x, (bool, int, float, complex, list, np.generic)):
            x = np.asarray(x)
        engine = engine_of(x)
        adopted = engine.adopt(x)
        if adopted is x and engine is not _HOST and not engine.traced:
            engines[type(x)] = engine
        x = adopted
    dtype = x.dtype
    if dtype not in _carried:
        check_dtype(dtype)
        _carried.add(dtype)
    if not x.flags.c_contiguous:
        if comm.in_group:
            raise LayoutError("inside a group, arrays must be contiguous")
        x = engine.xp.ascontiguousarray(x)
    return x, engine, dtype


def check_rank(rank: int, size: int, name: str) -> None:
    """Raise :class:`InputError` unless `rank` is a rank."""
    if rank not in range(size):
        raise InputError(f"{name} must be a rank from 0 to {size - 1}, not {rank!r}")


def check_tag(tag: int) -> None:
    """Raise :class:`InputError` unless `tag` is a valid tag of users."""
    if not hasattr(tag, "__index__") or not 0 <= tag < _USER_TAGS:
        raise InputError(f"a tag must be an integer between 0 and {_USER_TAGS - 1}, not {tag!r}")


def in_elements(rows: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the numbers of elements in these numbers of rows of an array of `shape`."""
    width = prod(shape[1:])
    return [count * width for count in rows]


def _scattered_here(
    comm: AnyCommunicator, kind: str, x: LocalArray, out: LocalArray, root: int, counts: Sequence[int] | None
) -> tuple[Call, Engine]:
    """Return the call of a rank that is not the root of a scatter; `x` or `out` has the shape of its result."""
    rows = [1] * comm.size if kind == "scatter" else rows_of_ranks(counts, comm.size, "counts")
    like = x if out is None else out
    if like is None:
        raise InputError(f"{kind}: pass out= (or an array like the result) on the ranks that are not root")
    engine = engine_of(like)
    shape = tuple(like.shape)
    if kind == "scatterv" and (not shape or shape[0] != rows[comm.rank]):
        shape = (rows[comm.rank], *shape[1:])
    check_dtype(like.dtype)
    target, copied_to = _target(out, like, like.dtype, shape, engine, comm)
    width = target.size if kind == "scatter" else prod(shape[1:])
    call = Call(kind, None, target, None, root, [count * width for count in rows])
    call.out = copied_to
    return call, engine


def _target(
    out: LocalArray, source: LocalArray, dtype: np.dtype, shape: tuple[int, ...], engine: Engine, comm: AnyCommunicator
) -> tuple[LocalArray, LocalArray]:
    """Return a contiguous array for the result, and `out` if the result must be copied to it."""
    if out is None:
        return engine.empty(shape, dtype), None
    if (type(out) is not type(source) and engine_of(out) is not engine) or out.dtype != dtype:
        raise UnsupportedTypeError(f"out must be a {engine.name} array of dtype {dtype}")
    if out.shape != shape:
        raise LayoutError(f"out must have shape {shape}, not {out.shape}")
    flags = out.flags
    if engine is _HOST and not flags.writeable:
        raise UnsupportedTypeError("out must be writeable")
    if flags.c_contiguous:
        return out, None
    if comm.in_group:
        raise LayoutError("inside a group, out must be contiguous")
    return engine.empty(shape, dtype), out


def _rows(
    comm: AnyCommunicator,
    kind: str,
    shape: tuple[int, ...],
    counts: Sequence[int] | None,
    receive_counts: Sequence[int] | None,
) -> tuple[list[int], list[int] | None, tuple[int, ...]]:
    """Return the elements that each rank sends and that this rank receives, and the shape of the result."""
    if not shape:
        raise LayoutError(f"{kind} needs an array of at least one axis")
    if counts is None and kind in _CONCATENATED:
        rows = comm.allgather_metadata(shape[0])
    else:
        rows = rows_of_ranks(counts, comm.size, "send_counts" if kind == "alltoallv" else "counts")
        if kind in _CONCATENATED:
            if rows[comm.rank] != shape[0]:
                raise LayoutError(f"counts assign {rows[comm.rank]} rows to this rank, but x has shape {shape}")
        elif sum(rows) != shape[0]:
            raise LayoutError(f"counts add up to {sum(rows)} rows, but x has shape {shape}")
    elements = in_elements(rows, shape)
    if kind == "alltoallv":
        receive_rows = rows_of_ranks(receive_counts, comm.size, "receive_counts")
        return elements, in_elements(receive_rows, shape), (sum(receive_rows), *shape[1:])
    return elements, None, (rows[comm.rank] if kind == "scatterv" else sum(rows), *shape[1:])


def rows_of_ranks(counts: Any, size: int, name: str) -> list[int]:
    """Return the number of rows of each rank; raise :class:`LayoutError` unless all numbers are non-negative."""
    rows = [operator.index(count) for count in counts]
    if len(rows) != size or min(rows) < 0:
        raise LayoutError(f"{name} needs one non-negative number for each of {size} ranks, not {rows}")
    return rows
