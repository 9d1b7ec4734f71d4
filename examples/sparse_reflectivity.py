"""
Sparse reflectivity
===================

Find spikes in distributed traces by FISTA.

The adjoint of the convolution has the resolution of the wavelet. Assuming few nonzero coefficients recovers single
spikes.

Run: ``mpiexec -n 4 python examples/sparse_reflectivity.py``
"""

import matplotlib.pyplot as plt
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

# %%
# Sixty traces; about one coefficient in fifty is not zero.
sections = {"data": data.gather(), "truth": spikes.gather(), "inverted": result.x.gather()}
if comm.rank == 0:
    _, axes = plt.subplots(1, 3, figsize=(10, 3.5), sharey=True, layout="constrained")
    for ax, (name, section) in zip(axes, sections.items(), strict=True):
        limit = abs(section).max() / 2
        ax.imshow(section.reshape(layout.shape).T, cmap="seismic", vmin=-limit, vmax=limit, aspect="auto")
        ax.set(title=name, xlabel="trace")
    axes[0].set_ylabel("sample")
    plt.show()
