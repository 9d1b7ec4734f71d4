"""The communicator: one object for every collective and message, whatever the wire and wherever the array lives."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from collops.backend import Engine, engine_of
from collops.comm.agreement import agree, any_failed, described, gather_values, raise_together
from collops.comm.buffers import check_kind, in_elements, prepared, row_size, target_of
from collops.comm.deadline import Watch
from collops.comm.immutable import or_traced
from collops.comm.reductions import check_reduction
from collops.comm.transport import FIRST_USER_TAG, Pending, Transport
from collops.errors import (
    CommunicationError,
    InputError,
    LayoutError,
    TransportError,
    UnsupportedTypeError,
)
from collops.profile import messages

if TYPE_CHECKING:
    from collops.comm.calls import Calls
    from collops.comm.symmetric import Symmetric

__all__ = ["Communicator"]


class Communicator:
    """A group of ranks, and the wires between them.

    Made by :func:`collops.world`, :func:`collops.comm.from_mpi4py`, :meth:`split` and :meth:`subgroup`, not directly.
    Methods take NumPy and CuPy arrays (and Python numbers, as 0-d arrays), contiguous or not, and JAX's, traced ones
    included (by :mod:`collops.jax`), and return arrays of the same engine. ``out=`` gets the result; ``out=x`` works in
    place. Device work is ordered on the caller's current stream. Every method is collective unless it says
    otherwise: all ranks call it, in the same order.

    Attributes
    ----------
    rank, size : int
        This rank, and how many there are.
    local_rank, local_size : int
        The same among the ranks of this node.
    control : mpi4py.MPI.Comm or None
        The control plane; ``None`` in a world of one without MPI.
    reasons : tuple of str
        Why the wires are what they are.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> comm = collops.world()
    >>> int(comm.allreduce(np.array(1))) == comm.size
    True
    >>> len(comm.allgather(np.arange(2)).ravel()) == 2 * comm.size
    True
    """

    def __init__(
        self,
        host: Transport,
        device: Transport | None,
        *,
        control: Any = None,
        local_rank: int = 0,
        local_size: int = 1,
        reasons: Sequence[str] = (),
        watch: Watch | None = None,
        derive: Callable[[Any], Communicator] | None = None,
        calls: Calls | None = None,
    ) -> None:
        self.control = control
        self.rank: int = 0 if control is None else control.rank
        self.size: int = 1 if control is None else control.size
        self.local_rank = local_rank
        self.local_size = local_size
        self._host = host
        self._device = device
        self.reasons = tuple(reasons)
        self._watch = watch
        self._derive = derive
        self.calls = calls
        self._traced: Transport | None = None
        self._plans = 0
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._splits: dict[tuple[tuple[int | None, int], ...], Communicator | None] = {}
        self._pending: list[Pending] | None = None

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}, {self.transport}>"

    @property
    def host_transport(self) -> str:
        """Name of the wire that carries host arrays."""
        return self._host.name

    @property
    def device_transport(self) -> str | None:
        """Name of the wire that carries device arrays; ``None`` where there is no device."""
        return None if self._device is None else self._device.name

    @property
    def transport(self) -> str:
        """Name of the wire that large arrays take: the device's where there is one."""
        return self.device_transport or self.host_transport

    def describe(self) -> str:
        """Say what was chosen and why, a line each. Not collective."""
        lines = [
            f"rank {self.rank} of {self.size} (rank {self.local_rank} of {self.local_size} on its node)",
            f"host arrays:   {self.host_transport}",
            f"device arrays: {self.device_transport or 'none'}",
        ]
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons)])

    # Collectives

    @or_traced
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
        source, engine = prepared(x)
        check_reduction(op, source.dtype)
        target, give = target_of(out, source, source.shape, engine)
        if messages.active:
            messages.record("allreduce", source.size, source.nbytes)
        self._plane(engine).allreduce(source, target, op)
        return give(target)

    @or_traced
    def reduce(self, x: Any, op: str = "sum", root: int = 0, *, out: Any = None) -> Any:
        """Reduce `x` over the ranks; `root` gets the result, the others ``None``. See :meth:`allreduce`."""
        self._check_rank(root, "root")
        source, engine = prepared(x)
        check_reduction(op, source.dtype)
        if messages.active:
            messages.record("reduce", source.size, source.nbytes)
        if self.rank != root:
            self._plane(engine).reduce(source, None, op, root)
            return None
        target, give = target_of(out, source, source.shape, engine)
        self._plane(engine).reduce(source, target, op, root)
        return give(target)

    @or_traced
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
        source, engine = prepared(x)
        target, give = target_of(out, source, source.shape, engine)
        if self.rank == root and target is not source:
            target[...] = source
        if messages.active:
            messages.record("bcast", source.size, source.nbytes)
        self._plane(engine).bcast(target, root)
        return give(target)

    @or_traced
    def allgather(self, x: Any, *, out: Any = None) -> Any:
        """Stack every rank's `x`: the result has shape ``(size, *x.shape)`` on every rank."""
        source, engine = prepared(x)
        target, give = target_of(out, source, (self.size, *source.shape), engine)
        if messages.active:
            messages.record("allgather", source.size, source.nbytes)
        self._plane(engine).allgather(source, target)
        return give(target)

    @or_traced
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
        source, engine = prepared(x)
        rows = self._rows(source, counts)
        target, give = target_of(out, source, (sum(rows), *source.shape[1:]), engine)
        if messages.active:
            messages.record("allgatherv", source.size, source.nbytes)
        self._plane(engine).allgatherv(source, target, in_elements(rows, source.shape))
        return give(target)

    @or_traced
    def gather(self, x: Any, root: int = 0, *, out: Any = None) -> Any:
        """Stack every rank's `x` on `root`, as ``(size, *x.shape)``; the others get ``None``."""
        source, engine = prepared(x)
        return self._gather("gather", source, [1] * self.size, (self.size, *source.shape), root, out, engine)

    @or_traced
    def gatherv(self, x: Any, counts: Sequence[int] | None = None, root: int = 0, *, out: Any = None) -> Any:
        """Concatenate every rank's `x` along its first axis, on `root`. See :meth:`allgatherv`."""
        source, engine = prepared(x)
        rows = self._rows(source, counts)
        return self._gather("gatherv", source, rows, (sum(rows), *source.shape[1:]), root, out, engine)

    @or_traced
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
        source, _ = prepared(x)
        if source.ndim == 0 or source.shape[0] != self.size:
            raise LayoutError(f"scatter needs a first axis of {self.size} blocks, one a rank, not shape {source.shape}")
        return self._scatter_from("scatter", source, [1] * self.size, source.shape[1:], root, out)

    @or_traced
    def scatterv(self, x: Any, counts: Sequence[int], root: int = 0, *, out: Any = None) -> Any:
        """Cut `x` of `root` along its first axis: rank *r* gets ``counts[r]`` rows. See :meth:`scatter`."""
        rows = self._checked_counts(counts, "counts")
        if self.rank != root:
            return self._scatter_here("scatterv", x, rows, root, out)
        source, _ = prepared(x)
        if source.ndim == 0 or source.shape[0] != sum(rows):
            raise LayoutError(f"counts add up to {sum(rows)} rows, but x has shape {source.shape}")
        return self._scatter_from("scatterv", source, rows, (rows[root], *source.shape[1:]), root, out)

    @or_traced
    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None) -> Any:
        """Reduce `x` of shape ``(size, *shape)`` over the ranks; rank *r* gets the block ``[r]`` of the result."""
        source, engine = prepared(x)
        check_reduction(op, source.dtype)
        if source.ndim == 0 or source.shape[0] != self.size:
            raise LayoutError(f"reduce_scatter needs a first axis of {self.size} blocks, not shape {source.shape}")
        target, give = target_of(out, source, source.shape[1:], engine)
        if messages.active:
            messages.record("reduce_scatter", source.size, source.nbytes)
        self._plane(engine).reduce_scatter(source, target, op)
        return give(target)

    @or_traced
    def alltoall(self, x: Any, *, out: Any = None) -> Any:
        """Send block ``x[r]`` to rank *r*; the result stacks the blocks that the ranks sent here."""
        source, engine = prepared(x)
        if source.ndim == 0 or source.shape[0] != self.size:
            raise LayoutError(f"alltoall needs a first axis of {self.size} blocks, not shape {source.shape}")
        return self._alltoall("alltoall", source, [1] * self.size, [1] * self.size, out, engine)

    @or_traced
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
        source, engine = prepared(x)
        leaving = self._checked_counts(send_counts, "send_counts")
        arriving = self._checked_counts(receive_counts, "receive_counts")
        if source.ndim == 0 or source.shape[0] != sum(leaving):
            raise LayoutError(f"send_counts add up to {sum(leaving)} rows, but x has shape {source.shape}")
        return self._alltoall("alltoallv", source, leaving, arriving, out, engine)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        if messages.active:
            messages.record("barrier", 0, 0)
        self._host.barrier()

    # Point to point

    @or_traced
    def send(self, x: Any, dest: int, tag: int = 0) -> None:
        """Send `x` to rank `dest`, which calls :meth:`recv`. Not collective."""
        self._check_rank(dest, "dest")
        source, engine = prepared(x)
        if messages.active:
            messages.record("send", source.size, source.nbytes)
        self._message(engine, [(dest, source)], [], tag)

    @or_traced
    def recv(self, out: Any, source: int, tag: int = 0) -> Any:
        """Receive from rank `source` into `out`, and return it. Not collective.

        Inside :meth:`group` the values are there when the group ends.
        """
        self._check_rank(source, "source")
        engine = engine_of(out)
        check_kind(out.dtype)
        if messages.active:
            messages.record("recv", out.size, out.nbytes)
        return self._receive(engine, [], out, source, tag)

    @or_traced
    def sendrecv(self, x: Any, dest: int, out: Any, source: int, tag: int = 0) -> Any:
        """Send `x` to `dest` and receive `out` from `source` at once; return `out`. Not collective."""
        self._check_rank(dest, "dest")
        self._check_rank(source, "source")
        given, engine = prepared(x)
        if engine_of(out) is not engine:
            raise UnsupportedTypeError("sendrecv needs both arrays of one engine")
        check_kind(out.dtype)
        if messages.active:
            messages.record("sendrecv", given.size, given.nbytes)
        return self._receive(engine, [(dest, given)], out, source, tag)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Merge the calls inside: NCCL launches them at once, and no send waits for its receive.

        Inside, arrays must be contiguous, and results are there when the group ends.
        """
        if self._pending is not None:
            raise CommunicationError("groups cannot be nested")
        self._pending = pending = []
        try:
            with ExitStack() as stack:
                if self._device is not None:
                    stack.enter_context(self._device.group())
                yield
        finally:
            self._pending = None
            for message in pending:
                message.wait()

    def wait(self, event: Any, operation: str = "device work") -> None:
        """Wait on the host for a device event, with the deadline of every other wait. Not collective.

        Parameters
        ----------
        event : object with a ``done`` attribute
            A recorded ``cupy.cuda.Event``.
        operation : str
            What the error calls the work.

        Raises
        ------
        CommunicationTimeout
            If the event does not come in time, for instance because another rank never entered a collective that
            this rank's stream is waiting in. The device's wires are shut down first, which frees the GPU.
        CommunicationError
            If the device's wire has failed.
        """
        if self._watch is None:
            event.synchronize()
        else:
            inspect = None if self._device is None else self._device.inspect
            self._watch.until(lambda: event.done, operation, inspect=inspect)

    # Sub-communicators

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Join the ranks that pass the same `color`, in the order of `key`, then of rank.

        Equal calls return the same communicator; only the first makes one.

        Parameters
        ----------
        color : int or None
            Non-negative; ``None`` joins no one and returns ``None``.
        key : int
            Order within the new communicator.
        """
        color, key = None if color is None else operator.index(color), operator.index(key)
        if color is not None and not 0 <= color < _MOST_COLORS:
            raise InputError(f"a color must be an integer of 0 to {_MOST_COLORS - 1}, or None, not {color}")
        if not -_MOST_COLORS <= key < _MOST_COLORS:
            raise InputError(f"a key must be an integer of 32 bits, not {key}")
        choices = tuple((row[0], row[1]) for row in self.allgather_metadata([color, key]))
        if choices not in self._splits:
            self._splits[choices] = self._split(color, key)
        return self._splits[choices]

    def subgroup(self, groups: tuple[int, ...]) -> Communicator:
        """Return the communicator of the ranks whose group is this rank's.

        Parameters
        ----------
        groups : tuple of int
            The group of every rank, the same tuple on every rank. Only the first call with it communicates.

        Raises
        ------
        LayoutError
            If there are not as many groups as ranks.
        """
        known = self._groups.get(groups)
        if known is None:
            if len(groups) != self.size:
                raise LayoutError(f"{len(groups)} groups were given for {self.size} ranks")
            if len(set(groups)) == 1:
                known = self
            else:
                numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
                known = self._split(numbers[groups[self.rank]], 0)
                assert known is not None
            self._groups[groups] = known
        return known

    # Control plane

    def allgather_metadata(self, value: Any) -> list[Any]:
        """Return every rank's `value`, anything that JSON can carry (tuples come back as lists).

        For set-up only: shapes, checks, names. Counted as ``metadata``.
        """
        return gather_values(value, self._host, self.size)

    def check(self, error: Exception | None) -> None:
        """Raise on every rank if any rank passes an error; return if all pass ``None``.

        The class is kept where it is ours, ``ValueError``, ``TypeError``, ``OSError`` or ``MemoryError``,
        and is ``CollopsError`` otherwise; the message names the ranks unless all failed. One metadata message when
        all is well.
        """
        if any_failed(error, self._host, self.size):
            raise_together(error, self.allgather_metadata(described(error)))

    def agree(self, what: str, value: Any) -> None:
        """Raise on every rank unless all ranks pass the same value. One small message, counted as ``agreement``.

        For what ranks must have in common and nothing else would find out, such as the number of iterations.

        Parameters
        ----------
        what : str
            The name of the value, for the error.
        value : object
            Anything that JSON can carry; what it cannot is taken by its text.

        Raises
        ------
        InputError
            If the values differ; it shows those of all ranks.
        """
        agree(what, value, self._host, self.size)

    def announce(self, call: str, **facts: Any) -> None:
        """Agree on a call that no message of this communicator makes, where ``COLLOPS_CHECK`` is on; else do nothing.

        Collective. For the rooms above, whose wires are their own.

        Parameters
        ----------
        call : str
            Its name.
        **facts
            What must be the same on all ranks, anything that JSON can carry.

        Raises
        ------
        CallMismatch
            On every rank, if some rank is about to do something else.
        """
        if self.calls is not None:
            text = ", ".join(f"{name} {value}" for name, value in facts.items())
            self.calls.collective(f"{call} ({text})" if text else call, {"call": call, **facts})

    # One-sided memory

    def symmetric(
        self,
        shape: int | Sequence[int],
        dtype: Any = "float64",
        *,
        engine: str | None = None,
        signals: int = 0,
    ) -> Symmetric:
        """Make an array on every rank that all ranks can address. Collective.

        Parameters
        ----------
        shape : int or sequence of int
            Of each rank's array, the same on all.
        dtype : dtype
            Of its elements, which begin as zeros.
        engine : str, optional
            ``"numpy"`` (a window that the ranks of one node share) or ``"cupy"`` (NVSHMEM's heap); see
            :func:`collops.backend.engine` for the default.
        signals : int
            How many signals each rank has.

        Returns
        -------
        Symmetric
            Freed by its ``free()``, at the end of a ``with`` block, or when the program ends.

        Raises
        ------
        LayoutError
            On every rank, if the ranks ask for different things.
        MemoryError
            On every rank, if one of them cannot have the memory.
        TransportError
            On every rank, if these ranks cannot share memory.
        """
        from collops.comm.symmetric import allocate

        return allocate(self, shape, dtype, engine_name=engine, signals=signals)

    # For the rooms above

    def transport_of(self, array: Any) -> Transport:
        """Return the wire that carries `array`. Not collective."""
        return self._plane(engine_of(array))

    def next_plan_tag(self) -> int:
        """Return the number of a new exchange plan; all ranks make their plans in the same order. No message."""
        self._plans += 1
        return self._plans % FIRST_USER_TAG

    def _plane(self, engine: Engine) -> Transport:
        if not engine.keeps and self.size > 1:
            if self._traced is None:
                from collops.comm.jax_wire import JaxTransport

                self._traced = JaxTransport(self)
            return self._traced
        if engine.memory == "host":
            return self._host
        if self._device is None:
            if self.size == 1:
                return self._host
            raise TransportError(
                f"this communicator has no wire for {engine.name} arrays in device memory; "
                "call collops.world() on a machine with a GPU, or use transport='auto'"
            )
        return self._device

    def _split(self, color: int | None, key: int) -> Communicator | None:
        if messages.active:
            messages.record("split", 0, 0)
        if self.control is None or self._derive is None:
            return None if color is None else self
        self._host.barrier()  # with a deadline, which what follows has not
        undefined = _undefined_color()
        control = self.control.Split(undefined if color is None else color, key)
        return None if color is None else self._derive(control)

    def _check_rank(self, rank: int, name: str) -> None:
        if rank not in range(self.size):
            raise InputError(f"{name}={rank!r} is no rank of a communicator of {self.size}")

    def _checked_counts(self, counts: Sequence[int], name: str) -> list[int]:
        rows = [int(count) for count in counts]
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
            self._plane(engine).gatherv(source, None, counts, root)
            return None
        target, give = target_of(out, source, shape, engine)
        self._plane(engine).gatherv(source, target, counts, root)
        return give(target)

    def _scatter_from(
        self, name: str, source: Any, rows: list[int], shape: tuple[int, ...], root: int, out: Any
    ) -> Any:
        engine = engine_of(source)
        target, give = target_of(out, source, shape, engine)
        if messages.active:
            messages.record(name, source.size, source.nbytes)
        self._plane(engine).scatterv(source, target, in_elements(rows, source.shape), root)
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
        target, give = target_of(out, template, shape, engine)
        width = target.size if name == "scatter" else row_size(shape)
        if messages.active:
            messages.record(name, target.size, target.nbytes)
        self._plane(engine).scatterv(None, target, [count * width for count in rows], root)
        return give(target)

    def _alltoall(
        self, name: str, source: Any, leaving: list[int], arriving: list[int], out: Any, engine: Engine
    ) -> Any:
        target, give = target_of(out, source, (sum(arriving), *source.shape[1:]), engine)
        if target is source:
            source = source.copy()
        if messages.active:
            messages.record(name, source.size, source.nbytes)
        self._plane(engine).alltoallv(
            source, target, in_elements(leaving, source.shape), in_elements(arriving, source.shape)
        )
        return give(target)

    def _receive(self, engine: Engine, sends: list[tuple[int, Any]], out: Any, source: int, tag: int) -> Any:
        landing = out if out.flags.c_contiguous else engine.xp.empty(out.shape, out.dtype)
        if landing is not out and self._pending is not None:
            raise LayoutError("inside a group, recv needs a contiguous array")
        self._message(engine, sends, [(source, landing)], tag)
        if landing is not out:
            out[...] = landing
        return out

    def _message(self, engine: Engine, sends: list[tuple[int, Any]], receives: list[tuple[int, Any]], tag: int) -> None:
        if not 0 <= tag < _USER_TAGS:
            raise InputError(f"a tag must be between 0 and {_USER_TAGS - 1}, not {tag}")
        pending = self._plane(engine).start_exchange(sends, receives, FIRST_USER_TAG + tag)
        if self._pending is None:
            pending.wait()
        else:
            self._pending.append(pending)


_USER_TAGS = 1 << 20
_MOST_COLORS = 1 << 31  # they are integers of C


def _undefined_color() -> int:
    from mpi4py import MPI

    return MPI.UNDEFINED
