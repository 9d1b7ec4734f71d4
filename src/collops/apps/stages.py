"""Turn what goes wrong on one rank into the same error on every rank, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collops.errors import CollopsError, InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["local_stage", "raised_together"]


@contextmanager
def local_stage(comm: Communicator) -> Iterator[None]:
    """Run the local work of one stage, then let every rank know whether it went well. Collective.

    The body must not communicate: a rank that fails leaves it at once and goes straight to the check at its
    end, where the others arrive when they have done their part. Errors of the operating system (a file that
    cannot be read, a full disk) and memory that cannot be had are what a user can act on, so they become
    `InputError`; a programming error stays what it is on the rank where it happened, and the ranks that wait
    for it are ended by whoever runs the job.

    Raises
    ------
    CollopsError
        On every rank, if the body raised one on any of them.
    """
    error: CollopsError | None = None
    try:
        yield
    except CollopsError as problem:
        error = problem
    except MemoryError as problem:
        # NumPy's message names the size it could not have.
        error = InputError(f"not enough memory ({problem or 'no size known'}): choose smaller sizes or more ranks")
    except OSError as problem:
        error = InputError(_explain(problem))
    comm.check(error)


@contextmanager
def raised_together() -> Iterator[None]:
    """Mark the errors of a body that raises on all ranks or on none: no rank need end the others then."""
    try:
        yield
    except CollopsError as error:
        error.on_all_ranks = True
        raise


def _explain(problem: OSError) -> str:
    """Return one sentence for a user from an error of the operating system."""
    reason = problem.strerror or str(problem)
    return f"{problem.filename}: {reason}" if problem.filename else reason
