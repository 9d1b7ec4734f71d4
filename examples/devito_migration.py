"""
Migration with Devito on several ranks
======================================

PyLops has the linearised propagators of `Devito <https://www.devitoproject.org>`_ as an operator. Each rank makes the
operators of its own shots, each on the part of the model under its stations, and a stack adds their images. Shots are
shared out such that all ranks have about as many grid points.

Run: ``mpiexec -n 3 python examples/devito_migration.py``
"""

import matplotlib.pyplot as plt
import numpy as np
import pylops
from pylops.waveeqprocessing import AcousticWave2D

import collops
from collops.seismic.waves import share_by_cost

comm = collops.world()

# Two reflectors below a background of 2 km/s, on a grid of 10 m, and four shots whose spreads differ.
shape, h = (60, 30), 10.0
velocity = np.full(shape, 2000.0, np.float32)
reflectivity = np.zeros(shape, np.float32)
reflectivity[:, 14], reflectivity[20:40, 20] = 0.02, -0.03  # perturbations of the squared slowness, in s^2/km^2
sources, reach = np.array([100.0, 230.0, 370.0, 500.0]), np.array([100.0, 230.0, 230.0, 100.0])
first = np.maximum((sources - reach) / h, 0).astype(int)  # columns of the grid under the stations of a shot
last = np.minimum((sources + reach) / h + 1, shape[0]).astype(int)


def born(shot):
    """Return the linearised modelling of a shot: from the whole model to its traces."""
    columns = np.arange(first[shot], last[shot])
    part, receivers = velocity[columns], columns * h
    waves = AcousticWave2D(
        part.shape, (first[shot] * h, 0.0), (h, h), part, sources[shot : shot + 1], np.array([20.0]), receivers,
        np.full(len(receivers), 20.0), 0.0, 300.0, f0=20.0, space_order=4, nbl=20,
    )  # fmt: skip
    return waves @ pylops.Restriction(shape, columns, axis=0, dtype="float32")


shots = share_by_cost(last - first, comm.size)[comm.rank]
A = collops.VStack([born(shot) for shot in shots], comm, dims=shape)

data = A @ collops.from_global(reflectivity, layout=A.domain, comm=comm)
result = collops.cgls(A, data, niter=3)
for name, iterations in (("migrated", 1), ("least squares", 3)):  # the first step of CGLS scales the migrated image
    if comm.rank == 0:
        print(f"{name}: error {result.residual_norms[iterations] / result.residual_norms[0]:.2f}")

# %%
# Migration is the adjoint. Least squares fit the data, and compensate for the aperture of the shots.
_, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
for ax, (name, values) in zip(axes, {"migrated": A.H @ data, "least squares": result.x}.items(), strict=True):
    values.plot(ax, cmap="gray")
    ax.set_title(name)
if comm.rank == 0:
    plt.show()
