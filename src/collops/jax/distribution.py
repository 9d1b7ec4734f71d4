"""``gather`` to a root and ``scatter`` from a root: each is the adjoint of the other."""

from __future__ import annotations

from typing import Any

from collops.errors import LayoutError
from collops.jax.arguments import array, checked_rank
from collops.jax.communicators import NativeComm, native_comm
from collops.jax.primitive import collective, like, linear

__all__ = ["gather", "scatter"]


def gather(x: Any, root: int = 0, *, comm: Any = None) -> Any:
    """Stack every rank's `x` on `root`; on other ranks return `x`. Collective.

    Parameters
    ----------
    x : array
        The same shape and dtype on every rank.
    root : int
        The rank that gets the stack.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.

    Returns
    -------
    jax.Array
        On `root` of shape ``(size, *x.shape)``.

    Raises
    ------
    InputError
        If `root` is invalid.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> gathered = collops.jax.gather(jnp.ones(2))
    >>> gathered.shape == ((comm.size, 2) if comm.rank == 0 else (2,))
    True
    """
    comm = native_comm(comm)
    x = array(x)
    blocks = gather_p.bind(x, root=checked_rank(root, comm, "root"), comm=comm)[0]
    return blocks if comm.rank == root else x


def scatter(x: Any, root: int = 0, *, comm: Any = None) -> Any:
    """Give rank *r* the block ``x[r]`` of `root`. Collective.

    Parameters
    ----------
    x : array
        On `root` of shape ``(size, *shape)``; elsewhere of shape `shape`, with arbitrary values.
    root : int
        The rank whose blocks are sent.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.

    Returns
    -------
    jax.Array
        Of shape `shape`.

    Raises
    ------
    InputError
        If `root` is invalid.
    LayoutError
        If the root's array does not have one block for each rank.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> collops.jax.scatter(jnp.ones((comm.size, 2))).shape
    (2,)
    """
    comm = native_comm(comm)
    x = array(x)
    root = checked_rank(root, comm, "root")
    if comm.rank != root:
        x = x[None][:0]  # no blocks, but with the shape and with a derivative
    elif x.ndim == 0 or x.shape[0] != comm.size:
        raise LayoutError(f"scatter needs a first axis of {comm.size} blocks, one for each rank, not shape {x.shape}")
    return scatter_p.bind(x, root=root, comm=comm)[0]


def _blocks(root: int, comm: NativeComm) -> int:
    return comm.size if comm.rank == root else 0


gather_p = collective(
    "gather",
    lambda x, root, comm: [like(x, (_blocks(root, comm), *x.shape))],
    lambda _avals, root, **_: {"root": root},
)
scatter_p = collective(
    "scatter",
    lambda x, **_: [like(x, x.shape[1:])],
    lambda _avals, root, **_: {"root": root},
)


linear(gather_p, lambda cotangent, **parameters: scatter_p.bind(cotangent, **parameters)[0], batch_axes=(0, 1))
linear(scatter_p, lambda cotangent, **parameters: gather_p.bind(cotangent, **parameters)[0], batch_axes=(1, 0))
