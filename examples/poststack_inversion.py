"""
Post-stack inversion in 3-D
===========================

Invert a distributed volume for impedance, with a Laplacian between neighbouring traces.

Noise differs from trace to trace, while the impedance varies smoothly. An iteration sends the halo exchanges of the
Laplacian and two scalars.

Run: ``mpiexec -n 4 python examples/poststack_inversion.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from pylops import FirstDerivative
from pylops.signalprocessing import Convolve1D
from pylops.utils.wavelets import ricker

import collops

comm = collops.world()
layout = collops.Layout.split((40, 24, 120), comm.size)  # inlines, crosslines, samples: split by inlines
shape = layout.local_shape(comm.rank)

# The truth is the logarithm of the impedance of folded layers; its trend is known.
inline, crossline, sample = np.ogrid[layout.slices(comm.rank)]
depth = sample + 8 * np.sin(inline / 8) + 5 * np.cos(crossline / 6)
truth = collops.from_local(np.log(4.0 + 1.5 * (depth > 40) - 0.8 * (depth > 60) + 1.2 * (depth > 85)), layout)
trend = collops.from_local(np.log(np.broadcast_to(4.0 + sample / 60, shape)), layout)

wavelet, _, centre = ricker(0.004 * np.arange(21), f0=25)
traces = Convolve1D(shape, wavelet, offset=centre, axis=2) @ (0.5 * FirstDerivative(shape, axis=2, kind="forward"))
A = collops.BlockDiag([traces], comm)  # no messages: traces are independent
L = collops.Laplacian(layout, axes=(0, 1), weights=(1, 1), sampling=(1, 1), comm=comm).flat  # one halo exchange

data = A @ truth.ravel()
data += 0.3 * data.norm() / data.size**0.5 * collops.random(A.range, comm=comm, seed=1)
pictures = {"truth": np.exp(truth.gather()), "trend": np.exp(trend.gather())}
for name, weight in (("independent traces", 0.0), ("with the Laplacian", 0.1)):
    stack = collops.StackedVStack([A, weight * L])
    missing = collops.StackedArray([data - A @ trend.ravel(), collops.zeros(L.range, comm=comm)])
    result = collops.cgls(stack, missing, niter=60, damp=0.02)
    pictures[name] = np.exp((trend.ravel() + result.x).gather().reshape(layout.shape))
    error = float((trend.ravel() + result.x - truth.ravel()).norm() / (truth - trend).norm())
    if comm.rank == 0:
        print(f"{name}: error {error:.2f}, relative to that of the trend")

# %%
# Acoustic impedance along the inline in the middle.
if comm.rank == 0:
    _, axes = plt.subplots(1, 4, figsize=(10, 3.5), sharey=True, layout="constrained")
    for ax, (name, volume) in zip(axes, pictures.items(), strict=True):
        ax.imshow(volume[20].T, cmap="viridis", vmin=3.5, vmax=7, aspect="auto")
        ax.set(title=name, xlabel="crossline")
    axes[0].set_ylabel("sample")
    plt.show()
