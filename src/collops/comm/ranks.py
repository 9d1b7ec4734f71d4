"""What every part of a communicator stands on: its ranks, its wires, and the turn that this rank has come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from collops.backend import Engine
from collops.backend import engine as engine_called
from collops.comm.transport import Pending, Transport
from collops.errors import InputError, TransportError, UnsupportedTypeError

if TYPE_CHECKING:
    from collops.comm.call_agreement import CallAgreement
    from collops.comm.communicator import Communicator
    from collops.comm.failure import Failures

__all__ = ["Ranks"]

_HOST = engine_called("numpy")


class Ranks:
    """The ranks of a communicator and the wires between them.

    Parameters
    ----------
    host : Transport
        Carries host arrays.
    device : Transport or None
        Carries device arrays.
    control : mpi4py.MPI.Comm, optional
        The control plane; ``None`` in a world of one without MPI.
    local_rank, local_size : int
        This rank's place on its node.
    reasons : sequence of str
        Why the wires are what they are.
    failures : Failures, optional
        Of several ranks: waits for their messages.
    derive : callable, optional
        Makes the communicator of an mpi4py communicator that was split off `control`.
    calls : CallAgreement, optional
        Where calls are checked (``COLLOPS_CHECK``).
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
        failures: Failures | None = None,
        derive: Callable[[Any], Communicator] | None = None,
        calls: CallAgreement | None = None,
    ) -> None:
        self.control = control
        self.rank: int = 0 if control is None else control.rank
        self.size: int = 1 if control is None else control.size
        self.local_rank = local_rank
        self.local_size = local_size
        self.reasons = tuple(reasons)
        self.calls = calls
        self._host = host
        self._device = device
        self._failures = failures
        self._derive = derive
        self._pending: list[Pending] | None = None

    def refuse(self, call: str, error: Exception) -> None:
        """Tell the other ranks that this one refuses its part in a collective call; they raise the same error.

        Not collective. For whoever raises `error` before anything of the call is sent, and while other ranks may have
        begun it. It is not told where all ranks raise it anyway, or where a wire has failed.

        Parameters
        ----------
        call : str
            Its name.
        error : Exception
            Why.
        """
        if self._failures is not None:
            self._failures.refuse(call, error)

    def _wire(self, engine: Engine) -> Transport:
        """Return the wire of an engine's arrays."""
        if self._failures is not None and self._failures.attention:
            self._failures.look()
        if engine.traced:
            raise UnsupportedTypeError(f"arrays of {engine.name} are sent by the program that is traced: give one as x")
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

    def _begin(self, engine: Engine | None = None) -> Transport:
        """Return the wire of a collective call, which this rank begins now; `engine` is that of hosts by default.

        Everything that can be refused must have been.
        """
        if engine is None or engine is _HOST:
            wire = self._host
        else:
            wire = self._wire(engine)
        failures = self._failures
        if failures is not None:
            if failures.attention:
                failures.attend()
            failures.number += 1
        return wire

    def _check_rank(self, rank: int, name: str) -> None:
        if rank not in range(self.size):
            raise InputError(f"{name}={rank!r} is no rank of a communicator of {self.size}")
