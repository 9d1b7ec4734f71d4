"""Put a deconvolution together: the operator from the downgoing field, and the upgoing field to be explained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.mdd.acquisition import Acquisition, Downgoing, frequencies_within
from collops.apps.mdd.made import MadeSea, made_response
from collops.apps.mdd.options import Options
from collops.apps.mdd.recorded import RecordedFields
from collops.apps.noise import with_noise
from collops.apps.stages import local_stage, raised_together
from collops.array import DistributedArray, Layout
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Problem", "prepare"]

_NOISE = 0.05


@dataclass(frozen=True)
class Problem:
    """Data and operator.

    Parameters
    ----------
    acquisition : Acquisition
        Sizes and samplings.
    frequencies : int
        How many are used, from 0 on.
    operator : LinearOperator
        Convolution with the downgoing field; domain of shape ``(times, receivers, virtual sources)``, split by
        receivers, range of shape ``(times, sources, virtual sources)``, split by sources.
    data : DistributedArray
        The upgoing field.
    truth : numpy.ndarray or None
        This rank's part of the response; None for recorded fields.
    noise_norm : float or None
        Of the noise of all ranks, where it is known.
    notes : list of str
        What was decided, in sentences for the user.
    """

    acquisition: Acquisition
    frequencies: int
    operator: Any
    data: Any
    truth: np.ndarray | None = None
    noise_norm: float | None = None
    notes: list[str] = field(default_factory=list)


def prepare(options: Options, comm: Communicator, compute: Engine) -> Problem:
    """Read or make the fields, and build the operator. Collective.

    Raises
    ------
    InputError
        On every rank, if an option or a file cannot be used, also when only one rank sees that.
    """
    with local_stage(comm):
        recorded = RecordedFields(options) if options.down is not None else None
        down: Downgoing = MadeSea(options) if recorded is None else recorded
        acquisition = down.acquisition
        acquisition.check_memory(comm, options.dtype)
        power = down.power(_share(acquisition.sources, comm))
    power = comm.allreduce(power)
    notes = [f"{'read' if recorded else 'made'} {acquisition.describe()}"]
    with raised_together():
        count = _count(options, acquisition, power, notes)
    with local_stage(comm):
        kernel = down.spectra(_share(count, comm))
    operator = _convolution(kernel, acquisition, comm, compute, options.dtype)
    if recorded is not None:
        with local_stage(comm):
            own = recorded.upgoing(operator.range.slices(comm.rank)[1])
        data = _distributed(operator.range, own, comm, compute, options.dtype)
        return Problem(acquisition, count, operator, data, notes=notes)
    truth = made_response(acquisition, operator.domain.slices(comm.rank)[1]).astype(options.dtype)
    clean = operator.forward(_distributed(operator.domain, truth, comm, compute, options.dtype))
    records = list(np.moveaxis(compute.to_host(clean.local_array), 1, 0))
    sources = operator.range.slices(comm.rank)[1]
    noise = _NOISE if options.noise is None else options.noise
    noisy, norm = with_noise(records, range(sources.start, sources.stop), noise, options.seed, comm)
    own = np.stack(noisy, axis=1) if noisy else compute.to_host(clean.local_array)
    data = _distributed(operator.range, own, comm, compute, options.dtype)
    return Problem(acquisition, count, operator, data, truth, norm, notes)


def _share(total: int, comm: Communicator) -> slice:
    """Return this rank's share of a number of things."""
    return Layout.split((total,), comm.size).slices(comm.rank)[0]


def _count(options: Options, acquisition: Acquisition, power: np.ndarray, notes: list[str]) -> int:
    """Return how many frequencies to use."""
    if not power.any():
        raise InputError(f"{options.down} holds nothing but zeros: there is nothing to deconvolve with")
    frequencies = acquisition.frequencies
    if options.fmax is None:
        count = frequencies_within(power)
        notes.append(f"frequencies up to {frequencies[count - 1]:.3g} Hz, where the downgoing field ends (--fmax)")
        return count
    if options.fmax > frequencies[-1]:
        raise InputError(f"--fmax {options.fmax:g} is more than the {frequencies[-1]:.4g} Hz that the samples have")
    return int(np.flatnonzero(frequencies <= options.fmax)[-1]) + 1


def _convolution(kernel: np.ndarray, acquisition: Acquisition, comm: Communicator, compute: Engine, dtype: str) -> Any:
    from collops.operators import MDC

    return MDC(
        compute.from_host(kernel.astype(np.result_type(dtype, np.complex64))),
        acquisition.total,
        acquisition.virtual,
        dt=acquisition.interval,
        dr=acquisition.spacing,
        twosided=True,
        saveGt=False,
        model="split",
        data="split",
        comm=comm,
    )


def _distributed(layout: Any, own: np.ndarray, comm: Communicator, compute: Engine, dtype: str) -> Any:
    return DistributedArray(layout, comm, compute.from_host(np.ascontiguousarray(own, dtype=dtype)))
