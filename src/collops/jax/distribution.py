"""``gather`` to a root and ``scatter`` from a root: each is the adjoint of the other."""

from __future__ import annotations

from jax.core import ShapedArray

from collops.backend import LocalArray
from collops.jax.arguments import array, blocks, checked_rank, leaf_by_leaf
from collops.jax.communicators import Comm, NativeComm, native_comm
from collops.jax.primitive import collective, like, linear


@leaf_by_leaf
def gather(x: LocalArray, root: int = 0, *, comm: Comm = None) -> LocalArray:
    """Stack every rank's `x` on `root`; on other ranks return `x`. Collective.

    Parameters
    ----------
    x : array or pytree of arrays
        The same shape and dtype on every rank.
    root : int
        The rank that receives the stack.
    comm
        As for :func:`allreduce`.

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
    stack = gather_p.bind(x, root=checked_rank(root, comm, "root"), comm=comm)[0]
    return stack if comm.rank == root else x


@leaf_by_leaf
def scatter(x: LocalArray, root: int = 0, *, comm: Comm = None) -> LocalArray:
    """Send the block ``x[r]`` of `root` to rank *r*. Collective.

    Parameters
    ----------
    x : array or pytree of arrays
        On `root` of shape ``(size, *shape)``; elsewhere of shape `shape`, with arbitrary values.
    root, comm
        As for :func:`bcast`.

    Returns
    -------
    jax.Array
        This rank's block, in shape `shape`.

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
    root = checked_rank(root, comm, "root")
    # Other ranks have no blocks, but an array with the shape and a derivative.
    x = blocks(x, comm, "scatter") if comm.rank == root else array(x)[None][:0]
    return scatter_p.bind(x, root=root, comm=comm)[0]


def _stacked(x: LocalArray, root: int, comm: NativeComm) -> list[ShapedArray]:
    return [like(x, (comm.size if comm.rank == root else 0, *x.shape))]


gather_p = collective("gather", _stacked)
scatter_p = collective("scatter", lambda x, **_: [like(x, x.shape[1:])])
linear(gather_p, lambda cotangent, **parameters: scatter_p.bind(cotangent, **parameters)[0], batch_axes=(0, 1))
linear(scatter_p, lambda cotangent, **parameters: gather_p.bind(cotangent, **parameters)[0], batch_axes=(1, 0))
