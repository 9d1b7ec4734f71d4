"""The time loops of fourth order in time, by the modified equation, for any medium."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from collops.seismic.waves.march import Fields, March
from collops.seismic.waves.shot import Shot


class FourthOrderMarch(March):
    r"""The time loops of fourth order in time; parameters as for :class:`March`.

    The error of the leapfrog scheme is :math:`\Delta t^4 \partial_t^4 u / 12`, whose time derivatives the wave equation
    turns into derivatives in space [1]_ [2]_. With the source s, a step is

    .. math::
        q = L u^n + s^n, \quad w = q + \frac{1}{12} \left(L C q + s^{n+1} - 2 s^n + s^{n-1}\right), \quad
        u^{n+1} = 2 u^n - u^{n-1} + C w.

    Each of the two applications of L has memory variables of the layers of its own. The source begins a step before
    its first sample, so that traces are convolutions with it. The transpose has
    :math:`L^T \kappa + L^T C L^T \kappa / 12` for :math:`L^T \kappa`. A change of C scatters both w and q, so that a
    stored wavefield has these two parts.

    References
    ----------
    .. [1] Dablain, M. A., "The application of high-order differencing to the scalar wave equation", Geophysics 51(1),
       54-66, 1986.
    .. [2] Shubin, G. R., and Bell, J. B., "A modified equation approach to constructing fourth order methods for
       acoustic wave propagation", SIAM Journal on Scientific and Statistical Computing 8(2), 135-151, 1987.
    """

    lead = 1
    parts = (2,)
    laplacians = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._between = self._xp.zeros(self._shape, self._c.dtype)  # C q, with its halo
        self._middle = self._between[(..., *self._tile.box)]
        self._pair = self._xp.empty(self._wavefield, self._c.dtype)
        self._twelfth = self._c.dtype.type(1 / 12)

    def _prepared(self, shot: Shot) -> Shot:
        """Return a shot with the source of both parts, shape (steps, 2, points), from the first step on."""
        later, now, earlier = (np.pad(shot.source, ((n, 2 - n), (0, 0))) for n in range(3))
        return replace(shot, source=np.stack([now, self._twelfth * (later - 2 * now + earlier)], axis=1)[:-1])

    def _advance(self, shot: Shot, fields: Fields, n: int, w: np.ndarray | None = None) -> None:
        """Compute step n of the field, and the two parts of its wavefield in `w`."""
        (q, total), steps = self._pair if w is None else w, self._steps
        steps.laplacian(fields.now, fields.memory[:2], q)
        self._add_signal(shot, q, n)
        steps.multiply(self._c, q, self._middle)
        self._again(steps.laplacian, fields, q, total)
        self._add_signal(shot, total, n, 1)
        self._leap(fields, total)

    def _scatter(self, scattered: Fields, change: np.ndarray, w: np.ndarray) -> None:
        """Compute a step of the field that a change of c causes by a stored wavefield."""
        (q, total), steps = self._pair, self._steps
        steps.laplacian(scattered.now, scattered.memory[:2], q)
        steps.multiply(self._c, q, self._middle)
        steps.add_product(change, w[0], self._middle)
        self._again(steps.laplacian, scattered, q, total)
        self._leap(scattered, total)
        steps.add_product(change, w[1], scattered.now[(..., *self._tile.box)])

    def _retreat(self, adjoint: Fields, w: np.ndarray, image: np.ndarray) -> None:
        """Compute a step of the adjoint field, and add its products with a stored wavefield to the image."""
        (q, total), steps = self._pair, self._steps
        steps.correlate(adjoint.now[(..., *self._tile.box)], w[1], image)
        steps.transposed(adjoint.now, adjoint.memory[:2], q)
        steps.multiply(self._c, q, self._middle)
        steps.correlate(self._middle, w[0], image, self._twelfth)
        self._again(steps.transposed, adjoint, q, total)
        self._leap(adjoint, total)

    def _again(self, apply: Any, fields: Fields, q: np.ndarray, total: np.ndarray) -> None:
        """Apply the operator or its transpose to C q, and fill `total` with q and a twelfth of the result."""
        self._fill(self._between)
        apply(self._between, fields.memory[2:], total)
        self._steps.combine(q, self._twelfth, total)

    def _leap(self, fields: Fields, total: np.ndarray) -> None:
        self._steps.leap(fields.now, fields.before, self._c, total)
        fields.swap()
