"""The problem in plain NumPy, one array and one process: what every programming model is compared with."""

from __future__ import annotations

import numpy as np


def relaxed(problem, iterations):
    """The computed rows after so many iterations, and the norm of the update of each."""
    y = np.arange(1, problem.ny - 1)
    edge = np.sin(2 * np.pi * y / (problem.ny - 1)).astype(problem.dtype)
    old = np.zeros((problem.ny - 2, problem.nx), problem.dtype)
    old[:, 0] = old[:, -1] = edge
    norms = []
    for _ in range(iterations):
        above, below = np.roll(old, 1, axis=0), np.roll(old, -1, axis=0)
        new = old.copy()
        # The order of the additions decides on the last bit.
        around = ((old[:, :-2] + old[:, 2:]) + below[:, 1:-1]) + above[:, 1:-1]
        new[:, 1:-1] = np.array(0.25, problem.dtype) * around
        norms.append(float(np.sqrt(np.sum((new.astype(float) - old) ** 2))))
        old = new
    return old, norms
