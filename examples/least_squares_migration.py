"""
Least-squares migration
=======================

Kirchhoff modelling of each rank's shots, inverted by CGLS.

The adjoint of modelling, migration, shows where reflectors are. Solving the equations instead shows how strong they
are, and sharpens them.

Run: ``mpiexec -n 4 python examples/least_squares_migration.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from pylops.utils.wavelets import ricker

import collops

comm = collops.world()
x, z, t = 8.0 * np.arange(61), 8.0 * np.arange(41), 0.004 * np.arange(201)
sources = np.stack([np.linspace(0, x[-1], 12), np.zeros(12)])
receivers = np.stack([np.linspace(0, x[-1], 31), np.zeros(31)])
wavelet, _, centre = ricker(t[:41], f0=20)

# Every rank models the shots that are its own; the image is the same on all of them.
A = collops.Kirchhoff(z, x, t, sources, receivers, 1500.0, wavelet, centre, mode="analytic", comm=comm)
truth = np.zeros((61, 41))
truth[:, 15], truth[20:45, 28] = 1.0, -0.7
data = A @ collops.from_global(truth, A.domain, comm=comm)

migrated = A.H @ data
result = collops.cgls(A, data, niter=40)

if comm.rank == 0:
    for name, image in (("migration", migrated.local_array), ("least squares", result.x.local_array)):
        scale = np.vdot(image, truth) / np.vdot(image, image)  # an adjoint has no scale of its own
        print(f"{name}: error {np.linalg.norm(scale * image - truth) / np.linalg.norm(truth):.2f}")

# %%
# A reflector of strength 1 above, one of -0.7 below it, on 496 m by 328 m.
if comm.rank == 0:
    _, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
    pictures = {"truth": truth, "migration": migrated.local_array, "least squares": result.x.local_array}
    for ax, (name, image) in zip(axes, pictures.items(), strict=True):
        limit = abs(image).max()
        ax.imshow(image.T, cmap="gray", vmin=-limit, vmax=limit, extent=(0, x[-1], z[-1], 0), aspect="auto")
        ax.set(title=name, xlabel="x (m)")
    axes[0].set_ylabel("depth (m)")
    plt.show()
