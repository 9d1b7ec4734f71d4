"""Collective errors: all ranks raise an error of one rank at the end of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collops.backend import Engine, engine, memory_of
from collops.comm.agreement import raised_together
from collops.errors import CollopsError, InputError
from collops.limits import available_memory, in_words

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["check_memory", "engine_of_ranks", "local_stage"]


@contextmanager
def local_stage(comm: Communicator) -> Iterator[None]:
    """Run the local work of one stage, then check on all ranks whether it succeeded. Collective.

    The body must not communicate: a rank that fails skips to the check at the end. Errors of the operating system (a
    file that cannot be read, a full disk) and a lack of memory are raised as `InputError`, because a user can act on
    them. Other exceptions are programming errors: they propagate on this rank, which then ends the others.

    Raises
    ------
    CollopsError
        On every rank, if the body raised one on any rank.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.extend.applications import local_stage
    >>> with local_stage(collops.world()):
    ...     np.load("nothing.npy")
    Traceback (most recent call last):
    collops.errors.InputError: nothing.npy: No such file or directory
    """
    error: CollopsError | None = None
    try:
        yield
    except CollopsError as problem:
        error = problem
    except MemoryError as problem:
        # NumPy's message names the size of the array.
        error = InputError(f"not enough memory ({problem or 'size unknown'}): choose smaller sizes or more ranks")
    except OSError as problem:
        reason = problem.strerror or str(problem)
        error = InputError(f"{problem.filename}: {reason}" if problem.filename else reason)
    comm.check(error)


def engine_of_ranks(name: str, comm: Communicator) -> Engine:
    """Return the engine called `name`, or for ``"auto"`` the best engine that all ranks have."""
    with raised_together():
        # A transport for device arrays implies that every rank has a device.
        if name == "auto":
            name = "cupy" if comm.device_transport is not None else "numpy"
        elif name == "cupy" and comm.device_transport is None:
            raise InputError("--engine cupy needs CuPy and a GPU on every rank: use --engine numpy")
        return engine(name)


def check_memory(needed: int, what: str, remedy: str, compute: Engine | None = None, processes: int = 1) -> None:
    """Raise `InputError` if `needed` bytes exceed four fifths of the memory; Linux would kill the process later.

    `what` names the arrays, in the plural, and `remedy` a smaller choice. The memory is the host memory that each of
    `processes` on this machine can still allocate (`collops.limits.available_memory`), or the memory of this rank's
    device if `compute` is a device engine. The available memory differs between ranks: call it within a local stage.
    """
    compute = compute or engine("numpy")
    owner, memory = "a GPU has", memory_of(compute)
    if compute.memory == "host":
        owner, memory = "this process can still use", available_memory(processes)
    if needed > 0.8 * memory:
        raise InputError(f"{what} need {in_words(needed)}, but {owner} {in_words(memory)}: {remedy}")
