"""What each engine does with numbers that programs rarely think of, as words: the cells of a table of the design.

An engine is a set of functions of NumPy arrays. They call what programs call: this package's kernels, or CuPy and JAX
themselves. A word is found by an experiment whose outcomes differ in bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import collops
from collops.comm import alone

__all__ = ["NONE", "PROPERTIES", "Functions", "of_collops", "of_jax", "row_of_the_table", "words"]

NONE = "by NumPy"
"""The word for a function that an engine leaves to NumPy."""
PAGE = Path(__file__).parents[1] / "docs" / "design.md"
_COUNT = 5000  # more than float16 can count one by one


class Functions(NamedTuple):
    """The functions of an engine; ``None`` where NumPy does the work."""

    axpby: Callable[[float, np.ndarray, float, np.ndarray], Any]  # a x + b y
    dot: Callable[[np.ndarray, np.ndarray], Any]
    divide: Callable[[np.ndarray, np.ndarray], Any] | None
    largest: Callable[[np.ndarray], Any] | None
    total: Callable[[np.ndarray], Any] | None
    size: int = 1000  # of vectors


def of_collops(engine: str, **others: Any) -> Functions:
    """Return the functions of this package's arrays on one process; `others` replace some of them."""

    def array(values: np.ndarray) -> Any:
        return collops.from_global(values, comm=alone(), engine=engine)

    def on_host(x: Any) -> np.ndarray:
        return x.engine.to_host(x.local_array)

    found = Functions(
        axpby=lambda a, x, b, y: on_host(collops.axpby(float(a), array(x), float(b), array(y))),
        dot=lambda x, y: float(array(x).dot(array(y))),
        divide=lambda x, y: on_host(array(x) / array(y)),
        largest=lambda x: float(array(x).norm(np.inf)),
        total=lambda x: float(array(x).dot(array(np.ones_like(x)))),
    )
    return found._replace(**others)


def of_jax() -> Functions:
    """Return the functions of compiled programs of JAX on its default device."""
    import jax

    numpy = jax.numpy
    return Functions(
        axpby=jax.jit(lambda a, x, b, y: a * x + b * y),
        dot=jax.jit(lambda x, y: numpy.dot(x, y, precision="highest")),
        divide=jax.jit(numpy.divide),
        largest=jax.jit(numpy.max),
        total=jax.jit(numpy.sum),
    )


def _subnormal(functions: Functions) -> str:
    tiny = np.full(functions.size, 1e-40, np.float32)
    result = np.asarray(functions.axpby(np.float32(1), tiny, np.float32(1), tiny))
    return {True: "kept", False: "zero"}[bool((result == tiny + tiny).all())]


def _roundings(functions: Functions) -> str:
    """Subtract the square of 1 + 2^-12, which is rounded by 2^-24, from itself: a fused one is not rounded."""
    a = np.float32(1 + 2**-12)
    x = np.full(functions.size, a)
    result = abs(np.asarray(functions.axpby(a, x, -a, x.copy())))
    return {0.0: "three roundings", 2.0**-24: "two roundings"}[result.max()]


def _division(functions: Functions) -> str:
    if functions.divide is None:
        return NONE
    x, y = np.random.default_rng(0).uniform(1, 2, (2, 100_000)).astype(np.float32)
    right = (x.astype(np.float64) / y).astype(np.float32)
    wrong = abs(np.asarray(functions.divide(x, y)).view(np.int32) - right.view(np.int32)).max()
    return "rounded correctly" if wrong == 0 else "within two units" if wrong <= 2 else f"{wrong} units off"


def _nan(functions: Functions) -> str:
    if functions.largest is None:
        return NONE
    found = []
    for place in (0, 500, 999):
        x = np.ones(1000, np.float32)
        x[place] = np.nan
        found.append(bool(np.isnan(functions.largest(x))))
    return "NaN" if all(found) else "a number"


def _half(functions: Functions) -> str:
    if functions.total is None:
        return NONE
    return "in float32" if float(functions.total(np.ones(_COUNT, np.float16))) == _COUNT else "in float16"


def _same_bits(functions: Functions) -> str:
    x, y = np.random.default_rng(1).standard_normal((2, max(functions.size, 30_000))).astype(np.float32)
    return "the same bits" if len({float(functions.dot(x, y)) for _ in range(10)}) == 1 else "other bits"


PROPERTIES: dict[str, Callable[[Functions], str]] = {
    "subnormal numbers": _subnormal,
    "`a * x + b * y` in one call": _roundings,
    "`x / y`": _division,
    "NaN in `max`": _nan,
    "sums of float16": _half,
    "`dot`, run again": _same_bits,
}
"""The columns of the table."""


def words(functions: Functions) -> list[str]:
    """Return the row of an engine."""
    return [find(functions) for find in PROPERTIES.values()]


def row_of_the_table(engine: str) -> list[str]:
    """Return what the design says of an engine."""
    text = PAGE.read_text("utf-8")
    assert f"| engine | {' | '.join(PROPERTIES)} |" in text
    (row,) = re.findall(rf"^\| {re.escape(engine)} \| (.*) \|$", text, re.M)
    return row.split(" | ")
