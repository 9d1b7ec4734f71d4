"""Sparse reflectivity: spikes from traces, by FISTA; each rank inverts its own traces.

Run: mpiexec -n 4 python examples/sparse_reflectivity.py
"""

import numpy as np
from pylops.signalprocessing import Convolve1D
from pylops.utils.wavelets import ricker

import collops

comm = collops.world()
layout = collops.Layout.split((60, 200), comm.size)  # traces, samples: split by traces
shape = layout.local_shape(comm.rank)

truth = np.zeros(layout.shape)
for start, slope, strength in ((30, 0.3, 0.2), (38, 0.3, -0.15), (90, -0.5, 0.25), (150, 0.1, 0.1)):
    truth[np.arange(60), np.rint(start + slope * np.arange(60)).astype(int)] = strength
spikes = collops.from_global(truth, layout, comm=comm).ravel()

wavelet, _, centre = ricker(0.004 * np.arange(25), f0=25)
W = collops.BlockDiag([Convolve1D(shape, wavelet, offset=centre, axis=1)], comm)
data = W @ spikes
data += 0.1 * data.norm() / data.size**0.5 * collops.random(W.range, comm=comm, seed=1)

correlated = W.H @ data
result = collops.fista(W, data, niter=200, eps=0.1 * float(correlated.norm(np.inf)))

error = float((result.x - spikes).norm() / spikes.norm())
kept = float((abs(result.x) > 1e-3).sum()) / data.size
if comm.rank == 0:
    print(f"error {error:.2f}; {100 * kept:.1f} % of the samples are not zero")
