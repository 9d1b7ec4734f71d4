"""Plausibility checks of a survey (units, scalars, positions, velocities), and checks of the memory it needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collops.errors import InputError
from collops.extend.applications import check_memory
from collops.seismic.streams import Location
from collops.seismic.survey.geometry import Geometry, Grid

if TYPE_CHECKING:
    from collops import Communicator
    from collops.extend.engines import Engine
    from collops.seismic.survey.velocity import Model

__all__ = ["check_frequency", "check_speed", "table_factor", "too_many_traces"]

FACTORS = (1, 2, 4, 8)
"""Factors of coarser tables, in the order in which they are tried; see :meth:`Survey.operator`."""

_IMAGES = 8  # number of images in the memory of a rank in addition to its tables
# Copies of the traces that a migration needs: conditioned, muted and weighted traces, and the vectors of the solver.
_COPIES, _COPIES_ON_DEVICE = 20, 8

# P waves travel at 100 m/s and more in the driest sand, at less than 10 km/s in the crust and the upper mantle.
_SLOWEST, _FASTEST = 100.0, 10_000.0
_DOUBTFUL = 4500.0  # m/s: water has 4900 feet per second
# A shorter line has hardly any lateral resolution; a wrong scalar of the coordinates is the likelier reason.
_FEW_WAVELENGTHS, _FEW_COLUMNS = 2, 4
_MIN_OFFSET = 10.0  # m; headers hold integers, so that shorter offsets are too coarse to compare


class Terms(NamedTuple):
    """Names of the fields of a file format, for error messages that say how to correct them."""

    positions: str  # of sources and receivers
    offsets: str
    units: str  # of the positions
    dead: str  # instruction how to exclude traces


def refuse_stack(path: Location) -> None:
    """Raise `InputError` for a file that holds stacked traces, or a model, instead of shots."""
    raise InputError(
        f"{path} must hold shots, not stacked traces or a model (one trace per shot, without offset): pass the "
        "prestack file, or invert a stack with collops poststack or reflectivity"
    )


def check_positions(
    path: Location, source: np.ndarray, group: np.ndarray, offset: np.ndarray, shots: int, terms: Terms
) -> list[str]:
    """Compare positions with each other and with the offsets in the file; return warnings.

    `source` and `group` have the shape ``(2, traces)``, easting and northing, and `offset` ``(traces,)``, in metres.
    """
    distance, offset = np.hypot(*(group - source)), np.abs(offset)
    both = np.concatenate([source, group], axis=1)
    missing = ~both.any(axis=0)
    complete = both[:, ~missing]
    # Coordinates so far from all others can only be missing values.
    absent = missing.any() and np.hypot(*complete).min() > 10 * np.hypot(*np.ptp(complete, axis=1)) > 0
    if shots == len(offset) > 1 and not offset.any() and (absent or not distance.any()):
        refuse_stack(path)
    if absent:
        trace = int(np.flatnonzero(missing)[0]) % len(offset) + 1
        raise InputError(
            f"{path} has coordinates 0, 0 at live trace {trace} and {int(missing.sum()) - 1} other stations, far from "
            f"all others: fill in {terms.positions}, or {terms.dead}"
        )
    known = offset >= _MIN_OFFSET
    if not known.any():
        return []
    ratio, typical = float(np.median(distance[known] / offset[known])), float(np.median(offset[known]))
    power = 10.0 ** np.round(np.log10(ratio)) if ratio else 0.0
    text = f"{terms.offsets} of typically {typical:g} m, but its coordinates give {ratio:.3g} times as much"
    if power != 1 and abs(ratio - power) <= 0.1 * power:
        raise InputError(
            f"{path} has {text}: correct the {terms.units}, or the offsets, or set these to 0 if they are unknown"
        )
    return [] if 0.5 < ratio < 2 else [f"{path} has {text}, which is used: check the units"]


def check_speed(model: Model, name: str) -> list[str]:
    """Raise `InputError` if velocities cannot be in metres per second; return warnings if the unit is doubtful."""
    from collops.seismic.survey.velocity import Gradient

    if isinstance(model, Gradient):
        mean = lowest = model.surface
    else:
        velocity = model if isinstance(model, np.ndarray) else model.velocity
        mean, lowest = float(velocity.mean()), float(velocity.min())
    what = f"the velocity {name} is {mean:g} m/s" + ("" if isinstance(model, Gradient) else " on average")
    if mean < _SLOWEST:
        raise InputError(f"{what}, slower than any rock: convert it to metres per second (1 km/s is 1000 m/s)")
    if mean > _FASTEST:
        raise InputError(f"{what}, faster than any rock: convert it to metres per second (1 ft/s is 0.3048 m/s)")
    return [f"{what}, nowhere below {lowest:g}: is it in feet per second?"] if lowest > _DOUBTFUL else []


def check_frequency(frequency: float, geometry: Geometry) -> None:
    """Raise `InputError` unless the record holds two periods of the wavelet, and a period two samples."""
    lowest, highest = 2 / (geometry.samples * geometry.interval), 0.5 / geometry.interval
    if lowest >= highest:
        raise InputError(f"traces need at least 5 samples for a wavelet, not {geometry.samples}")
    if not lowest <= frequency < highest:
        raise InputError(
            f"a wavelet of {frequency:g} Hz does not fit {geometry.samples} samples of {geometry.interval * 1e3:g} ms: "
            f"choose a --frequency of {lowest:.3g} to {highest:g} Hz"
        )


def check_reach(geometry: Geometry, grid: Grid, velocity: np.ndarray, frequency: float) -> list[str]:
    """Raise `InputError` if no wave reaches any receiver within the record; return warnings about distances."""
    distances = np.concatenate(
        [np.linalg.norm(r - s[:, None], axis=0) for r, s in zip(geometry.receivers, geometry.sources.T, strict=True)]
    )
    fastest, end = float(velocity.max()), float(geometry.times[-1])
    late = float((distances > fastest * end).mean())
    remedy = "check the units of the coordinates (in SEG-Y their scalar, bytes 71 to 72), and the velocity"
    far = f"further from their sources than a wave of {fastest:g} m/s travels within the record of {end:g} s"
    if late == 1:
        raise InputError(f"all receivers are {distances.min():g} m or more, {far}: {remedy}")
    wavelength = float(np.median(velocity)) / frequency
    warnings = [f"{100 * late:.0f} % of the receivers are {far}: {remedy}"] if late > 0.5 else []
    low, high = geometry.bounds
    length = float(np.ptp([low, high], axis=0)[:-1].max())
    if length < max(_FEW_WAVELENGTHS * wavelength, _FEW_COLUMNS * grid.dx):
        warnings.append(
            f"all stations lie within {length:.3g} m, which are {length / wavelength:.2g} wavelengths of "
            f"{wavelength:.3g} m and {length / grid.dx:.2g} columns of {grid.dx:.3g} m: check the units of the "
            "coordinates (are they in degrees?), and their scalar (in SEG-Y bytes 71 to 72)"
        )
    if grid.dx > 4 * wavelength:
        warnings.append(
            f"image columns are {grid.dx:g} m apart, more than 4 wavelengths of {wavelength:.3g} m: choose a smaller "
            "--dx, or check the units of the coordinates (in SEG-Y their scalar, bytes 71 to 72)"
        )
    return warnings


def table_factor(
    grid: Grid,
    stations: int,
    dtype: np.dtype,
    comm: Communicator,
    fields: int = 0,
    factors: Sequence[int] = FACTORS,
    compute: Engine | None = None,
    parts: int = 1,
) -> int:
    """Return the first factor with which the tables of `stations` stations fit into the memory of this rank.

    A station has a table of travel times and `fields` tables of weights, in host memory and in the memory of the
    engine `compute`. If the image is split into `parts`, a rank has one part of the tables, and of the images on a
    device. Raises `InputError` if no factor fits.
    """
    from collops.seismic.kirchhoff.nodes import Nodes

    shape, tables = " x ".join(map(str, grid.shape)), "travel times and weights" if fields else "travel times"
    remedy = "a smaller --nx or --nz" if grid.ny is None else "larger --dx, --dy and --dz, or --dims 2"
    what = f"the {tables} of {stations} stations on an image of {shape} points"

    def check(factor: int) -> None:
        tables, images = (1 + fields) * stations * Nodes(grid.shape, factor).size // parts, _IMAGES * grid.points
        on_device = compute is not None and compute.memory == "device"
        for engine, points in ((None, images), (compute, images // parts if on_device else images)):
            check_memory((tables + points) * dtype.itemsize, what, f"choose {remedy}", engine, comm.local_size)

    for factor in factors[:-1]:
        with suppress(InputError):
            check(factor)
            return factor
    check(factors[-1])
    return factors[-1]


def too_many_traces(samples: int, dtype: np.dtype, comm: Communicator, compute: Engine, margin: int) -> str | None:
    """Return a sentence if `samples` samples of this rank's traces do not fit into the memory, else None.

    Travel times need additional memory, `margin` times the memory of the traces.
    """
    what = "the traces of a rank, with the vectors of the solver,"
    what = what if not margin else f"{what[:-1]} and {margin} times as much for travel times,"
    try:
        for copies, engine in ((_COPIES, None), (_COPIES_ON_DEVICE, compute)):
            needed = (1 + margin) * copies * samples * dtype.itemsize
            check_memory(needed, what, "they are read from the file when needed", engine, comm.local_size)
    except InputError as problem:
        return str(problem)
    return None
