"""
Unknown sources in real time
============================

Infer where and when heat was released from a few thermometers: the posterior of a source field in space and time.

The data are the sources times a block-Toeplitz matrix, whose kernel takes one simulation backwards in time for each
sensor. After that no simulation is needed: Fourier transforms multiply the matrix, stored in half precision.

Run: ``mpiexec -n 2 python examples/sources_in_real_time.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.linalg import toeplitz

import collops
from collops.operators import Columns
from collops.uncertainty import GaussianPosterior

comm = collops.world()
nt, nx, noise, sensors = 50, 40, 0.1, [4, 12, 20, 28, 36]

# One implicit step of diffusion, and the response of the sensors to a source at each point, as many steps later.
step = np.linalg.inv(toeplitz([1.6, -0.3, *[0.0] * (nx - 2)]))
kernel = np.stack([np.linalg.matrix_power(step, lag)[sensors] for lag in range(1, nt + 1)])
A = collops.BlockToeplitz(np.array_split(kernel, comm.size, axis=2)[comm.rank], stored="float16", comm=comm)

# A priori, sources are correlated over some points and steps: white noise, smoothed along both axes by R.
taps = np.exp(-0.5 * (np.arange(-6, 7) / 2) ** 2)
taps /= np.linalg.norm(taps)
along_x, along_t = (collops.NonStationaryConvolve1D(A.domain, taps[None], [0], axis=a, comm=comm) for a in (1, 0))
R = along_x @ along_t

t, x = np.mgrid[:nt, :nx]
fields = 2 * np.exp(-(((x - 8 - 0.5 * t) / 3) ** 2)), 1.5 * np.exp(-(((x - 30) / 3) ** 2) - ((t - 15) / 5) ** 2)
truth = collops.from_global(sum(fields), A.domain, comm=comm)
data = A @ truth + noise * collops.random(A.range, seed=1, comm=comm)

posterior = GaussianPosterior(A @ R, noise=noise, prior=1.0)
mean = R @ posterior.mean(data, niter=400, rtol=1e-7).x
samples = Columns(R, 64) @ posterior.samples(64, niter=200, seed=2).x
deviation = (samples**2).mean(axis=0) ** 0.5

# The same by dense matrices, in the space of the data.
smooth = np.kron(*(toeplitz(np.pad(taps[6:], (0, n - 7))) for n in (nt, nx)))
matrix = np.block([[kernel[i - j] if i >= j else 0 * kernel[0] for j in range(nt)] for i in range(nt)]) @ smooth
gain = smooth @ np.linalg.solve(matrix @ matrix.T + noise**2 * np.eye(len(matrix)), matrix).T
exact = [gain @ data.gather().ravel(), ((smooth**2).sum(axis=1) - ((gain @ matrix) * smooth).sum(axis=1)) ** 0.5]
found = [field.gather().ravel() for field in (mean, deviation, truth)]
for name, a, b in (("mean, from the truth", 0, found[2]), ("deviation", 1, exact[1]), ("mean", 0, exact[0])):
    error = np.linalg.norm(found[a] - b) / np.linalg.norm(b)
    if comm.rank == 0:
        print(f"{name}: error {error:.4f}")

# %%
# Sensors are at the dotted lines. Between them, and before the end, where the heat has not arrived yet, the standard
# deviation is larger.
if comm.rank == 0:
    _, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
    for ax, name, field in zip(axes, ("truth", "mean", "deviation"), (found[2], *found[:2]), strict=True):
        picture = ax.imshow(field.reshape(nt, nx), origin="lower", aspect="auto")
        ax.vlines(sensors, 0, nt - 1, "white", "dotted")
        ax.set(title=name, xlabel="point")
        plt.colorbar(picture, ax=ax)
    axes[0].set_ylabel("time step")
    plt.show()
