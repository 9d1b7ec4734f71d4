"""PyLops-MPI's pictures of arrays: which rank holds what, and each rank's part."""

from __future__ import annotations

import numpy as np

from collops.compat.pylops_mpi._array import DistributedArray

__all__ = ["plot_distributed_array", "plot_local_arrays"]


def plot_distributed_array(arr: DistributedArray) -> None:
    """Draw which rank holds which element. The picture is made on rank 0. No message.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=8)
    >>> x[:] = 1.0
    >>> pylops_mpi.plot_distributed_array(x)
    """
    if arr.rank == 0:
        import matplotlib.pyplot as plt

        layout = arr.native.layout
        owners = np.zeros(arr.global_shape)
        for rank in range(arr.size):
            owners[layout.slices(rank)] = rank
        figure, axes = plt.subplots()
        image = axes.matshow(np.atleast_2d(owners), cmap="rainbow", vmin=0, vmax=max(1, arr.size - 1))
        figure.colorbar(image, ax=axes, label="rank", ticks=range(arr.size))
        axes.set_title(f"Distributed over {arr.size} ranks along axis {arr.axis}")


def plot_local_arrays(
    arr: DistributedArray, title: str | None = None, vmin: float | None = None, vmax: float | None = None
) -> None:
    """Draw every rank's part, side by side. The picture is made on rank 0. Collective: one gather.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=(4, 4))
    >>> x[:] = 1.0
    >>> pylops_mpi.plot_local_arrays(x, "ones")
    """
    whole = arr.native.gather(root=0)
    if arr.rank == 0:
        import matplotlib.pyplot as plt

        values = arr.native.engine.to_host(whole)
        figure, axes = plt.subplots(1, arr.size, squeeze=False)
        for rank, ax in enumerate(axes[0]):
            part = values[arr.native.layout.slices(rank)]
            if part.size:
                ax.imshow(np.atleast_2d(part), vmin=vmin, vmax=vmax)
            else:
                ax.set_axis_off()  # a picture without points is one that Matplotlib warns of
            ax.set_title(f"Rank {rank}")
        if title is not None:
            figure.suptitle(title)
