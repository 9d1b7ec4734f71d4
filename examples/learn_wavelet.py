"""
Learning a wavelet through a migration
======================================

Differentiate a misfit through a distributed least-squares migration, with JAX.

The wavelet of the data is unknown. Half of the shots are migrated with a guessed wavelet. The misfit between the other
half and the shots modelled from that image measures the error of the guess, and its gradient improves the wavelet.

Run: ``mpiexec -n 2 python examples/learn_wavelet.py``
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import collops

comm = collops.world()
x, z, t, lags = 8.0 * np.arange(25), 8.0 * np.arange(17), 0.004 * np.arange(64), np.arange(-8, 9)
truth = np.zeros((25, 17), np.float32)
truth[:, 6], truth[8:18, 11] = 1.0, -0.7
surface = np.stack([np.linspace(0, x[-1], 12), np.zeros(12)])
known, rest = (
    collops.seismic.Kirchhoff(z, x, t, surface[:, n::2], surface, 1500.0, [1.0], 0, mode="analytic") for n in (0, 1)
)


class Wavelet:  # an operator on the traces of this rank: their convolution
    def __init__(self, taps, shots):
        taps = jnp.pad(collops.array.shared(taps, comm), 64)  # all ranks have the same taps
        self.matrix = taps[np.subtract.outer(range(64), range(64)) + 72]
        self.shape, self.dtype = (shots.local.shape[0],) * 2, "float32"
        self.matvec = lambda d: jnp.ravel(jnp.reshape(d, (-1, 64)) @ self.matrix.T)
        self.rmatvec = lambda d: jnp.ravel(jnp.reshape(d, (-1, 64)) @ self.matrix)


def misfit(taps):
    model, other = (collops.BlockDiag([Wavelet(taps, shots)]) @ shots for shots in (known, rest))
    image = collops.cgls(model, data, niter=8, damp=0.5).x
    wrong = other @ image - test
    return wrong.vdot(wrong) / test.vdot(test), image


def ricker(f):
    return jnp.asarray(
        (1 - 2 * (np.pi * f * 0.004 * lags) ** 2) * np.exp(-((np.pi * f * 0.004 * lags) ** 2)), "float32"
    )


model = collops.from_global(jnp.asarray(truth), known.domain)
data, test = (collops.BlockDiag([Wavelet(ricker(25.0), shots)]) @ shots @ model for shots in (known, rest))
evaluate = jax.jit(jax.value_and_grad(misfit, has_aux=True))
guess = taps = ricker(18.0)
for step in range(10):
    (value, image), slope = evaluate(taps)
    if comm.rank == 0 and step in (0, 9):
        print(f"step {step}: error {float(value) ** 0.5:.3f} of the other shots")
    taps = taps - 0.4 * 0.8**step * slope / jnp.linalg.norm(slope)

# %%
# The data do not determine the scale of the wavelet: a stronger wavelet and weaker reflectors give the same data.
if comm.rank == 0:
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for name, wavelet in (("guess", guess), ("learned", taps), ("truth", ricker(25.0))):
        left.plot(4 * lags, wavelet / jnp.linalg.norm(wavelet), "k--" if name == "truth" else "-", label=name)
    left.set(xlabel="time (ms)", title="wavelet")
    left.legend()
    right.imshow(np.asarray(image.local_array).T, cmap="gray", extent=(0, x[-1], z[-1], 0), aspect="auto")
    right.set(xlabel="x (m)", ylabel="depth (m)", title="image with the learned wavelet")
    plt.show()
