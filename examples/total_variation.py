r"""
Denoising by total variation
============================

Denoise a piecewise constant image, whose rows are distributed over the ranks, by the primal-dual method. It minimises
:math:`\frac{1}{2} \|x - y\|^2 + \lambda \|\nabla x\|_1`.

Run: ``mpiexec -n 4 python examples/total_variation.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import collops

comm = collops.world()
layout = collops.Layout.split((90, 120), comm.size)

# The truth: a disc and a bar. Every rank computes its own rows.
row, column = np.ogrid[layout.slices(comm.rank)]
disc, bar = np.hypot(row - 40, column - 40) < 25, (abs(row - 60) < 8) & (abs(column - 80) < 30)
truth = collops.from_local(np.where(bar, 0.5, np.where(disc, 1.0, 0.0)), layout).ravel()
noisy = truth + 0.2 * collops.random(truth.layout, comm=comm, seed=1)

# Differences along both axes, with one halo exchange.
G = collops.Gradient(layout, kind="forward", comm=comm).flat
fit, flatness = collops.L2(b=noisy), collops.L1(0.25)
result = collops.primal_dual(fit, flatness, G, noisy, tau=0.35, mu=0.35, niter=150)

for name, x in (("noisy", noisy), ("denoised", result.x)):
    error = float((x - truth).norm() / truth.norm())
    if comm.rank == 0:
        print(f"{name}: error {error:.2f}")

# %%
# The edges stay in place. Thin lines in the last picture separate the rows of ranks; here there is one rank.
pictures = {"truth": truth, "noisy": noisy, "denoised": result.x}
_, axes = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
for ax, (name, x) in zip(axes, pictures.items(), strict=True):
    x.reshape(layout).plot(ax, cmap="gray", vmin=-0.3, vmax=1.3)
    ax.set_title(name)
if comm.rank == 0:
    plt.show()
