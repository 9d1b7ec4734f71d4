"""Noise for made-up data: white, and the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["with_noise"]


def with_noise(
    clean: Sequence[np.ndarray], numbers: range, relative: float, seed: int, comm: Communicator
) -> tuple[list[np.ndarray], float]:
    """Return data with noise, and the norm of the noise over all ranks. Collective.

    Parameters
    ----------
    clean : sequence of numpy.ndarray
        One array per record of this rank: the traces of a shot, or a row of a volume.
    numbers : range
        Of these records among those of all ranks; the noise of a record depends on its number only.
    relative : float
        Root mean square of the noise relative to that of the data.
    seed : int
        Another seed gives other noise.

    Returns
    -------
    list of numpy.ndarray
        New arrays.
    float
        The norm.
    """
    own = np.array([sum(_square(record) for record in clean), float(sum(record.size for record in clean))])
    signal, samples = comm.allreduce(own)
    deviation = relative * float(np.sqrt(signal / samples)) if samples else 0.0
    noisy = [record.copy() for record in clean]
    if deviation > 0:
        for number, values in zip(numbers, noisy, strict=True):
            generator = np.random.default_rng([seed, number])
            values += (deviation * generator.standard_normal(values.shape)).astype(values.dtype)
    norm = sum((_square(a - b) for a, b in zip(noisy, clean, strict=True)), 0.0)
    return noisy, float(np.sqrt(comm.allreduce(np.array(norm))[()]))


def _square(values: np.ndarray) -> float:
    return float((values.astype(np.float64) ** 2).sum())
