"""
Recorded shots, with a regularisation of your own
=================================================

Read shots from SEG-Y as ``collops lsm`` does, and invert them with a penalty that no command has.

``lsm.recorded`` is the part of ``collops lsm`` that reads, conditions and mutes the traces and chooses grid, wavelet
and amplitudes; the plain image is that of ``--iterations 10``. Here the image may vary little along the line. Run
``mpiexec -n 2 python examples/recorded_shots.py line.sgy 1500+0.6z``; without a file the program makes one.
"""

import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import collops
from collops.seismic import lsm
from collops.seismic.survey import Geometry, Grid, Survey

comm, truth = collops.world(), np.zeros((61, 31))
truth[:, 10], truth[20:45, 22] = 1.0, -0.7


def synthetic(path):  # a boat fires at irregular places and tows a cable of 16 hydrophones
    rng, grid = np.random.default_rng(1), Grid(61, 31, 10.0, 10.0)
    boat = np.stack([np.sort(rng.uniform(150, 600, 14)), np.full(14, 5.0)])
    cables = [shot[:, None] - [np.linspace(0, 150, 16), np.zeros(16)] for shot in boat.T]
    survey = Survey(Geometry(boat, cables, samples=151, interval=0.004))
    A = survey.operator(1500.0, grid, frequency=25.0)
    shots = survey.by_shot((A @ collops.from_global(truth.astype("f4"), A.domain)).local_array)
    noise = (2 * np.random.default_rng(shot).normal(size=(16, 151)) for shot in survey.shots)
    survey.traces = [clean + random for clean, random in zip(shots, noise, strict=True)]
    return survey.save(path, grid, frequency=25.0)


place = tempfile.TemporaryDirectory()
folder = comm.allgather_metadata(place.name)[0]  # that of the first rank
path, velocity = sys.argv[1:] or (synthetic(f"{folder}/line.sgy"), "1500")

problem = lsm.recorded(lsm.Options(survey=str(path), velocity=velocity), comm)
survey, grid = problem.survey, problem.grid
weights = survey.array([shot.weights for shot in problem.conditioned])
A = collops.Diagonal(weights) @ problem.operator()
data = survey.array([shot.trust[:, None] * shot.traces for shot in problem.conditioned])
data = data / float(data.norm(np.inf))  # in any unit
plain = collops.cgls(A, data, niter=10, tol=0)

along = collops.FirstDerivative(A.domain, axis=0, dtype="float32")
weight = 2.0 * float((A @ plain.x).norm() / plain.x.norm())
both, target = collops.StackedVStack([A, weight * along]), collops.StackedArray([data, collops.zeros(along.range)])
regularised = collops.cgls(both, target, niter=10, tol=0)
survey.write(f"{folder}/image.sgy", regularised.x, grid)
comm.barrier()
place.cleanup()
# %%
# The image of every rank is the same.
if comm.rank == 0 and grid.shape == truth.shape:
    _, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
    pictures = {"truth": truth, "least squares": plain.x.local_array, "regularised": regularised.x.local_array}
    for ax, (name, image) in zip(axes, pictures.items(), strict=True):
        scale = np.vdot(image, truth) / np.vdot(image, image)
        if name != "truth":
            print(f"{name}: error {np.linalg.norm(scale * image - truth) / np.linalg.norm(truth):.2f}")
        ax.imshow(image.T, cmap="gray", vmin=-1 / scale, vmax=1 / scale, extent=(0, 600, 300, 0), aspect="auto")
        ax.set(title=name, xlabel="x (m)")
    axes[0].set_ylabel("depth (m)")
    plt.show()
