"""The communicator: collectives, messages, subgroups and shared memory of a group of ranks, on any transport."""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from collops.backend import CudaEvent, Engine, LocalArray, engine_of
from collops.comm.agreement import Json, MpiComm, described, raise_shared, raised_together, table
from collops.comm.call import PARAMETERS, Call, check_rank, check_tag, contiguous, engines, overlap, validated
from collops.comm.checked import CallAgreement
from collops.comm.failure import Failures
from collops.comm.mpi import split
from collops.comm.reclaim import reclaim, unreachable
from collops.comm.reductions import check_dtype
from collops.comm.symmetric import SharedWindow, Symmetric, validated_memory
from collops.comm.transport import FIRST_USER_TAG, Pending, Transport
from collops.errors import (
    ARGUMENT_ERRORS,
    CommunicationError,
    InputError,
    LayoutError,
    TransportError,
    UnsupportedTypeError,
)
from collops.profile import messages
from collops.profile.marks import Span, active
from collops.profile.messages import active as counted

_HOST = engine_of(np.empty(0))
_MAX_COLORS = 1 << 31  # they are integers of C


class Communicator:
    """A group of ranks, and the transports between them.

    Created by :func:`collops.world`, :func:`collops.comm.from_mpi4py`, :meth:`split` and :meth:`subgroup`. Methods take
    NumPy, CuPy and JAX arrays, contiguous or not, and Python numbers as 0-d arrays; they return arrays of the same
    engine. ``out=`` receives the result; ``out=x`` works in place. Device work is ordered on the caller's current
    stream. Every method is collective unless documented otherwise: all ranks call it, in the same order.

    JAX arrays may be traced, and ``out=`` is ignored for them. In derivatives, a result on all ranks counts as one
    value, as with ``cotangents="replicated"`` of :func:`collops.jax.allreduce`.

    Attributes
    ----------
    rank, size : int
        This rank, and the number of ranks.
    local_rank, local_size : int
        The same among the ranks of this node.
    nodes : tuple of int
        For each rank, the first rank of its node, with which it shares memory.
    control : mpi4py.MPI.Comm or None
        The control plane, or its substitute between ranks without MPI; ``None`` in a world of one rank without MPI.
    reasons : tuple of str
        Why these transports were chosen.
    failures : Failures or None
        The failure protocol of these ranks; ``None`` with a single rank.
    calls : CallAgreement or None
        Compares the calls of all ranks before they run, with ``COLLOPS_CHECK``; else ``None``.
    ranks : tuple of int
        The ranks in the world of these ranks; empty without `control`.
    releases : list of callable
        Free the resources of the communicator, collectively, once no rank can use it any more.
    cache : dict
        Values that other modules keep as long as the communicator exists.

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
        control: MpiComm = None,
        local_rank: int = 0,
        local_size: int = 1,
        nodes: tuple[int, ...] | None = None,
        reasons: Sequence[str] = (),
        failures: Failures | None = None,
        derive: Callable[[MpiComm], Communicator] | None = None,
        calls: CallAgreement | None = None,
        ranks: Sequence[int] = (),
        releases: list[Callable[[], None]] | None = None,
    ) -> None:
        self.control = control
        self.rank: int = 0 if control is None else control.rank
        self.size: int = 1 if control is None else control.size
        self.local_rank = local_rank
        self.local_size = local_size
        self.nodes = tuple(range(self.size)) if nodes is None else nodes
        self.reasons = tuple(reasons)
        self.ranks = tuple(ranks)
        self.releases = [] if releases is None else releases
        self.calls = calls
        self._host = host
        self._device = device
        self.failures = failures
        self._derive = derive
        self._pending: list[Pending] | None = None
        self._reducers: dict[
            type, tuple[Transport, Mapping[tuple[np.dtype, str], object], Callable[..., LocalArray]]
        ] = {}
        self._movers: dict[tuple[type, np.dtype | None], tuple[Transport, Callable[..., LocalArray]]] = {}
        self.cache: dict[Any, Any] = {}
        self._plans = 0
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._splits: dict[tuple[tuple[int | None, int], ...], Communicator | None] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Communicator:
        """Return this communicator: deep copies of arrays and operators keep theirs."""
        return self

    def __reduce__(self) -> NoReturn:
        raise UnsupportedTypeError(
            "arrays, operators and communicators cannot be pickled, because they belong to running ranks: write arrays "
            "by collops.save(path, x), or pickle x.layout and x.local_array, and make operators on each rank"
        )

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}, {self.transport}>"

    @property
    def host_transport(self) -> str:
        """Name of the transport of host arrays."""
        return self._host.name

    @property
    def device_transport(self) -> str | None:
        """Name of the transport of device arrays; ``None`` without devices."""
        return None if self._device is None else self._device.name

    @property
    def transport(self) -> str:
        """Name of the transport of large arrays: the transport of device arrays if there are devices."""
        return self.device_transport or self.host_transport

    @property
    def in_group(self) -> bool:
        """Whether the program is inside :meth:`group`."""
        return self._pending is not None

    def describe(self) -> str:
        """Return the chosen transports and the reasons, one line each. Not collective."""
        hosts, levels = len(set(self.nodes)), ""
        if 1 < hosts < self.size:
            levels = f"; star forests by memory within each of {hosts} nodes and by messages between them"
        lines = [
            f"rank {self.rank} of {self.size} (rank {self.local_rank} of {self.local_size} on its node)",
            f"host arrays:   {self.host_transport}{levels}",
            f"device arrays: {self.device_transport or 'none'}",
        ]
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons)])

    def allreduce(self, x: LocalArray, op: str = "sum", *, out: LocalArray | None = None) -> LocalArray:
        """Reduce `x` over the ranks; every rank gets the result.

        Parameters
        ----------
        x : array or number
            The same shape and dtype on every rank.
        op : str
            ``sum, prod, min, max, avg, land, lor, lxor``; :mod:`collops.comm.reductions` lists the dtypes of each.
            ``min`` and ``max`` propagate NaN, as in NumPy.
        out : array, optional
            Receives the result; `x` itself works in place.

        Returns
        -------
        array
            The result, with the shape and dtype of `x`.

        Raises
        ------
        UnsupportedTypeError
            If `op` is not defined for the dtype.
        LayoutError
            If `out` has another shape.
        CommunicationTimeout
            If not all ranks arrive in time (host arrays; see ``COLLOPS_TIMEOUT``).
        """
        # Fast path, for the scalars of solvers: the transport has cached its reductions of this type and dtype, so that
        # a few comparisons validate the call. All other cases (non-contiguous arrays, errors, JAX, profiling) are
        # handled by _run, with the same results.
        reducer = self._reducers.get(type(x))
        if reducer is None and isinstance(x, np.generic):
            x = np.asarray(x)
            reducer = self._reducers.get(np.ndarray)
        if reducer is not None and (out is None or type(out) is type(x)) and not (active or counted):
            transport, reductions, empty = reducer
            dtype = x.dtype
            resolved = reductions.get((dtype, op)) if type(op) is str else None
            if resolved is not None and x.flags.c_contiguous:
                target = empty(x.shape, dtype) if out is None else _if_like(x, out)
                if target is not None:
                    self._count()
                    call = Call("allreduce", x, target, op)
                    call.resolved = resolved
                    try:
                        transport.run(call)
                    except ARGUMENT_ERRORS as error:
                        self.reject("allreduce", error)
                        raise
                    return target
        return self._run("allreduce", x, out, op)

    def sums_in_kernels(self, engine: Engine) -> bool:
        """Return whether kernels of `engine` can end with a short allreduce, see :meth:`join_sum`. Not collective."""
        device = self._device
        kernels = device is not None and device.short is not None and engine.memory == "device"
        return kernels and not active and self._pending is None

    def join_sum(self, x: LocalArray) -> int:
        """Begin an allreduce of `x` at the end of the kernel that is launched next; return the kernel's argument.

        `x` is short and on the device. Collective: other ranks may call :meth:`allreduce` instead.
        """
        if counted:
            messages.record("allreduce", x.size, x.nbytes)
        return self._begin(engine_of(x)).short.join()

    def start_allreduce(
        self, x: LocalArray, op: str = "sum", *, out: LocalArray | None = None
    ) -> Callable[[], LocalArray]:
        """Start to reduce `x` over the ranks; return a function that waits for the result and returns it.

        MPI reduces host arrays in the background, if the library makes progress without being called. NCCL enqueues
        the reduction on the current stream. All other transports complete it before this method returns; for JAX
        arrays it is part of the program at this point. Parameters and errors as for :meth:`allreduce`. Do not change
        `x`, nor read or change `out`, before calling the function. Other calls may be made meanwhile, in the same order
        on all ranks.

        Examples
        --------
        >>> import numpy as np
        >>> import collops
        >>> comm = collops.world()
        >>> finish = comm.start_allreduce(np.ones(2))
        >>> local = 2 * 3  # overlaps with the messages
        >>> bool((finish() == comm.size).all())
        True
        """
        if type(x) not in engines and _is_jax(x):
            result = self._run("allreduce", x, out, op)
            return lambda: result
        return self._run("allreduce", x, out, op, start=True)

    def reduce(self, x: LocalArray, op: str = "sum", root: int = 0, *, out: LocalArray | None = None) -> LocalArray:
        """Reduce `x` over the ranks to `root`; other ranks get ``None``. See :meth:`allreduce`."""
        return self._run("reduce", x, out, op, root)

    def bcast(self, x: LocalArray, root: int = 0, *, out: LocalArray | None = None) -> LocalArray:
        """Broadcast `x` from `root` to all ranks.

        On other ranks the values of `x` are ignored, but its shape and dtype must be the same.
        """
        return self._run("bcast", x, out, None, root)

    def allgather(self, x: LocalArray, *, out: LocalArray | None = None) -> LocalArray:
        """Stack every rank's `x`: the result has shape ``(size, *x.shape)`` on every rank."""
        return self._run("allgather", x, out)

    def allgatherv(
        self, x: LocalArray, counts: Sequence[int] | None = None, *, out: LocalArray | None = None
    ) -> LocalArray:
        """Concatenate every rank's `x` along its first axis, whose length may differ, on every rank.

        `counts` has the number of rows of each rank. By default they are exchanged first (one metadata message).
        """
        return self._run("allgatherv", x, out, counts=counts)

    def gather(self, x: LocalArray, root: int = 0, *, out: LocalArray | None = None) -> LocalArray:
        """Stack every rank's `x` on `root`, as ``(size, *x.shape)``; other ranks get ``None``."""
        return self._run("gather", x, out, root=root)

    def gatherv(
        self, x: LocalArray, counts: Sequence[int] | None = None, root: int = 0, *, out: LocalArray | None = None
    ) -> LocalArray:
        """Concatenate every rank's `x` along its first axis, on `root`. See :meth:`allgatherv`."""
        return self._run("gatherv", x, out, counts=counts, root=root)

    def scatter(self, x: LocalArray, root: int = 0, *, out: LocalArray | None = None) -> LocalArray:
        """Send the block ``x[r]`` of `root`, where `x` has shape ``(size, *shape)``, to rank *r*.

        On other ranks `x` is an array of the result's shape and dtype, or ``None`` with `out`.
        """
        return self._run("scatter", x, out, root=root)

    def scatterv(
        self, x: LocalArray, counts: Sequence[int], root: int = 0, *, out: LocalArray | None = None
    ) -> LocalArray:
        """Split `x` of `root` along its first axis: rank *r* gets ``counts[r]`` rows. See :meth:`scatter`."""
        return self._run("scatterv", x, out, counts=counts, root=root)

    def reduce_scatter(self, x: LocalArray, op: str = "sum", *, out: LocalArray | None = None) -> LocalArray:
        """Reduce `x` of shape ``(size, *shape)`` over the ranks; rank *r* gets the block ``[r]`` of the result."""
        return self._run("reduce_scatter", x, out, op)

    def alltoall(self, x: LocalArray, *, out: LocalArray | None = None) -> LocalArray:
        """Send block ``x[r]`` to rank *r*; return the stacked blocks received from all ranks."""
        # Fast path, as in allreduce.
        mover = self._movers.get((type(x), getattr(x, "dtype", None)))
        if mover is not None and not (active or counted):
            transport, empty = mover
            shape, target = x.shape, None
            if shape and shape[0] == self.size and x.flags.c_contiguous:
                if out is None:
                    target = empty(shape, x.dtype)
                elif out is not x and type(out) is type(x):
                    target = _if_like(x, out)
            if target is not None:
                self._count()
                try:
                    transport.run(Call("alltoall", x, target))
                except ARGUMENT_ERRORS as error:
                    self.reject("alltoall", error)
                    raise
                return target
        return self._run("alltoall", x, out)

    def alltoallv(
        self, x: LocalArray, send_counts: Sequence[int], receive_counts: Sequence[int], *, out: LocalArray | None = None
    ) -> LocalArray:
        """Send ``send_counts[r]`` rows of `x` to rank *r*, in order; receive ``receive_counts[r]`` rows from it."""
        return self._run("alltoallv", x, out, counts=send_counts, receive_counts=receive_counts)

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        if counted:
            messages.record("barrier", 0, 0)
        self._begin().run(Call("barrier"))

    def send(self, x: LocalArray, dest: int, tag: int = 0) -> None:
        """Send `x` to rank `dest`, which calls :meth:`recv`. Not collective."""
        if _is_jax(x):
            self._traced("send", x, dest=dest, tag=tag)
        else:
            self._exchange("send", x, dest, None, None, tag)

    def recv(self, out: LocalArray, source: int, tag: int = 0) -> LocalArray:
        """Receive from rank `source` into `out`, and return it. Not collective.

        Inside :meth:`group` the values arrive at the end of the group.
        """
        if _is_jax(out):
            return self._traced("recv", out, source=source, tag=tag)
        return self._exchange("recv", None, None, out, source, tag)

    def sendrecv(self, x: LocalArray, dest: int, out: LocalArray, source: int, tag: int = 0) -> LocalArray:
        """Send `x` to `dest` and receive `out` from `source` at once; return `out`. Not collective."""
        if _is_jax(x):
            return self._traced("sendrecv", x, recvbuf=out, source=source, dest=dest, sendtag=tag, recvtag=tag)
        return self._exchange("sendrecv", x, dest, out, source, tag)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Merge the calls inside: NCCL launches them at once, and no send waits for its receive.

        Inside, arrays must be contiguous, and results are available at the end of the group. If the block raises after
        a message was started, the started messages are abandoned and the communicator is closed.
        """
        if self._pending is not None:
            raise CommunicationError("groups cannot be nested")
        self._pending = pending = []
        try:
            with ExitStack() as stack:
                if self._device is not None:
                    stack.enter_context(self._device.group())
                yield
        except BaseException as error:
            if pending and self.failures is not None:
                self.failures.leave_behind(pending, f"a group was left by {type(error).__name__}: {error}")
            raise
        finally:
            self._pending = None
        for message in pending:
            message.wait()

    def allgather_metadata(self, value: Json) -> list[Json]:
        """Return every rank's `value`, which must be representable in JSON (tuples become lists).

        For set-up only: shapes, checks, names. Counted as ``metadata``.
        """
        with self._rejecting("allgather_metadata"):
            text = json.dumps(value)
            texts = [text] if self.size == 1 else self._all_texts(text, self._begin())
            return [json.loads(encoded) for encoded in texts]

    def check(self, error: Exception | None) -> None:
        """Raise on every rank if any rank passes an error; return if all pass ``None``.

        All ranks raise the class of the error if it is defined in :mod:`collops.errors` or a built-in error of invalid
        arguments (``TypeError``, ``ValueError``, ``IndexError``, ``OSError``, ``MemoryError``, ...), else
        ``CollopsError``. The message names the ranks unless all failed. Without an error: one metadata message.
        """
        with self._rejecting("check"):
            failed = np.array([error is not None], np.int8)
            transport = self._begin()
            if self.size > 1:
                if counted:
                    messages.record("metadata", failed.size, failed.nbytes)
                transport.run(Call("allreduce", failed, failed, "max"))
            if failed[0]:
                raise_shared(error, self.allgather_metadata(described(error)))

    def agree(self, what: str, value: Json, largest: Sequence[int] = ()) -> list[int]:
        """Raise on every rank unless all ranks pass the same value. One small message, counted as ``agreement``.

        For arguments whose differences would otherwise remain undetected, such as the number of iterations.

        Parameters
        ----------
        what : str
            The name of the value, for the error.
        value : object
            Representable in JSON; other objects are compared as text.
        largest : sequence of int
            Numbers that may differ, the same count on every rank.

        Returns
        -------
        list of int
            The maxima of these numbers over all ranks, without a further message.

        Raises
        ------
        InputError
            If the values differ; the message shows the values of all ranks.
        """
        if self.size == 1:
            return list(largest)
        with self._rejecting("agree"):
            text = json.dumps(value, sort_keys=True, default=str)
            digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
            extremes = np.array([digest, -digest, *largest], np.int64)
            transport = self._begin()
            if counted:
                messages.record("agreement", extremes.size, extremes.nbytes)
            transport.run(Call("allreduce", extremes, extremes, "max"))
            if extremes[0] != -extremes[1]:
                lines = dict(enumerate(self._all_texts(text, transport)))
                with raised_together():
                    raise InputError(f"{what} differs between ranks:\n{table(lines, self.size, '')}")
        return extremes[2:].tolist()

    def announce(self, call: str, **facts: Json) -> None:
        """With ``COLLOPS_CHECK``, agree on a call that uses no transport of this communicator. Collective.

        `facts` must be the same on all ranks and representable in JSON. If a rank is about to make another call, all
        ranks raise :class:`~collops.errors.CallMismatch`.
        """
        if self.calls is not None:
            with self._rejecting("announce"):
                text = ", ".join(f"{name} {value}" for name, value in facts.items())
                self.calls.collective(f"{call} ({text})" if text else call, {"call": call, **facts})

    def reject(self, call: str, error: Exception) -> None:
        """Notify the other ranks that this rank cannot take part in a collective `call`; they raise the same `error`.

        Not collective. For errors before this rank sends anything in the call, which other ranks may have begun.
        Nothing is sent if all ranks raise the error anyway, or if a transport has failed.
        """
        if self.failures is not None:
            self.failures.reject(call, error)

    def wait(self, event: CudaEvent, operation: str = "device work") -> None:
        """Wait on the host for a device event, with the deadline of every other wait. Not collective.

        Parameters
        ----------
        event : object with a ``done`` attribute
            For example, a recorded ``cupy.cuda.Event``.
        operation : str
            The name of the work, for the error.

        Raises
        ------
        CommunicationTimeout
            If the event is not done at the deadline, for instance because another rank never entered a collective call
            that this rank's stream waits in. The device's transports are shut down first, which frees the GPU.
        CommunicationError
            If the device's transport has failed.
        """
        if self.failures is None:
            event.synchronize()
        else:
            self.wait_until(lambda: event.done, operation)

    def wait_until(self, test: Callable[[], bool], operation: str, needs: Collection[int] | None = None) -> None:
        """Call `test` until it returns true; errors as for :meth:`wait`. Not collective; with several ranks.

        Also raises if the program of a rank in `needs` has ended: `test` depends on these ranks.
        """
        assert self.failures is not None
        self.failures.until(test, operation, needs, inspect=None if self._device is None else self._device.inspect)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Join the ranks that pass the same `color`, in the order of `key`, then of rank.

        Every call exchanges metadata; only the first of equal calls makes a communicator, which the others return. A
        `color` is not negative; ``None`` joins no group and returns ``None``.
        """
        with self._rejecting("split"):
            color, key = None if color is None else operator.index(color), operator.index(key)
            if color is not None and not 0 <= color < _MAX_COLORS:
                raise InputError(f"a color must be an integer of 0 to {_MAX_COLORS - 1}, or None, not {color}")
            if not -_MAX_COLORS <= key < _MAX_COLORS:
                raise InputError(f"a key must be an integer of 32 bits, not {key}")
            rows = self.allgather_metadata([color, key, unreachable(self.ranks)])
            reclaim(self.ranks, [row[2] for row in rows])
            choices = tuple((row[0], row[1]) for row in rows)
            if choices not in self._splits:
                self._splits[choices] = self._split(color, key)
            return self._splits[choices]

    def subgroup(self, groups: tuple[int, ...]) -> Communicator:
        """Return the communicator of the ranks whose group is this rank's.

        `groups` has the group of every rank, the same tuple on every rank; only the first call with it communicates.
        Raises :class:`~collops.errors.LayoutError` if its length is not the number of ranks.
        """
        known = self._groups.get(groups)
        if known is None:
            if len(groups) != self.size:
                raise LayoutError(f"groups must have one entry for each of {self.size} ranks, not {len(groups)}")
            if len(set(groups)) == 1:
                known = self
            else:
                numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
                known = self._split(numbers[groups[self.rank]], 0)
                assert known is not None
            self._groups[groups] = known
        return known

    def symmetric(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float64",
        *,
        engine: str | None = None,
        signals: int = 0,
        registered: bool = False,
    ) -> Symmetric:
        """Make an array of zeros on every rank that all ranks can address. Collective; errors are raised on every rank.

        Parameters
        ----------
        shape : int or sequence of int
            The shape of each rank's array, the same on all.
        dtype : dtype
            The dtype of its elements.
        engine : str, optional
            ``"numpy"`` (a window that the ranks of one node share) or ``"cupy"`` (NVSHMEM's heap); see
            :func:`collops.backend.engine` for the default.
        signals : int
            Number of signals of each rank.
        registered : bool
            On GPUs, whether to use a window of NCCL (2.27 or newer) instead: NCCL's collectives access it without
            copies to internal buffers. NVSHMEM has one heap, for the first communicator that uses it; other
            communicators, such as the results of :meth:`split`, always use windows of NCCL. Ignored on hosts.

        Returns
        -------
        Symmetric
            Freed by its ``free()`` or at the end of a ``with`` block; otherwise some time after it and its arrays have
            become unreachable on all ranks, or at the end of the program.

        Raises
        ------
        LayoutError
            If the ranks pass different arguments.
        MemoryError
            If a rank cannot allocate the memory, or has more than a thousand windows and communicators.
        TransportError
            If these ranks cannot share memory.
        """
        shape, dtype, chosen = validated_memory(self, shape, dtype, engine, signals, registered)
        kind = Symmetric if self.size == 1 else SharedWindow
        if self.size > 1 and chosen.memory == "device":
            from collops.comm.symmetric_device import kind_of

            kind = kind_of(self, registered)
        return kind(self, shape, dtype, signals, chosen)

    def transport_of(self, array: LocalArray) -> Transport:
        """Return the transport of `array`. Not collective."""
        return self._transport_for(engine_of(array))

    def begin(self, array: LocalArray) -> Transport:
        """Begin a collective call, and return the transport of `array`. Collective.

        Validate first: after an error, call :meth:`reject` instead, which notifies the other ranks.
        """
        return self._begin(engine_of(array))

    def next_plan_tag(self) -> int:
        """Return the tag of a new exchange plan: its number modulo 32768. Sends nothing.

        All ranks create plans in the same order.
        """
        self._plans += 1
        return self._plans % FIRST_USER_TAG

    def _run(
        self,
        kind: str,
        x: LocalArray,
        out: LocalArray,
        op: str | None = None,
        root: int | None = None,
        counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        recorded: bool = False,
        start: bool = False,
    ) -> Any:
        """Run a collective call: validate it, count it, let its transport run it, and return its result.

        `recorded`: the profile of the call has begun. With `start` the call is only started, and the result is a
        function that completes it.
        """
        if type(x) not in engines and _is_jax(x):
            return self._traced(kind, x, op, root, counts, receive_counts)
        if active and not recorded:
            with Span("communication"):
                return self._run(kind, x, out, op, root, counts, receive_counts, True, start)
        try:
            call, engine = validated(self, kind, x, out, op, root, counts, receive_counts)
            if counted:
                messages.record(kind, call.array.size, call.array.nbytes)
            transport = self._begin(engine)
            pending = transport.start(call) if start else transport.run(call)
        except ARGUMENT_ERRORS as error:
            self.reject(kind, error)
            raise
        if kind == "allreduce" and transport.reductions is not None and call.source is x:
            self._reducers[type(x)] = transport, transport.reductions, engine.empty
        if kind == "alltoall" and call.source is x:
            self._movers[type(x), x.dtype] = transport, engine.empty
        if pending is not None:
            return partial(_completed, pending, call)
        return call.target if call.out is None else call.copied()

    def _exchange(self, kind: str, x: LocalArray, dest: Any, out: LocalArray, source: Any, tag: int) -> LocalArray:
        """Send `x` to `dest`, receive `out` from `source`, or both, as `kind` says; return `out`."""
        sends, receives, landing = [], [], out
        engine = None
        if kind != "recv":
            check_rank(dest, self.size, "dest")
            x, engine, _ = contiguous(x, self)
            sends.append((dest, x))
        if kind != "send":
            check_rank(source, self.size, "source")
            if engine is not None and engine_of(out) is not engine:
                raise UnsupportedTypeError("sendrecv needs both arrays of one engine")
            engine = engine_of(out)
            check_dtype(out.dtype)
            if not out.flags.c_contiguous:
                if self.in_group:
                    raise LayoutError("inside a group, recv needs a contiguous array")
                landing = engine.xp.empty(out.shape, out.dtype)
            receives.append((source, landing))
            if sends and (x is landing or overlap(x, landing)):
                sends = [(dest, x.copy())]
        assert engine is not None
        check_tag(tag)
        if counted:
            array = out if kind == "recv" else x
            messages.record(kind, array.size, array.nbytes)
        pending = self._transport_for(engine).start_exchange(sends, receives, FIRST_USER_TAG + tag)
        if self._pending is None:
            pending.wait()
        else:
            self._pending.append(pending)
        if landing is not out:
            out[...] = landing
        return out

    def _traced(self, kind: str, x: LocalArray, *arguments: object, **ends: object) -> LocalArray:
        """Run a method on JAX arrays, by the primitives of their engine."""
        if counted:
            messages.record(kind, x.size, x.nbytes)
        engine: Any = engine_of(x)
        if kind in PARAMETERS:
            return engine.methods.collective(self, kind, x, *arguments)
        return getattr(engine.methods, kind)(x, comm=self, **ends)

    def _transport_for(self, engine: Engine) -> Transport:
        """Return the transport of an engine's arrays."""
        if self.failures is not None and self.failures.attention:
            self.failures.look()
        if engine.traced:
            raise UnsupportedTypeError(f"arrays of {engine.name} are sent by the traced program: pass one as x")
        if engine.memory == "host":
            return self._host
        if self._device is None:
            if self.size == 1:
                return self._host
            raise TransportError(
                f"this communicator has no transport for {engine.name} arrays in device memory; "
                "call collops.world() on a machine with a GPU, or use transport='auto'"
            )
        return self._device

    def _begin(self, engine: Engine = _HOST) -> Transport:
        """Begin a collective call after its validation, and return its transport."""
        transport = self._host if engine is _HOST else self._transport_for(engine)
        self._count()
        return transport

    def _count(self) -> None:
        """Count a collective call at its beginning; raise if it has been rejected or the communicator has failed."""
        failures = self.failures
        if failures is not None:
            if failures.attention:
                failures.attend()
            failures.number += 1

    @contextmanager
    def _rejecting(self, call: str) -> Iterator[None]:
        """Notify the other ranks, which may already wait, of an error."""
        try:
            yield
        except ARGUMENT_ERRORS as error:
            self.reject(call, error)
            raise

    def _all_texts(self, text: str, transport: Transport) -> list[str]:
        """Return every rank's `text`. Collective."""
        content = np.frombuffer(text.encode(), np.uint8)
        if counted:
            messages.record("metadata", content.size, content.nbytes)
        lengths = np.empty(self.size, np.int64)
        transport.run(Call("allgather", np.array([content.size], np.int64), lengths))
        texts = np.empty(int(lengths.sum()), np.uint8)
        transport.run(Call("allgatherv", content, texts, counts=lengths.tolist()))
        ends = np.cumsum(lengths)
        return [texts[end - length : end].tobytes().decode() for end, length in zip(ends, lengths, strict=True)]

    def _split(self, color: int | None, key: int) -> Communicator | None:
        if counted:
            messages.record("split", 0, 0)
        if self.control is None or self._derive is None:
            return None if color is None else self
        self._begin().run(Call("barrier"))  # this barrier has a deadline; MPI_Comm_split does not
        control = split(self.control, color, key)
        return None if control is None else self._derive(control)


def _if_like(x: LocalArray, out: LocalArray) -> LocalArray | None:
    """Return `out` if it is a contiguous, writeable array like `x`, and not another view of it, else ``None``."""
    if out is not x and (out.dtype is not x.dtype or out.shape != x.shape or overlap(x, out)):
        return None
    flags = out.flags
    return out if flags.c_contiguous and getattr(flags, "writeable", True) else None


def _completed(pending: Pending, call: Call) -> LocalArray:
    """Return the result of a call that was started."""
    with Span("communication") if active else nullcontext():
        pending.wait()
    return call.target if call.out is None else call.copied()


_of_jax: dict[type, bool] = {np.ndarray: False}


def _is_jax(x: LocalArray) -> bool:
    known = _of_jax.get(type(x))
    if known is None:
        jax = sys.modules.get("jax")
        if jax is None:
            return False  # not cached: the type may register with JAX at a later import
        known = _of_jax[type(x)] = isinstance(x, jax.Array)
    return known
