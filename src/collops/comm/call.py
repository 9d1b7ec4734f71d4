"""A collective call as a record, and the one place where its arguments are validated.

A communicator makes a :class:`Call` of what the user passes, and a transport runs it. Everything that can be wrong with
the arguments raises in :func:`validated`, before this rank begins the call, so that other ranks can be told.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from collops.backend import Engine, engine_of
from collops.comm.reductions import check_dtype, check_reduction
from collops.errors import InputError, LayoutError, UnsupportedTypeError

__all__ = ["Call", "in_elements"]

_USER_TAGS = 1 << 20
_HOST = engine_of(np.empty(0))
_engines: dict[type, Engine] = {np.ndarray: _HOST}
"""Of types whose arrays are sent as they are."""
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
"""Of the communicator's methods, beside the array and ``out``."""
_REDUCING = frozenset(kind for kind, names in PARAMETERS.items() if "op" in names)
_ROOTED = frozenset(kind for kind, names in PARAMETERS.items() if "root" in names)
# Calls whose first axis has a block for each rank, or rows for each rank, or gets such an axis.
_IN_BLOCKS = frozenset({"scatter", "reduce_scatter", "alltoall"})
_IN_ROWS = frozenset({"allgatherv", "gatherv", "scatterv", "alltoallv"})
_STACKED = frozenset({"allgather", "gather"})
_CONCATENATED = frozenset({"allgatherv", "gatherv"})
_TO_ROOT = frozenset({"reduce", "gather", "gatherv"})
_IN_PLACE = frozenset({"allreduce", "reduce", "bcast"})  # transports take one array as source and target


class Call:
    """One collective call of this rank.

    Attributes
    ----------
    kind : str
        Its name: ``allreduce, reduce, bcast, allgather, allgatherv, gather, gatherv, scatter, scatterv,
        reduce_scatter, alltoall, alltoallv`` or ``barrier``.
    source, target : array or None
        C-contiguous arrays of one engine and dtype. ``None`` where this rank gives or gets nothing. For ``allreduce``,
        ``reduce`` and ``bcast`` they may be the same array.
    op : str or None
        The reduction.
    resolved : object
        What the transport has found for the dtype and `op` before, if the communicator has looked it up.
    root : int or None
        The root.
    counts : sequence of int or None
        Elements that each rank gives or gets; in ``alltoall`` and ``alltoallv`` those that this rank sends.
    receive_counts : sequence of int or None
        Elements that this rank receives from each rank in ``alltoall`` and ``alltoallv``.
    out : array or None
        The user's array, which is not contiguous, where the result has to be copied to it from `target`.
    """

    __slots__ = ("counts", "kind", "op", "out", "receive_counts", "resolved", "root", "source", "target")

    def __init__(
        self,
        kind: str,
        source: Any = None,
        target: Any = None,
        op: Any = None,
        resolved: Any = None,
        root: Any = None,
        counts: Any = None,
        receive_counts: Any = None,
        out: Any = None,
    ) -> None:
        self.kind = kind
        self.source = source
        self.target = target
        self.op = op
        self.resolved = resolved
        self.root = root
        self.counts = counts
        self.receive_counts = receive_counts
        self.out = out

    def on(self, source: Any, target: Any, op: str | None = None) -> Call:
        """Return the same call on other arrays, and with another reduction if `op` is given."""
        return Call(self.kind, source, target, op or self.op, None, self.root, self.counts, self.receive_counts)

    @property
    def array(self) -> Any:
        """The array that this rank gives, or else the one that it gets."""
        return self.target if self.source is None else self.source

    def copied(self) -> Any:
        """Copy the result to `out`, and return that."""
        self.out[...] = self.target
        return self.out

    def described(self, memory: str) -> tuple[str, dict[str, Any]]:
        """Return the call as errors of ``COLLOPS_CHECK`` show it, and what must be the same on all ranks."""
        facts: dict[str, Any] = {"call": self.kind, "memory": memory}
        if self.kind == "barrier":
            return "barrier", facts
        facts["dtype"] = dtype = self.array.dtype.name
        if self.receive_counts is not None:
            to, from_ = _text(self.counts), _text(self.receive_counts)
            return f"{self.kind} of {dtype}: {to} to, {from_} from each rank", facts
        # With counts, ranks have different numbers of elements.
        elements = self.array.size if self.counts is None else [int(count) for count in self.counts]
        facts.update(elements=elements, op=self.op, root=self.root)
        text = f"{self.kind}{'' if self.op is None else f'({self.op})'} of {_text(elements)} {dtype}"
        text += "" if self.root is None else f", root {self.root}"
        return text + (" on the device" if memory == "device" else ""), facts


