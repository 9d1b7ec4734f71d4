"""Errors that all ranks raise after some of them have failed, and the names of ranks in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias

from collops import errors

__all__ = ["MpiComm", "MpiHandle", "collective_errors", "collective_values", "name_ranks", "raised_together", "table"]

AnyCommunicator: TypeAlias = Any
"""A :class:`Communicator`, in the modules that its class imports."""

Json: TypeAlias = Any
"""A value that JSON can represent."""

Mpi: TypeAlias = Any
"""``mpi4py.MPI``, or its substitute between ranks without MPI, :mod:`collops.comm.tcp`."""

MpiComm: TypeAlias = Any
"""A communicator of `Mpi`; ``None`` for a single rank without MPI."""

MpiHandle: TypeAlias = Any
"""A request, status, datatype, operation or window of `Mpi`."""

MpiBuffer: TypeAlias = Any
"""Memory as calls of `Mpi` take it: an array, or an object with the buffer interface, possibly with its datatype."""

# Error classes that can be constructed from a message alone.
_OURS = [
    kind for kind in map(vars(errors).get, errors.__all__) if isinstance(kind, type) and "__init__" not in vars(kind)
]
_PYTHONS = (
    AttributeError,
    FileExistsError,
    FileNotFoundError,
    IndexError,
    IsADirectoryError,
    KeyError,
    MemoryError,
    NotADirectoryError,
    OSError,
    OverflowError,
    PermissionError,
    TimeoutError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)
_MAX_HOSTS = 3  # in a line
_SHARED: dict[str, type[Exception]] = {kind.__name__: kind for kind in (*_OURS, *_PYTHONS)}


@contextmanager
def collective_errors(comm: AnyCommunicator, *kinds: type[Exception]) -> Iterator[None]:
    """Raise an error of the body on every rank. Collective: one metadata message at the end of the body.

    The body is the local validation of arguments and must not communicate. Errors that are neither `ARGUMENT_ERRORS`
    nor of `kinds` are programming errors, which propagate on this rank only.
    """
    error: Exception | None = None
    try:
        yield
    except (*errors.ARGUMENT_ERRORS, *kinds) as problem:
        error = problem
    comm.check(error)


@contextmanager
def raised_together() -> Iterator[None]:
    """Mark errors of the body as raised on all ranks, so that no rank ends the others."""
    try:
        yield
    except errors.CollopsError as error:
        error.on_all_ranks = True
        raise


def collective_values(comm: AnyCommunicator, make: Callable[[], Json], *kinds: type[Exception]) -> list[Json]:
    """Return the result of ``make()`` on each rank, or raise its error on every rank. Collective: one metadata message.

    As for the body of :func:`collective_errors`; results must be representable in JSON.
    """
    return gathered_values(comm.allgather_metadata, make, *kinds)


def gathered_values(
    gather: Callable[[Json], list[Json]], make: Callable[[], Json], *kinds: type[Exception]
) -> list[Json]:
    """Implement :func:`collective_values` for ranks whose values ``gather(value)`` returns. Collective."""
    value, error = None, None
    try:
        value = make()
    except (*errors.ARGUMENT_ERRORS, *kinds) as problem:
        error = problem
    values, reports = zip(*gather([value, described(error)]), strict=True)
    if any(reports):
        raise_shared(error, list(reports))
    return list(values)


def described(error: Exception | None) -> list[str] | None:
    """Return an error in a form that JSON can represent and :func:`raise_shared` can raise."""
    return None if error is None else [type(error).__name__, str(error)]


def raise_shared(error: Exception | None, reports: list[Json]) -> NoReturn:
    """Raise the first of the errors that ranks have described, naming the ranks unless all of them failed."""
    ranks = [rank for rank, report in enumerate(reports) if report is not None]
    kind, text = reports[ranks[0]]
    if len(ranks) < len(reports):
        text = f"{name_ranks(ranks)}: {text}"
    raise shared_error(kind, text) from error


def shared_error(kind: str, text: str) -> Exception:
    """Return the error that all ranks raise if some of them raised an error of the class called `kind`."""
    shared: Any = _SHARED.get(kind, errors.CollopsError)(text)
    shared.on_all_ranks = True  # so that no rank aborts the others while they report it
    return shared


def table(lines: Mapping[int, str], size: int, otherwise: str, hosts: Sequence[str] = ()) -> str:
    """Return a text with one line for all ranks with the same text; `otherwise` is the text of ranks without a line.

    `hosts` is for :func:`name_hosts`.
    """
    ranks: dict[str, list[int]] = {}
    for rank in range(size):
        ranks.setdefault(lines.get(rank, otherwise), []).append(rank)
    return "\n".join(f"  {name_ranks(group)}{name_hosts(group, hosts)}: {line}" for line, group in ranks.items())


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks, which are in ascending order, as ``rank 2`` or ``ranks 0, 2-5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    numbers = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers}"


def name_hosts(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Return the hosts of some ranks as `` on nodea, nodeb``; empty without `hosts`, which has each rank's host."""
    names = list(dict.fromkeys(hosts[rank] for rank in ranks)) if hosts else []
    hidden_hosts = len(names) - _MAX_HOSTS
    remaining_text = f" and {hidden_hosts} more host{'s' if hidden_hosts > 1 else ''}" if hidden_hosts > 0 else ""
    return f" on {', '.join(names[:_MAX_HOSTS])}{remaining_text}" if names else ""
