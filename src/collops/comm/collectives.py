"""The collective operations on arrays, by the methods of a communicator.

Each validates its arguments before it begins to communicate (:mod:`collops.comm.failure` says why).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from collops.backend import Engine, engine_of
from collops.comm.buffers import in_elements, prepared, row_size, target_of
from collops.comm.control import Control
from collops.comm.entry import of_arrays
from collops.comm.reductions import check_reduction
from collops.errors import InputError, LayoutError
from collops.profile import messages

__all__ = ["Collectives"]


class Collectives(Control):
    """Reductions, and values that move between all ranks."""

    @of_arrays
    def allreduce(self, x: Any, op: str = "sum", *, out: Any = None) -> Any:
        """Reduce `x` over the ranks; every rank gets the result.

        Parameters
        ----------
        x : array or number
            The same shape and dtype on every rank.
        op : str
            ``sum, prod, min, max, avg, land, lor, lxor``; :mod:`collops.comm.reductions` says what each dtype allows.
        out : array, optional
            Gets the result; `x` itself works in place.

        Returns
        -------
        array
            Of the shape and dtype of `x`.

        Raises
        ------
        UnsupportedTypeError
            If `op` has no meaning for the dtype.
        LayoutError
            If `out` has another shape.
        CommunicationTimeout
            If not all ranks arrive in time (host arrays; see ``COLLOPS_TIMEOUT``).
        """
        source, engine = prepared(x, self._pending)
        check_reduction(op, source.dtype)
        target, give = target_of(out, source, source.shape, engine, self._pending)
        if messages.active:
            messages.record("allreduce", source.size, source.nbytes)
        self._begin(engine).allreduce(source, target, op)
        return give(target)

    @of_arrays
    def reduce(self, x: Any, op: str = "sum", root: int = 0, *, out: Any = None) -> Any:
        """Reduce `x` over the ranks; `root` gets the result, the others ``None``. See :meth:`allreduce`."""
        self._check_rank(root, "root")
        source, engine = prepared(x, self._pending)
        check_reduction(op, source.dtype)
        if messages.active:
            messages.record("reduce", source.size, source.nbytes)
        if self.rank != root:
            self._begin(engine).reduce(source, None, op, root)
            return None
        target, give = target_of(out, source, source.shape, engine, self._pending)
        self._begin(engine).reduce(source, target, op, root)
        return give(target)

    @of_arrays
    def bcast(self, x: Any, root: int = 0, *, out: Any = None) -> Any:
        """Give every rank the `x` of `root`.

        Parameters
        ----------
        x : array or number
            On `root` the values; elsewhere an array of the same shape and dtype, whose values do not matter.
        root : int
            The rank whose values count.
        out : array, optional
            Gets the result; `x` itself works in place.
        """
        self._check_rank(root, "root")
        source, engine = prepared(x, self._pending)
        target, give = target_of(out, source, source.shape, engine, self._pending)
        if messages.active:
            messages.record("bcast", source.size, source.nbytes)
        self._begin(engine).bcast(source, target, root)
        return give(target)

    @of_arrays
    def allgather(self, x: Any, *, out: Any = None) -> Any:
        """Stack every rank's `x`: the result has shape ``(size, *x.shape)`` on every rank."""
        source, engine = prepared(x, self._pending)
        target, give = target_of(out, source, (self.size, *source.shape), engine, self._pending)
        if messages.active:
            messages.record("allgather", source.size, source.nbytes)
        self._begin(engine).allgather(source, target)
        return give(target)

    @of_arrays
    def allgatherv(self, x: Any, counts: Sequence[int] | None = None, *, out: Any = None) -> Any:
        """Concatenate every rank's `x` along its first axis, on every rank.

        Parameters
        ----------
        x : array
            At least 1-d; shapes may differ along the first axis.
        counts : sequence of int, optional
            Rows that each rank gives. Without it they are exchanged first (one metadata message).
        out : array, optional
            Gets the result.
        """
        source, engine = prepared(x, self._pending)
        rows = self._rows(source, counts)
        target, give = target_of(out, source, (sum(rows), *source.shape[1:]), engine, self._pending)
        if messages.active:
            messages.record("allgatherv", source.size, source.nbytes)
        self._begin(engine).allgatherv(source, target, in_elements(rows, source.shape))
        return give(target)

    @of_arrays
    def gather(self, x: Any, root: int = 0, *, out: Any = None) -> Any:
        """Stack every rank's `x` on `root`, as ``(size, *x.shape)``; the others get ``None``."""
        source, engine = prepared(x, self._pending)
        return self._gather("gather", source, [1] * self.size, (self.size, *source.shape), root, out, engine)

    @of_arrays
    def gatherv(self, x: Any, counts: Sequence[int] | None = None, root: int = 0, *, out: Any = None) -> Any:
        """Concatenate every rank's `x` along its first axis, on `root`. See :meth:`allgatherv`."""
        source, engine = prepared(x, self._pending)
        rows = self._rows(source, counts)
        return self._gather("gatherv", source, rows, (sum(rows), *source.shape[1:]), root, out, engine)

    @of_arrays
    def scatter(self, x: Any, root: int = 0, *, out: Any = None) -> Any:
        """Give rank *r* the block ``x[r]`` of `root`.

        Parameters
        ----------
        x : array or None
            On `root` of shape ``(size, *shape)``. Elsewhere an array of the result's shape and dtype, or ``None`` when
            `out` is given.
        root : int
            The rank whose values count.
        out : array, optional
            Gets the result.
        """
        if self.rank != root:
            return self._scatter_here("scatter", x, [1] * self.size, root, out)
        source, _ = prepared(x, self._pending)
        if source.ndim == 0 or source.shape[0] != self.size:
            raise LayoutError(f"scatter needs a first axis of {self.size} blocks, one a rank, not shape {source.shape}")
        return self._scatter_from("scatter", source, [1] * self.size, source.shape[1:], root, out)

    @of_arrays
    def scatterv(self, x: Any, counts: Sequence[int], root: int = 0, *, out: Any = None) -> Any:
        """Cut `x` of `root` along its first axis: rank *r* gets ``counts[r]`` rows. See :meth:`scatter`."""
        rows = self._checked_counts(counts, "counts")
        if self.rank != root:
            return self._scatter_here("scatterv", x, rows, root, out)
        source, _ = prepared(x, self._pending)
        if source.ndim == 0 or source.shape[0] != sum(rows):
            raise LayoutError(f"counts add up to {sum(rows)} rows, but x has shape {source.shape}")
        return self._scatter_from("scatterv", source, rows, (rows[root], *source.shape[1:]), root, out)

    @of_arrays
    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None) -> Any:
        """Reduce `x` of shape ``(size, *shape)`` over the ranks; rank *r* gets the block ``[r]`` of the result."""
        source, engine = prepared(x, self._pending)
        check_reduction(op, source.dtype)
        if source.ndim == 0 or source.shape[0] != self.size:
            raise LayoutError(f"reduce_scatter needs a first axis of {self.size} blocks, not shape {source.shape}")
        target, give = target_of(out, source, source.shape[1:], engine, self._pending)
        if messages.active:
            messages.record("reduce_scatter", source.size, source.nbytes)
        self._begin(engine).reduce_scatter(source, target, op)
        return give(target)

    @of_arrays
    def alltoall(self, x: Any, *, out: Any = None) -> Any:
        """Send block ``x[r]`` to rank *r*; the result stacks the blocks that the ranks sent here."""
        source, engine = prepared(x, self._pending)
        if source.ndim == 0 or source.shape[0] != self.size:
            raise LayoutError(f"alltoall needs a first axis of {self.size} blocks, not shape {source.shape}")
        return self._alltoall("alltoall", source, [1] * self.size, [1] * self.size, out, engine)

    @of_arrays
    def alltoallv(self, x: Any, send_counts: Sequence[int], receive_counts: Sequence[int], *, out: Any = None) -> Any:
        """Send ``send_counts[r]`` rows of `x` to rank *r*, in order; collect ``receive_counts[r]`` rows from it.

        Parameters
        ----------
        x : array
            Its first axis holds the rows for rank 0, rank 1, and so on.
        send_counts, receive_counts : sequence of int
            Rows to and from each rank.
        out : array, optional
            Gets the result.
        """
        source, engine = prepared(x, self._pending)
        leaving = self._checked_counts(send_counts, "send_counts")
        arriving = self._checked_counts(receive_counts, "receive_counts")
        if source.ndim == 0 or source.shape[0] != sum(leaving):
            raise LayoutError(f"send_counts add up to {sum(leaving)} rows, but x has shape {source.shape}")
        return self._alltoall("alltoallv", source, leaving, arriving, out, engine)

    def _checked_counts(self, counts: Sequence[int], name: str) -> list[int]:
        rows = [operator.index(count) for count in counts]
        if len(rows) != self.size or min(rows) < 0:
            raise LayoutError(f"{name} needs one non-negative number for each of {self.size} ranks, not {rows}")
        return rows

    def _rows(self, source: Any, counts: Sequence[int] | None) -> list[int]:
        if source.ndim == 0:
            raise LayoutError("arrays to concatenate need at least one axis")
        if counts is None:
            return self.allgather_metadata(source.shape[0])
        rows = self._checked_counts(counts, "counts")
        if rows[self.rank] != source.shape[0]:
            raise LayoutError(f"counts give this rank {rows[self.rank]} rows, but x has shape {source.shape}")
        return rows

    def _gather(
        self,
        name: str,
        source: Any,
        rows: list[int],
        shape: tuple[int, ...],
        root: int,
        out: Any,
        engine: Engine,
    ) -> Any:
        self._check_rank(root, "root")
        if messages.active:
            messages.record(name, source.size, source.nbytes)
        counts = [source.size] * self.size if name == "gather" else in_elements(rows, (0, *source.shape[1:]))
        if self.rank != root:
            self._begin(engine).gatherv(source, None, counts, root)
            return None
        target, give = target_of(out, source, shape, engine, self._pending)
        self._begin(engine).gatherv(source, target, counts, root)
        return give(target)

    def _scatter_from(
        self, name: str, source: Any, rows: list[int], shape: tuple[int, ...], root: int, out: Any
    ) -> Any:
        engine = engine_of(source)
        target, give = target_of(out, source, shape, engine, self._pending)
        if messages.active:
            messages.record(name, source.size, source.nbytes)
        self._begin(engine).scatterv(source, target, in_elements(rows, source.shape), root)
        return give(target)

    def _scatter_here(self, name: str, x: Any, rows: list[int], root: int, out: Any) -> Any:
        self._check_rank(root, "root")
        template = out if out is not None else x
        if template is None:
            raise InputError(f"{name}: pass out= (or an array like the result) on the ranks that are not root")
        engine = engine_of(template)
        shape = tuple(template.shape)
        if name == "scatterv" and (not shape or shape[0] != rows[self.rank]):
            shape = (rows[self.rank], *shape[1:])
        target, give = target_of(out, template, shape, engine, self._pending)
        width = target.size if name == "scatter" else row_size(shape)
        if messages.active:
            messages.record(name, target.size, target.nbytes)
        self._begin(engine).scatterv(None, target, [count * width for count in rows], root)
        return give(target)

    def _alltoall(
        self, name: str, source: Any, leaving: list[int], arriving: list[int], out: Any, engine: Engine
    ) -> Any:
        target, give = target_of(out, source, (sum(arriving), *source.shape[1:]), engine, self._pending)
        if target is source:
            source = source.copy()
        if messages.active:
            messages.record(name, source.size, source.nbytes)
        self._begin(engine).alltoallv(
            source, target, in_elements(leaving, source.shape), in_elements(arriving, source.shape)
        )
        return give(target)
