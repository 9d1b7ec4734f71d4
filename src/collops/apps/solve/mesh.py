"""A Poisson problem on an unstructured mesh of tetrahedra in the unit cube, by linear finite elements."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Mesh", "poisson"]


class Mesh(NamedTuple):
    """A problem and where its unknowns are.

    Attributes
    ----------
    matrix : scipy.sparse.csr_array
        Symmetric and positive definite; the unknowns are the inner points.
    points : numpy.ndarray
        Positions of the unknowns, shape ``(unknowns, 3)``.
    solution : numpy.ndarray
        What the right-hand side is made of: a smooth function at the points.
    tetrahedra : int
    """

    matrix: Any
    points: np.ndarray
    solution: np.ndarray
    tetrahedra: int


def poisson(count: int, seed: int) -> Mesh:
    r"""Make the problem :math:`-\Delta u = f` in the cube, with :math:`u = 0` on its faces.

    Parameters
    ----------
    count : int
        About how many inner points.
    seed : int
        Of their positions.

    Notes
    -----
    The points are those of a lattice, moved at random by up to a third of its spacing, in random order as meshes come;
    their Delaunay tetrahedra are the elements. With :math:`g_i` the gradients of the four linear functions of an
    element of volume :math:`V`, its part of the matrix is :math:`V g_i \cdot g_j`.
    """
    from scipy import sparse
    from scipy.spatial import Delaunay

    side = max(2, round(count ** (1 / 3)))
    lattice = np.stack(np.meshgrid(*(np.arange(side + 2),) * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    inner = np.logical_and(lattice > 0, lattice < side + 1).all(axis=1)
    rng = np.random.default_rng(seed)
    points = lattice.astype(np.float64)
    points[inner] += rng.uniform(-1 / 3, 1 / 3, (int(inner.sum()), 3))
    points /= side + 1
    shuffled = rng.permutation(len(points))
    points = points[shuffled]
    corners = np.asarray(Delaunay(points).simplices)
    edges = points[corners[:, 1:]] - points[corners[:, :1]]
    determinant = np.linalg.det(edges)
    solid = np.abs(determinant) > 1e-9 / (side + 1) ** 3  # flat ones lie in the faces of the cube
    corners, edges, determinant = corners[solid], edges[solid], determinant[solid]
    gradients = np.empty((len(corners), 4, 3))
    gradients[:, 1:] = np.linalg.inv(edges).transpose(0, 2, 1)
    gradients[:, 0] = -gradients[:, 1:].sum(axis=1)
    local = np.einsum("eid,ejd,e->eij", gradients, gradients, np.abs(determinant) / 6)
    rows, columns = np.repeat(corners, 4, axis=1).reshape(-1), np.tile(corners, (1, 4)).reshape(-1)
    whole = sparse.csr_array(sparse.coo_array((local.reshape(-1), (rows, columns)), shape=(len(points),) * 2))
    chosen = np.flatnonzero(inner.take(shuffled))
    matrix = sparse.csr_array(whole[chosen][:, chosen])
    solution = np.sin(np.pi * points[chosen]).prod(axis=1)
    return Mesh(matrix, points[chosen], solution, len(corners))
