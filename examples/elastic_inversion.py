r"""
Elastic full-waveform inversion
===============================

Find the velocities of P and S waves near the surface, from the pressure along a line. The model is a stack of both
velocities, which one gradient changes together. Water in the ground raises one of them, and a cavity lowers the other.

Run: ``mpiexec -n 2 python examples/elastic_inversion.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import collops
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, WaveformMisfit
from collops.solvers.nonlinear import lbfgs

comm = collops.world()

# Ground below a free surface, on a grid of 3 m, with stations at the depth of the first points below the surface.
grid = Grid((30, 10), (3.0, 3.0), order=4, layers=Layers(4), free_surface=True)
x, z = np.meshgrid(np.arange(30) * 3.0, np.arange(10) * 3.0, indexing="ij")
of_p = 700 + 140 * np.exp(-((x - 30) ** 2 + (z - 9) ** 2) / 50)
of_s = 400 - 80 * np.exp(-((x - 58) ** 2 + (z - 9) ** 2) / 50)

t = np.arange(85) * 0.0018 - 0.045
wavelet = (1 - 2 * (np.pi * 24 * t) ** 2) * np.exp(-((np.pi * 24 * t) ** 2))
receivers = np.stack([np.linspace(6, 81, 14), np.full(14, 3.0)], axis=1)
geometry = Geometry([[6.0, 3.0], [80.0, 3.0]], receivers, wavelet, 0.0018)
F = Propagator(grid, geometry, shear_velocity=0.0, kernels="numpy", comm=comm)


def stack(*velocities):
    return collops.StackedArray([collops.from_global(v, layout=F.domain, comm=comm) for v in velocities])


truth, start = stack(of_p, of_s), stack(0 * of_p + 700, 0 * of_s + 400)
result = lbfgs(WaveformMisfit(F, F(truth)), start, niter=7, lower=0.7 * start, upper=1.3 * start)

for name, model in (("start", start), ("found", result.x)):
    p, s = (float((v - w).norm() / (u - w).norm()) for u, v, w in zip(start, model, truth, strict=True))
    if comm.rank == 0:
        print(f"{name}: error {np.hypot(p, s) / 2**0.5:.2f}, of P waves {p:.2f}, of S waves {s:.2f}")

# %%
# Surface waves determine the velocity of S waves; seven iterations with two shots find each change in its own velocity.
_, axes = plt.subplots(2, 2, figsize=(8, 4), layout="constrained")
for row, (name, model) in zip(axes, {"true": truth, "found": result.x}.items(), strict=True):
    for ax, wave, velocity in zip(row, "PS", model, strict=True):
        velocity.plot(ax, cmap="viridis")
        ax.set_title(f"{name} velocity of {wave} waves, m/s")
if comm.rank == 0:
    plt.show()
