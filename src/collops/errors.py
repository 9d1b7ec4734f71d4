"""The exceptions of collops, so that a caller can tell bad input from a broken wire.

Every class here is public, and every one that crosses ranks (:meth:`collops.comm.Communicator.check`) is raised
with the same class on all of them.
"""

from __future__ import annotations

__all__ = [
    "CollopsError",
    "CommunicationError",
    "CommunicationTimeout",
    "InputError",
    "LayoutError",
    "TransportError",
    "UnsupportedTypeError",
]


class CollopsError(Exception):
    """Base class of all errors that collops raises on purpose.

    Attributes
    ----------
    on_all_ranks : bool
        Whether every rank raises the same error, so that none has to be ended for the others' sake.
    """

    on_all_ranks: bool = False


class InputError(CollopsError, ValueError):
    """Something the user gave (an option, a file, a size) cannot be used; the message says what to do."""


class LayoutError(CollopsError, ValueError):
    """Layouts that should agree do not, or a layout cannot be made as asked."""


class UnsupportedTypeError(CollopsError, TypeError):
    """A dtype, an engine or a reduction that has no meaning for the operation."""


class CommunicationError(CollopsError, RuntimeError):
    """A message could not be delivered, or another rank failed."""


class CommunicationTimeout(CommunicationError, TimeoutError):
    """A wait passed its deadline; the message names the operation and the ranks that are missing."""


class TransportError(CommunicationError):
    """A transport was asked for that this machine or this set of ranks cannot use."""