def validated(
    comm: Any,
    kind: str,
    x: Any,
    out: Any,
    op: Any,
    root: Any,
    counts: Sequence[int] | None,
    receive_counts: Sequence[int] | None,
) -> tuple[Call, Engine]:
    """Return the record of a collective call, and the engine of its arrays.

    Parameters are the communicator, and those of its methods, with counts in rows. The numbers of rows of all ranks are
    exchanged if they are missing.

    Raises
    ------
    InputError
        If there is no such rank, or a rank that is not root passes neither `x` nor `out` to a scatter.
    LayoutError
        If shapes and counts do not fit, or an array of a group is not contiguous.
    UnsupportedTypeError
        If the dtype cannot be sent, `op` has no meaning for it, or `out` is of another engine or dtype or read-only.
    """
    size, rank, in_group = comm.size, comm.rank, comm.in_group
    if kind in _ROOTED:
        check_rank(root, size, "root")
        if rank != root and kind in ("scatter", "scatterv"):
            return _scattered_here(comm, kind, x, out, root, counts)
    source, engine = contiguous(x, in_group)
    if kind in _REDUCING:
        check_reduction(op, source.dtype)
    shape, given, taken = source.shape, None, None
    if kind in _IN_BLOCKS:
        if not shape or shape[0] != size:
            raise LayoutError(f"{kind} needs a first axis of {size} blocks, one for each rank, not shape {shape}")
        if kind != "reduce_scatter":
            given = [source.size // size] * size
        if kind == "alltoall":
            taken = given
        else:
            shape = shape[1:]
    elif kind in _IN_ROWS:
        given, taken, shape = _rows(comm, kind, shape, counts, receive_counts)
    elif kind in _STACKED:
        given = [source.size] * size if kind == "gather" else None
        shape = (size, *shape)
    if rank != root and kind in _TO_ROOT:
        return Call(kind, source, None, op, None, root, given), engine
    target, copied_to = _target(out, source, shape, engine, in_group)
    if target is source and kind not in _IN_PLACE:
        source = source.copy()
    return Call(kind, source, target, op, None, root, given, taken, copied_to), engine


def contiguous(x: Any, in_group: bool) -> tuple[Any, Engine]:
    """Return `x` as a C-contiguous array of a dtype that messages carry, and its engine.

    Raises
    ------
    LayoutError
        If a copy would be needed in a group, which reads the array later.
    UnsupportedTypeError
        If `x` is no array, or its dtype cannot be sent.
    """
    engine = _engines.get(type(x))
    if engine is None:
        if isinstance(x, (bool, int, float, complex, list, np.generic)):
            x = np.asarray(x)
        engine = engine_of(x)
        adopted = engine.adopt(x)
        if adopted is x and engine is not _HOST:
            _engines[type(x)] = engine
        x = adopted
    dtype = x.dtype
    if dtype.kind not in "biufc" or not dtype.isnative:
        check_dtype(dtype)
    if not x.flags.c_contiguous:
        if in_group:
            raise LayoutError("inside a group, arrays must be contiguous")
        x = engine.xp.ascontiguousarray(x)
    return x, engine


def check_rank(rank: int, size: int, name: str) -> None:
    """Raise :class:`InputError` unless there is such a rank."""
    if rank not in range(size):
        raise InputError(f"{name}={rank!r} is no rank of a communicator of {size}")


def check_tag(tag: int) -> None:
    """Raise :class:`InputError` unless a user may take this tag."""
    if not 0 <= tag < _USER_TAGS:
        raise InputError(f"a tag must be between 0 and {_USER_TAGS - 1}, not {tag}")


def in_elements(rows: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return how many elements these numbers of rows of an array of `shape` have."""
    width = prod(shape[1:])
    return [count * width for count in rows]


def _scattered_here(
    comm: Any, kind: str, x: Any, out: Any, root: int, counts: Sequence[int] | None
) -> tuple[Call, Engine]:
    """Return the part in a scatter of a rank that is not root, whose `x` or `out` has the shape of its result."""
    rows = [1] * comm.size if kind == "scatter" else _checked_counts(counts, comm.size, "counts")
    like = x if out is None else out
    if like is None:
        raise InputError(f"{kind}: pass out= (or an array like the result) on the ranks that are not root")
    engine = engine_of(like)
    shape = tuple(like.shape)
    if kind == "scatterv" and (not shape or shape[0] != rows[comm.rank]):
        shape = (rows[comm.rank], *shape[1:])
    check_dtype(like.dtype)
    target, copied_to = _target(out, like, shape, engine, comm.in_group)
    width = target.size if kind == "scatter" else prod(shape[1:])
    given = [count * width for count in rows]
    return Call(kind, None, target, None, None, root, given, None, copied_to), engine


def _target(out: Any, source: Any, shape: tuple[int, ...], engine: Engine, in_group: bool) -> tuple[Any, Any]:
    """Return a contiguous array for the result, and `out` if the result must be copied to it."""
    if out is None:
        return engine.xp.empty(shape, source.dtype), None
    if engine_of(out) is not engine or out.dtype != source.dtype:
        raise UnsupportedTypeError(f"out must be a {engine.name} array of dtype {source.dtype}")
    if out.shape != shape:
        raise LayoutError(f"out must have shape {shape}, not {out.shape}")
    flags = out.flags
    if not getattr(flags, "writeable", True):
        raise UnsupportedTypeError("out must be an array that can be written")
    if flags.c_contiguous:
        return out, None
    if in_group:
        raise LayoutError("inside a group, out must be contiguous")
    return engine.xp.empty(shape, source.dtype), out


def _rows(
    comm: Any,
    kind: str,
    shape: tuple[int, ...],
    counts: Sequence[int] | None,
    receive_counts: Sequence[int] | None,
) -> tuple[list[int], list[int] | None, tuple[int, ...]]:
    """Return what each rank gives and what this one gets, in elements, and the shape of the result."""
    if not shape:
        raise LayoutError(f"{kind} needs an array of at least one axis")
    if counts is None and kind in _CONCATENATED:
        rows = comm.allgather_metadata(shape[0])
    else:
        rows = _checked_counts(counts, comm.size, "send_counts" if kind == "alltoallv" else "counts")
        if kind in _CONCATENATED:
            if rows[comm.rank] != shape[0]:
                raise LayoutError(f"counts give this rank {rows[comm.rank]} rows, but x has shape {shape}")
        elif sum(rows) != shape[0]:
            raise LayoutError(f"counts add up to {sum(rows)} rows, but x has shape {shape}")
    given = in_elements(rows, shape)
    if kind == "alltoallv":
        arriving = _checked_counts(receive_counts, comm.size, "receive_counts")
        return given, in_elements(arriving, shape), (sum(arriving), *shape[1:])
    return given, None, (rows[comm.rank] if kind == "scatterv" else sum(rows), *shape[1:])


def _checked_counts(counts: Any, size: int, name: str) -> list[int]:
    rows = [operator.index(count) for count in counts]
    if len(rows) != size or min(rows) < 0:
        raise LayoutError(f"{name} needs one non-negative number for each of {size} ranks, not {rows}")
    return rows


def _text(numbers: Any) -> str:
    """Return counts in few words: all of up to eight, or what more of them add up to."""
    if isinstance(numbers, int):
        return str(numbers)
    return "+".join(map(str, numbers)) if len(numbers) <= 8 else f"{sum(numbers)} ({len(numbers)} counts)"
