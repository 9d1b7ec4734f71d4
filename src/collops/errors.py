"""The exceptions of collops, so that a caller can tell bad input from a broken wire.

Every class here is public, and every one that crosses ranks (:meth:`collops.comm.Communicator.check`) is raised
with the same class on all of them.
"""

from __future__ import annotations

from signal import Signals
from typing import Any

__all__ = [
    "REFUSALS",
    "CallMismatch",
    "CheckpointError",
    "CollopsError",
    "CommunicationError",
    "CommunicationTimeout",
    "InputError",
    "Interrupted",
    "LayoutError",
    "NotFiniteError",
    "TransportError",
    "UnsupportedTypeError",
]


class CollopsError(Exception):
    """Base class of all errors that collops raises on purpose.

    Attributes
    ----------
    on_all_ranks : bool
        Whether every rank raises the same error, so that none has to be ended for the others' sake.

    Examples
    --------
    >>> import collops
    >>> try:
    ...     collops.zeros(3) + collops.zeros(4)
    ... except collops.CollopsError as error:
    ...     print(error)
    the arrays have different layouts:
      (3,) on 1 rank, replicated
      (4,) on 1 rank, replicated
    bring one to the other's first: x.redistribute(y.layout)
    """

    on_all_ranks: bool = False


class InputError(CollopsError, ValueError):
    """Something the user gave (an option, a file, a size) cannot be used; the message says what to do.

    Examples
    --------
    >>> import collops
    >>> try:
    ...     collops.zeros(3, engine="abacus")
    ... except collops.errors.InputError as error:
    ...     print(error)
    there is no engine 'abacus'; choose numpy, cupy or jax
    """


class CheckpointError(InputError):
    """A checkpoint cannot be written or read, is damaged, or is that of another problem; the message says which.

    Examples
    --------
    >>> import collops
    >>> issubclass(collops.errors.CheckpointError, collops.errors.InputError)
    True
    """


class Interrupted(CollopsError):
    """A signal asked a solver to stop, and it has written a checkpoint. Raised on every rank at the same iteration.

    Parameters
    ----------
    path : str
        The checkpoint, to be named with ``resume=True``.
    iteration : int
        Iterations done.
    signal : int
        Number of the signal.

    Attributes
    ----------
    exit_code : int
        That of the command line, which ``sysexits.h`` calls a temporary failure: the same job again, resumed, may end.

    Examples
    --------
    >>> import collops
    >>> collops.errors.Interrupted("run.zarr", 40, 15)
    Interrupted('SIGTERM stopped the solver after iteration 40; resume from run.zarr')
    """

    on_all_ranks = True
    exit_code = 75

    def __init__(self, path: str, iteration: int, signal: int) -> None:
        name = Signals(signal).name
        super().__init__(f"{name} stopped the solver after iteration {iteration}; resume from {path}")
        self.path = path
        self.iteration = iteration
        self.signal = signal


class NotFiniteError(CollopsError, ArithmeticError):
    """A solver met infinity or NaN. Raised on every rank.

    Parameters
    ----------
    method : str
        The solver's name.
    iteration : int
        The iteration in which it appeared; 0 for what the first one starts from.
    array : str
        Where it was seen first: the name of an argument, or a field of the solver's state.
    x : DistributedArray or StackedArray
        The last good iterate.

    Examples
    --------
    >>> import collops
    >>> error = collops.errors.NotFiniteError("CGLS", 3, "y", collops.zeros(3))
    >>> error.method, error.iteration, error.array
    ('CGLS', 3, 'y')
    """

    on_all_ranks = True

    def __init__(self, method: str, iteration: int, array: str, x: Any) -> None:
        super().__init__(
            f"{method}: {array} became infinite or not a number in iteration {iteration}; check the data for such "
            "values, the operator with its dottest(), and scale both so that their squares fit the precision"
        )
        self.method = method
        self.iteration = iteration
        self.array = array
        self.x = x


class LayoutError(CollopsError, ValueError):
    """Layouts that should agree do not, or a layout cannot be made as asked.

    Examples
    --------
    >>> import collops
    >>> try:
    ...     collops.zeros(3) + collops.zeros(4)
    ... except collops.errors.LayoutError as error:
    ...     print(error)
    the arrays have different layouts:
      (3,) on 1 rank, replicated
      (4,) on 1 rank, replicated
    bring one to the other's first: x.redistribute(y.layout)
    """


class UnsupportedTypeError(CollopsError, TypeError):
    """A dtype, an engine or a reduction that has no meaning for the operation.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> try:
    ...     collops.Identity(3) @ np.ones(3)
    ... except collops.errors.UnsupportedTypeError as error:
    ...     print(str(error).partition(";")[0])
    Identity.forward takes an array of collops, not numpy.ndarray
    """


class CommunicationError(CollopsError, RuntimeError):
    """A message could not be delivered, or another rank failed.

    Examples
    --------
    >>> import collops
    >>> issubclass(collops.errors.CommunicationError, RuntimeError)
    True
    """


class CommunicationTimeout(CommunicationError, TimeoutError):
    """A wait passed its deadline; the message names the operation and the ranks that are missing.

    Examples
    --------
    >>> import collops
    >>> issubclass(collops.errors.CommunicationTimeout, TimeoutError)
    True
    """


class CallMismatch(CommunicationError):
    """Ranks made calls that do not match (found by ``COLLOPS_CHECK``); the message shows each rank's call.

    Examples
    --------
    >>> import collops
    >>> issubclass(collops.errors.CallMismatch, collops.errors.CommunicationError)
    True
    """


class TransportError(CommunicationError):
    """A transport was asked for that this machine or this set of ranks cannot use.

    Examples
    --------
    >>> import collops
    >>> issubclass(collops.errors.TransportError, collops.errors.CommunicationError)
    True
    """


REFUSALS = (CollopsError, TypeError, ValueError, AttributeError, LookupError, OverflowError, MemoryError)
"""What arguments may make a rank raise, which others must hear of before they wait for it: caught to be passed on by
:meth:`collops.comm.Communicator.check`, never to be forgotten."""
