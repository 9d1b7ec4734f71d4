"""Travel times from positions to all image points: straight rays, or the eikonal equation.

References
----------
.. [1] Sethian, J. A., "A fast marching level set method for monotonically advancing fronts", Proceedings of the
   National Academy of Sciences, 93(4), pp. 1591-1595, 1996.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collops.errors import InputError
from collops.operators.kirchhoff.geometry import Grid

__all__ = ["analytic", "eikonal", "require_eikonal_solver"]


def analytic(grid: Grid, positions: np.ndarray, velocity: float) -> Iterator[np.ndarray]:
    """Yield for each position the travel times along straight rays.

    Parameters
    ----------
    grid : Grid
        The image points.
    positions : numpy.ndarray
        Shape (positions, axes).
    velocity : float
        In the unit of length of the grid per second.

    Yields
    ------
    numpy.ndarray
        Seconds, float64, of the grid's shape.
    """
    axes = np.meshgrid(*grid.axes, indexing="ij", sparse=True)
    for position in positions:
        squares = [(axis - coordinate) ** 2 for axis, coordinate in zip(axes, position, strict=True)]
        # x and z first, as PyLops adds them, so that both agree to the last bit.
        distance = squares[-2] + squares[-1]
        if len(squares) == 3:
            distance = distance + squares[0]
        yield np.sqrt(distance) / velocity


def eikonal(grid: Grid, nodes: np.ndarray, velocity: np.ndarray) -> Iterator[np.ndarray]:
    """Yield for each node the first arrivals in a velocity model, by second-order fast marching [1]_.

    The front starts half way between the node and its neighbours, where the level-set function changes sign.

    Parameters
    ----------
    grid : Grid
        The image points.
    nodes : numpy.ndarray
        Indices of grid points, shape (nodes, axes).
    velocity : numpy.ndarray
        Of the grid's shape, positive.

    Yields
    ------
    numpy.ndarray
        Seconds, float64, of the grid's shape.

    Raises
    ------
    InputError
        If scikit-fmm is not installed.
    """
    require_eikonal_solver()
    import skfmm

    front = np.ones(grid.shape)
    for node in nodes:
        front[tuple(node)] = -1.0
        times = skfmm.travel_time(front, velocity, dx=list(grid.spacing))
        front[tuple(node)] = 1.0
        yield np.asarray(times)


def require_eikonal_solver() -> None:
    """Make sure that scikit-fmm is there.

    Raises
    ------
    InputError
        If it is not installed.
    """
    try:
        import skfmm  # noqa: F401
    except ImportError as error:
        raise InputError(
            "mode 'eikonal' needs scikit-fmm: pip install 'collops[eikonal]', or give travel times with mode 'byot'"
        ) from error
