"""``scan``, and reductions that the transports do not support: the arrays of all ranks are gathered and combined.

A gather cannot be confused with the program's messages, which may wait for any source and any tag.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from collops.backend import LocalArray
from collops.comm.agreement import MpiHandle
from collops.comm.mpi import mpi4py_module
from collops.comm.reductions import OPERATIONS
from collops.errors import UnsupportedTypeError
from collops.jax.arguments import array, operation
from collops.jax.communicators import Comm, NativeComm, native_comm
from collops.jax.gathering import gathered


def scan(x: LocalArray, op: str | MpiHandle = "sum", *, comm: Comm = None) -> LocalArray:
    """Reduce `x` over this rank and all ranks before it. Collective.

    Parameters
    ----------
    x : array
        The same shape and dtype on every rank.
    op, comm
        As for :func:`allreduce`, without ``avg``.

    Returns
    -------
    jax.Array
        The result, with the shape and dtype of `x`.

    Raises
    ------
    UnsupportedTypeError
        If `op` is not defined for the dtype.

    Notes
    -----
    Every rank receives the arrays of all ranks. The adjoint returns the cotangents of an array to its rank.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> float(collops.jax.scan(jnp.array(1.0))) == collops.world().rank + 1
    True
    """
    comm = native_comm(comm)
    x = array(x)
    name = folded_operation(op, x) or operation(op, x.dtype)
    if name == "avg":
        raise UnsupportedTypeError("scan does not support 'avg': use 'sum' and divide by the number of ranks")
    return _folded(_gathered(x, comm)[: comm.rank + 1], name)


def folded_operation(op: str | MpiHandle, x: LocalArray) -> str | None:
    """Return the name of a reduction that transports do not support, checked for `x`; ``None`` for others."""
    known = (*_FOLDED, "prod")
    name = op if isinstance(op, str) else next((x for x in known if op == getattr(mpi4py_module(), x.upper())), None)
    kind = x.dtype.kind
    if name == "prod" and kind == "c":
        return name
    if name not in _FOLDED:
        return None
    if name in _BITWISE and kind not in "biu":
        raise UnsupportedTypeError(f"{name!r} needs booleans or integers, not {x.dtype}")
    if name not in _BITWISE and (kind in "bc" or x.shape[-1:] != (2,)):
        raise UnsupportedTypeError(
            f"{name!r} needs pairs of a value and its index, as real numbers along a last axis of 2, "
            f"not {x.dtype} of shape {x.shape}"
        )
    return name


def folded(x: LocalArray, name: str, comm: NativeComm) -> LocalArray:
    """Reduce `x` over all ranks by an operation of :func:`folded_operation`."""
    return _folded(_gathered(x, comm), name)


def _gathered(x: LocalArray, comm: NativeComm) -> LocalArray:
    return gathered(x[None], (1,) * comm.size, comm)


def _folded(rows: LocalArray, name: str) -> LocalArray:
    """Combine rows pair by pair, which keeps their order."""
    combine = _FOLDED.get(name) or getattr(jnp, OPERATIONS[name].ufunc)
    while (count := rows.shape[0]) > 1:
        pairs = combine(rows[: count - 1 : 2], rows[1::2]).astype(rows.dtype)
        rows = pairs if count % 2 == 0 else jnp.concatenate([pairs, rows[-1:]])
    return rows[0]


def _extreme(better: Callable[[LocalArray, LocalArray], LocalArray]) -> Callable[[LocalArray, LocalArray], LocalArray]:
    """Return the operation on pairs that selects the extreme value, and among equal values the lowest index.

    NaN precedes any number, and equals another NaN, as in NumPy.
    """

    def combine(a: LocalArray, b: LocalArray) -> LocalArray:
        x, y = a[..., 0], b[..., 0]
        missing, other_missing = x != x, y != y
        equal = (x == y) | (missing & other_missing)
        wins = (better(x, y) & ~other_missing) | (missing & ~other_missing)
        return jnp.where((wins | (equal & (a[..., 1] <= b[..., 1])))[..., None], a, b)

    return combine


_BITWISE = {"band": jnp.bitwise_and, "bor": jnp.bitwise_or, "bxor": jnp.bitwise_xor}
_FOLDED: dict[str, Callable[[LocalArray, LocalArray], LocalArray]] = {
    **_BITWISE,
    "maxloc": _extreme(jnp.greater),
    "minloc": _extreme(jnp.less),
}
