"""
Multi-dimensional deconvolution
===============================

Find the response of the medium below a line of receivers, without the effects of the medium above.

The frequencies of the downgoing field are distributed over the ranks. LSQR finds the response whose convolution with
the downgoing field is the upgoing field.

Run: ``mpiexec -n 4 python examples/multidimensional_deconvolution.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from pylops.utils.wavelets import ricker

import collops

comm = collops.world()
nt, ns, nr, dt, dr = 301, 41, 21, 0.004, 20.0
receivers, sources = dr * np.arange(nr), np.linspace(-200, 600, ns)
frequencies = np.fft.rfftfreq(nt, dt)[:80]
mine = np.array_split(frequencies, comm.size)[comm.rank]

# Downgoing field at the frequencies of this rank: a direct wave and its reflection at the sea surface.
wavelet, lags, centre = ricker(dt * np.arange(31), f0=20)
spectrum = np.exp(-2j * np.pi * np.outer(mine, lags)) @ wavelet
offsets = sources[:, None] - receivers
down = sum(
    strength * np.exp(-2j * np.pi * mine[:, None, None] * np.hypot(offsets, depth) / 1500)
    for depth, strength in ((150, 1.0), (450, -0.5))
)
G = collops.MDC(down * spectrum[:, None, None] / nt**0.5, nt, nr, dt=dt, dr=dr, model="split", data="split", comm=comm)

# The response of two reflectors; time zero is in the middle.
times = dt * (np.arange(nt) - nt // 2)[:, None, None]
delays = [np.hypot(receivers[:, None] - receivers, 2 * depth) / 2000 for depth in (150, 260)]
arguments = [(np.pi * 14 * (times - delay)) ** 2 for delay in delays]
truth = collops.from_global(sum((1 - 2 * a) * np.exp(-a) for a in arguments), G.domain, comm=comm)

up = G @ truth
result = collops.lsqr(G, up, niter=40)
error = float((result.x - truth).norm() / truth.norm())
if comm.rank == 0:
    print(f"deconvolution: error {error:.2f} after {result.iterations} iterations")

# %%
# The response to a virtual source in the middle of the line, at positive times; the correlation is the adjoint.
cubes = {"truth": truth.gather(), "correlation": (G.H @ up).gather(), "deconvolution": result.x.gather()}
if comm.rank == 0:
    _, axes = plt.subplots(1, 3, figsize=(10, 3.5), sharey=True, layout="constrained")
    for ax, (name, cube) in zip(axes, cubes.items(), strict=True):
        panel = cube[nt // 2 :, :, nr // 2]
        limit = abs(panel).max()
        extent = (0, receivers[-1], dt * (nt // 2), 0)
        ax.imshow(panel, cmap="gray", vmin=-limit, vmax=limit, extent=extent, aspect="auto")
        ax.set(title=name, xlabel="receiver (m)")
    axes[0].set_ylabel("time (s)")
    plt.show()
