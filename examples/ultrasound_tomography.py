r"""
Ultrasound tomography
=====================

Find the speed of sound in a slice of tissue from the pulses of a ring of transducers in water: four of them emit one
pulse each, and all record it. The wave equation, its adjoint and the solver are those of seismic exploration; only the
scales differ: 200 kHz instead of 20 Hz, and millimetres instead of tens of metres.

Run: ``mpiexec -n 3 python examples/ultrasound_tomography.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import collops
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, WaveformMisfit
from collops.solvers.nonlinear import lbfgs

comm = collops.world()

# Tissue in water, with a fast and a slow inclusion, on a grid of 1.25 mm.
size, step = 36, 1.25e-3
x, y = (np.mgrid[:size, :size] - (size - 1) / 2) * step
speed = np.where(np.hypot(x, y) < 14e-3, 1530.0, 1500.0)
speed[np.hypot(x + 5e-3, y - 3e-3) < 4e-3] = 1570.0
speed[np.hypot(x - 5e-3, y + 2e-3) < 4e-3] = 1490.0

interval, frequency = 0.35e-6, 200e3
t = (np.arange(120) * interval - 1.1 / frequency) * np.pi * frequency
pulse = (1 - 2 * t**2) * np.exp(-(t**2))
angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
ring = 0.5 * (size - 1) * step + 20e-3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
grid = Grid((size, size), (step, step), order=4, layers=Layers(5))
F = Propagator(grid, Geometry(ring[::6], ring, pulse, interval), kernels="numpy", comm=comm)

truth = collops.from_global(speed, layout=F.domain, comm=comm)
start = collops.full(F.domain, 1500.0, comm=comm)
problem = WaveformMisfit(F, F(truth))
result = lbfgs(problem, start, niter=5, lower=1450.0, upper=1600.0)

for name, model in (("start", start), ("found", result.x)):
    error = float((model - truth).norm() / (start - truth).norm())
    if comm.rank == 0:
        print(f"{name}: error {error:.2f}")

# %%
# Both inclusions are found from four pulses. Tissue absorbs waves, and its density varies; the operator has neither.
_, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for ax, (name, values) in zip(axes, {"true speed of sound, m/s": truth, "found": result.x}.items(), strict=True):
    values.plot(ax, cmap="viridis")
    ax.set_title(name)
if comm.rank == 0:
    plt.show()
