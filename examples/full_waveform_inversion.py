r"""
Full-waveform inversion between two wells
=========================================

Find the velocity between two wells from the waves of sources in one and receivers in the other, by minimising
:math:`\frac{1}{2} \|F(v) - d\|^2` with L-BFGS. The shots are distributed over the ranks.

Run: ``mpiexec -n 3 python examples/full_waveform_inversion.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import collops
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, WaveformMisfit
from collops.solvers.nonlinear import lbfgs

comm = collops.world()

# A fast and a slow lens in 2 km/s, on a grid of 10 m. The grid is small enough for the kernels without compilation.
grid = Grid((28, 22), (10.0, 10.0), order=4, layers=Layers(6))
x, z = np.ogrid[0:280:10, 0:220:10]
fast, slow = (np.exp(-((x - 135) ** 2 + (z - depth) ** 2) / 45**2) for depth in (60, 150))

interval, frequency = 0.002, 20.0
t = (np.arange(100) * interval - 1.1 / frequency) * np.pi * frequency
ricker = (1 - 2 * t**2) * np.exp(-(t**2))
sources = np.stack([np.full(3, 10.0), np.linspace(30, 180, 3)], axis=1)
receivers = np.stack([np.full(15, 260.0), np.linspace(5, 205, 15)], axis=1)
F = Propagator(grid, Geometry(sources, receivers, ricker, interval), kernels="numpy", comm=comm)

truth = collops.from_global(2000 + 250 * fast - 200 * slow, layout=F.domain, comm=comm)
start = collops.full(F.domain, 2000.0, comm=comm)
problem = WaveformMisfit(F, F(truth))
result = lbfgs(problem, start, niter=7, lower=1500.0, upper=2600.0)

for name, model in (("start", start), ("found", result.x)):
    error = float((model - truth).norm() / (start - truth).norm())
    if comm.rank == 0:
        print(f"{name}: error {error:.2f}")

# %%
# The gradient at the start is the reverse-time migration of the residual. A few iterations find both lenses.
gradient = problem.jacobian(start).adjoint(problem.residual(start))
pictures = {"truth": truth, "gradient at the start": gradient, "found": result.x}
_, axes = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
for ax, (name, values) in zip(axes, pictures.items(), strict=True):
    values.plot(ax, cmap="viridis")
    ax.set_title(name)
if comm.rank == 0:
    plt.show()
