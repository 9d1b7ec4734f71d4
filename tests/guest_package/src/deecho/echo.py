"""The operator: a signal and its echo."""

import numpy as np

import collops
from collops import Layout, LinearOperator, StarForest


class Echo(LinearOperator):
    """Add an echo, ``y[i] = x[i] + strength * x[i - delay]``, to a signal that is split over the ranks. Collective."""

    def __init__(self, samples, delay, strength, comm, dtype=float, transport="auto"):
        layout = Layout.split(samples, comm.size)
        super().__init__(layout, layout, dtype, comm)
        own = np.arange(samples)[layout.slices(comm.rank)]
        late = np.flatnonzero(own >= delay)  # samples of this rank that an echo reaches
        self._delayed = StarForest.from_layout(comm, layout, own[late] - delay, late, transport=transport)
        self._strength = strength

    def _forward(self, x, out):
        echo = collops.zeros_like(x)
        echo.local_array = self._delayed.bcast(x.local_array, echo.local_array)
        return collops.axpby(1.0, x, self._strength, echo, out=out)

    def _adjoint(self, y, out):
        advanced = collops.zeros_like(y)
        advanced.local_array = self._delayed.reduce(y.local_array, advanced.local_array)
        return collops.axpby(1.0, y, np.conj(self._strength), advanced, out=out)
