"""
Migration with deepwave on several ranks
========================================

The linearised propagator of `deepwave <https://github.com/ar4/deepwave>`_ becomes an operator of SciPy in a few lines:
PyTorch differentiates it. Each rank makes the operators of its own shots, and a stack adds their images. Shots are
shared out by their numbers of time steps.

Run: ``mpiexec -n 3 python examples/deepwave_migration.py``
"""

import warnings

import deepwave
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator

import collops
from collops.seismic.waves import share_by_cost

comm = collops.world()
warnings.simplefilter("ignore", deepwave.MigrationWarning)  # of changes since its version 0.0.27

# Two reflectors below a background of 2 km/s, on a grid of 10 m, and six shots of different durations.
shape, h, interval, frequency = (60, 30), 10.0, 0.002, 20.0
velocity = torch.full(shape, 2000.0)
change = np.zeros(shape, np.float32)
change[2:58, 14], change[20:40, 20] = 100.0, -150.0  # in m/s
sources, samples = [5, 15, 25, 35, 45, 55], [160, 200, 240, 240, 200, 160]
receivers = torch.stack([torch.arange(0, 60, 2), torch.full((30,), 2)], dim=1)[None]


def born(shot):
    """Return the linearised modelling of a shot."""
    wavelet = deepwave.wavelets.ricker(frequency, samples[shot], interval, 1.2 / frequency)[None, None]
    source = torch.tensor([[[sources[shot], 2]]])

    def model(x):
        return deepwave.scalar_born(
            velocity, h, interval, dv=x.reshape(shape), source_amplitudes=wavelet, source_locations=source,
            sc_receiver_locations=receivers, pml_freq=frequency,
        )[-1].flatten()  # fmt: skip

    def migrate(y):  # the map is linear, so that its derivative is the same everywhere
        x = torch.zeros(velocity.numel(), requires_grad=True)
        return torch.autograd.grad(model(x), x, torch.tensor(y))[0].numpy()

    size = 30 * samples[shot], velocity.numel()
    return LinearOperator(size, lambda x: model(torch.tensor(x)).numpy(), migrate, dtype=np.float32)


A = collops.VStack([born(shot) for shot in share_by_cost(samples, comm.size)[comm.rank]], comm, dims=shape)
data = A @ collops.from_global(change, layout=A.domain, comm=comm)
result = collops.cgls(A, data, niter=5)
for name, iterations in (("migrated", 1), ("least squares", 5)):  # the first step of CGLS scales the migrated image
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
