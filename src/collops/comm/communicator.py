"""The communicator: one object for every collective and message, on any transport and in any memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collops.backend import engine_of
from collops.comm.collectives import Collectives
from collops.comm.entry import collective
from collops.comm.point_to_point import PointToPoint
from collops.comm.transport import FIRST_USER_TAG, Transport
from collops.errors import InputError, LayoutError
from collops.profile import messages

if TYPE_CHECKING:
    from collops.comm.symmetric import Symmetric

__all__ = ["Communicator"]

_MOST_COLORS = 1 << 31  # they are integers of C


class Communicator(Collectives, PointToPoint):
    """A group of ranks, and the transports between them.

    Made by :func:`collops.world`, :func:`collops.comm.from_mpi4py`, :meth:`split` and :meth:`subgroup`, not directly.
    Methods take NumPy, CuPy and JAX arrays, contiguous or not, and Python numbers as 0-d arrays; they return arrays of
    the same engine. ``out=`` is filled with the result; ``out=x`` works in place. Device work is ordered on the
    caller's current stream. Every method is collective unless it says otherwise: all ranks call it, in the same order.

    JAX arrays may be traced, and ignore ``out=``. In derivatives a result that all ranks get is one value, as with
    ``cotangents="replicated"`` of :func:`collops.jax.allreduce`.

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

    def __init__(self, host: Transport, device: Transport | None, **ranks: Any) -> None:
        super().__init__(host, device, **ranks)
        self._plans = 0
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._splits: dict[tuple[tuple[int | None, int], ...], Communicator | None] = {}

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
        if self._failures is None:
            event.synchronize()
        else:
            inspect = None if self._device is None else self._device.inspect
            self._failures.until(lambda: event.done, operation, inspect=inspect)

    @collective
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

    def transport_of(self, array: Any) -> Transport:
        """Return the wire that carries `array`. Not collective."""
        return self._wire(engine_of(array))

    def begin(self, array: Any) -> Transport:
        """Return the wire that carries `array` in a collective call, which this rank begins now. Collective.

        What can be refused must have been, by :meth:`refuse`.
        """
        return self._begin(engine_of(array))

    def next_plan_tag(self) -> int:
        """Return the number of a new exchange plan; all ranks make their plans in the same order. No message."""
        self._plans += 1
        return self._plans % FIRST_USER_TAG

    def _split(self, color: int | None, key: int) -> Communicator | None:
        if messages.active:
            messages.record("split", 0, 0)
        if self.control is None or self._derive is None:
            return None if color is None else self
        self._begin().barrier()  # with a deadline, which what follows has not
        undefined = _undefined_color()
        control = self.control.Split(undefined if color is None else color, key)
        return None if color is None else self._derive(control)


def _undefined_color() -> int:
    from mpi4py import MPI

    return MPI.UNDEFINED
