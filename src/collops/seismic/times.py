"""Times of samples in a Zarr store, in the conventions of xarray and MDIO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.extend.applications import Url, decoded

__all__ = ["read_times", "unit_of"]

_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}


def unit_of(array: Any) -> str | None:
    """Return the unit of a Zarr array in the convention of xarray or MDIO, or None."""
    unit = array.attrs.get("units", array.attrs.get("unitsV1"))
    if isinstance(unit, Mapping):
        unit = next(iter(unit.values()), None)
    return None if unit is None else str(unit).strip()


def read_times(times: Any, path: Path | Url, samples: int, group: Any) -> tuple[float, float]:
    """Return the interval and the first time in seconds, from the array of all sample times in a Zarr group."""
    # MDIO writes milliseconds, by default without a unit.
    unit = unit_of(times) or ("ms" if "apiVersion" in group.attrs else None)
    if unit not in _SECONDS:
        description = "no unit" if unit is None else f"the unit {unit}"
        raise InputError(f"{path} has {description}: set its attribute units to a unit of time, such as s or ms")
    if getattr(times, "shape", None) != (samples,) or samples < 2:
        raise InputError(f"{path} must hold the times of all {samples} samples (at least two)")
    values = _SECONDS[unit] * decoded(times, path, dtype=np.float64)
    interval = float(values[-1] - values[0]) / (samples - 1)
    if not np.abs(values - values[0] - interval * np.arange(samples)).max() < 0.01 * interval:
        raise InputError(f"{path} must increase by a constant interval: resample the traces")
    # Round to seven digits (milliseconds to a nanosecond): differences of times have rounding errors.
    digits = 6 - math.floor(math.log10(interval))
    return round(interval, digits), round(float(values[0]), digits)
