"""The fingerprint of a problem, which a checkpoint holds: method, options, and a few numbers of data and operator.

The numbers are the same to rounding in every layout, on every engine and on any number of ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from collops.array import dots, random
from collops.operators import LinearOperator
from collops.solvers.problem import rank_consistent, real_dtype, working_dtype

__all__ = ["difference", "fingerprint"]

_SEED = 5


def fingerprint(method: Any, operator: Any, data: Any, x0: Any) -> dict[str, Any]:
    """Return the fingerprint of a problem, as JSON can hold it. Collective.

    The operator is applied once, to random numbers.
    """
    mark = None
    if operator is not None:
        dtype = working_dtype(operator, data, None)
        probe = random(operator.domain, seed=_SEED, comm=data.comm, dtype=dtype, engine=data.engine)
        mark = {"domain": _shapes(operator.domain), **_numbers_of(operator.forward(probe))}
    return {
        "method": method.name,
        "options": _options(method),
        "data": _numbers_of(data),
        "start": None if x0 is None else _numbers_of(x0),
        "operator": mark,
    }


def difference(saved: Mapping[str, Any], present: Mapping[str, Any], iteration: int) -> str | None:
    """Return how two fingerprints differ in words, or ``None`` if they are of one problem.

    Parameters
    ----------
    saved, present : dict
        Of the checkpoint, and of the solver that is to resume from it.
    iteration : int
        Iterations done: of options that are given for each iteration, only those that were used must be the same.
    """
    if saved["method"] != present["method"]:
        return f"it is one of {saved['method']}, not of {present['method']}"
    name = present["data"]["dtype"]
    if saved["data"]["dtype"] != name:
        return f"its precision is {saved['data']['dtype']}, not {name}"
    tolerance = float(np.sqrt(np.finfo(real_dtype(np.dtype(name))).eps)) if name != "bfloat16" else 1e-2
    for what in ("data", "operator", "start"):
        if not _alike_numbers(saved[what], present[what], tolerance):
            return f"{_WORDS[what]} others"
    for option, value in present["options"].items():
        before = saved["options"].get(option)
        if not _alike(before, value, tolerance, iteration):
            return f"its option {option} is {before}, not {value}"
    return None


_WORDS = {"data": "its data are", "operator": "its operator is that of", "start": "its starting point is that of"}


def _numbers_of(array: Any) -> dict[str, Any]:
    """Return shape, dtype, norm and a random projection of an array. Collective."""
    dtype = array.dtype if array.dtype.kind in "fcV" else np.dtype(np.float64)
    together = rank_consistent(array)
    other = rank_consistent(random(array.layout, seed=_SEED + 1, comm=array.comm, dtype=dtype, engine=array.engine))
    square, projection = dots((together, together), (other, together))
    value = complex(array.engine.to_host(projection))
    return {
        "shapes": _shapes(array.layout),
        "dtype": array.dtype.name,
        "norm": float(np.sqrt(abs(complex(array.engine.to_host(square))))),
        "projection": [value.real, value.imag],
    }


def _shapes(layout: Any) -> list[list[int]]:
    return [list(leaf.shape) for leaf in getattr(layout, "leaves", (layout,))]


def _alike_numbers(saved: Any, present: Any, tolerance: float) -> bool:
    if saved is None or present is None:
        return saved is present
    if saved["shapes"] != present["shapes"] or saved.get("domain") != present.get("domain"):
        return False
    limit = 4 * tolerance * max(saved["norm"], present["norm"])
    numbers = zip([saved["norm"], *saved["projection"]], [present["norm"], *present["projection"]], strict=True)
    return all(abs(before - now) <= limit for before, now in numbers)


def _options(method: Any) -> dict[str, Any]:
    """Return the options that determine the iterates."""
    if not dataclasses.is_dataclass(method):
        return {}
    names = [field.name for field in dataclasses.fields(method) if field.name not in getattr(method, "tolerances", ())]
    return {name: _plain(getattr(method, name)) for name in names}


def _plain(value: Any) -> Any:
    """Return an option as JSON can hold it; the type and the shapes of an operator or array."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex):
        return [value.real, value.imag]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(part) for part in value]
    if isinstance(value, LinearOperator):
        return f"{type(value).__name__} from {_shapes(value.domain)} to {_shapes(value.range)}"
    if hasattr(value, "leaves"):
        return f"array of {_shapes(value.layout)}"
    if dataclasses.is_dataclass(value):
        return _options(value)
    parts = {name: _plain(part) for name, part in vars(value).items() if _is_part(part)}
    return {"type": type(value).__name__, **parts}


def _is_part(value: Any) -> bool:
    """Return whether this is a part of a function or of a series of step sizes: numbers, or another function."""
    return isinstance(value, float | list) or type(value).__module__.startswith("collops.solvers.proximal")


def _alike(saved: Any, present: Any, tolerance: float, iteration: int) -> bool:
    if isinstance(present, bool | str | None) or isinstance(saved, bool | str | None):
        return saved == present
    if isinstance(present, int | float) and isinstance(saved, int | float):
        return abs(saved - present) <= tolerance * max(abs(saved), abs(present))
    if isinstance(present, Mapping) and isinstance(saved, Mapping):
        return saved.keys() == present.keys() and all(
            _alike(saved[name], present[name], tolerance, iteration) for name in present
        )
    if isinstance(present, list) and isinstance(saved, list):
        shorter = min(len(saved), len(present))
        used = zip(saved[:iteration], present[:iteration], strict=False)
        enough = len(saved) == len(present) or shorter >= iteration
        return enough and all(_alike(before, now, tolerance, iteration) for before, now in used)
    return False
