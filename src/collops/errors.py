"""The exceptions of collops.

:meth:`collops.comm.Communicator.check` raises an error of one rank on all ranks, with the same class.
"""

from __future__ import annotations

from signal import Signals
from typing import Any

__all__ = [
    "ARGUMENT_ERRORS",
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
    """Base class of all errors that collops raises.

    Attributes
    ----------
    on_all_ranks : bool
        Whether every rank raises the same error, so that no rank is aborted.
    """

    on_all_ranks: bool = False


class InputError(CollopsError, ValueError):
    """An argument, option or file is invalid; the message says what to do.

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
    """A checkpoint cannot be written or read, is damaged, or belongs to another problem; the message says which."""


class Interrupted(CollopsError):
    """A signal stopped a solver after it had written a checkpoint. Raised on every rank in the same iteration.

    Parameters
    ----------
    path : str
        The checkpoint from which to resume.
    iteration : int
        Number of completed iterations.
    signal : int
        Number of the signal.

    Attributes
    ----------
    exit_code : int
        Exit code of the command line: 75, a temporary failure in ``sysexits.h``, because the job can be resumed; 130
        after Ctrl-C (SIGINT), since a queue must not resume a job that a user has stopped.

    Examples
    --------
    >>> import collops
    >>> collops.errors.Interrupted("run.zarr", 40, 15)
    Interrupted('SIGTERM stopped the solver after iteration 40; resume from run.zarr')
    """

    on_all_ranks = True

    def __init__(self, path: str, iteration: int, signal: int) -> None:
        name = Signals(signal).name
        super().__init__(f"{name} stopped the solver after iteration {iteration}; resume from {path}")
        self.path = path
        self.iteration = iteration
        self.signal = signal
        self.exit_code = 130 if signal == Signals.SIGINT else 75


class NotFiniteError(CollopsError, ArithmeticError):
    """An array of a solver contains infinity or NaN. Raised on every rank.

    Parameters
    ----------
    method : str
        The solver's name.
    iteration : int
        The iteration in which it appeared; 0 for the initial state.
    array : str
        The first such array: the name of an argument, or a field of the solver's state.
    x : DistributedArray or StackedArray
        The last finite iterate.

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
            "values and the operator with its dottest(), and scale both so that their squares do not overflow"
        )
        self.method = method
        self.iteration = iteration
        self.array = array
        self.x = x


class LayoutError(CollopsError, ValueError):
    """Layouts or shapes do not match, or a layout is invalid.

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
    make the arrays of one shape: (3,) and (4,) have different numbers of elements
    """


class UnsupportedTypeError(CollopsError, TypeError):
    """An operation is not defined for a dtype, engine, reduction or type of argument.

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
    """A message could not be delivered, or another rank failed."""


class CommunicationTimeout(CommunicationError, TimeoutError):
    """A wait exceeded its deadline; the message names the operation, the missing ranks, and their hosts if several."""


class CallMismatch(CommunicationError):
    """Ranks made calls that do not match (found by ``COLLOPS_CHECK``); the message shows each rank's call."""


class TransportError(CommunicationError):
    """The requested transport is not available on this machine or set of ranks."""


def type_name(value: Any) -> str:
    """Return the full name of a value's class, for the message of an error."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


ARGUMENT_ERRORS = (CollopsError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, MemoryError)
"""Errors that invalid arguments can raise on a single rank. They are caught only to be passed to
:meth:`collops.comm.Communicator.check`, which raises them on all ranks."""
