"""
Least-squares migration
=======================

Invert the Kirchhoff modelling of distributed shots by CGLS.

Migration, the adjoint of modelling, shows the positions of reflectors. The least-squares solution also recovers their
amplitudes, and is sharper.

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

# Every rank models its own shots; the image is replicated on all ranks.
A = collops.seismic.Kirchhoff(z, x, t, sources, receivers, 1500.0, wavelet, centre, mode="analytic", comm=comm)
truth = np.zeros((61, 41))
truth[:, 15], truth[20:45, 28] = 1.0, -0.7
data = A @ collops.from_global(truth, A.domain, comm=comm)

migrated = A.H @ data
result = collops.cgls(A, data, niter=40)

if comm.rank == 0:
    for name, image in (("migration", migrated.local_array), ("least squares", result.x.local_array)):
        scale = np.vdot(image, truth) / np.vdot(image, image)  # the scale of an adjoint is arbitrary
        print(f"{name}: error {np.linalg.norm(scale * image - truth) / np.linalg.norm(truth):.2f}")

# %%
# The model, 480 m by 320 m, has a reflector of strength 1 and a deeper one of strength -0.7.
if comm.rank == 0:
    _, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
    pictures = {"truth": truth, "migration": migrated.local_array, "least squares": result.x.local_array}
    for ax, (name, image) in zip(axes, pictures.items(), strict=True):
        limit = abs(image).max()
        ax.imshow(image.T, cmap="gray", vmin=-limit, vmax=limit, extent=(0, x[-1], z[-1], 0), aspect="auto")
        ax.set(title=name, xlabel="x (m)")
    axes[0].set_ylabel("depth (m)")
    plt.show()
