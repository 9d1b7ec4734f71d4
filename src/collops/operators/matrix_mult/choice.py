r"""The choice of algorithm and process grid for products of matrices, by a performance model.

A rank of a grid of :math:`p \times q` multiplies :math:`N/p \times K` by :math:`K \times M/q` in either direction with
every algorithm: the product takes the time of its operations or of reading its factors, whichever is longer. The
algorithms differ in the elements that a rank receives, see :class:`MatrixMult`.

The time of a message is a latency plus its bytes over a bandwidth. The rates are constants for a GPU with NVLink and
for a core of a host: the choice depends on their ratios only. Between two H100, for six sizes from 1000 x 1000 x 10 to
16384 x 16384 x 4096, the model chose the fastest measured algorithm and grid, or one within 3 % of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

_MAX_KEPT = 128 << 20  # bytes: maximum size of a rank's rows of the matrix for gathering them once
_ROUND = 128 << 20  # maximum bytes received in a round; on two H100, rounds of 20 MiB were slower than one
_SPARED = 128 << 20  # bytes: replicas of matrix and model up to this size are disregarded
_EQUAL = 1.05  # accuracy of the model


class Rates(NamedTuple):
    """Latency in seconds; bytes received, operations, and bytes read per second."""

    latency: float
    bandwidth: float
    operations: float
    memory: float


_RATES = {"device": Rates(15e-6, 2e11, 4.5e13, 2.5e12), "host": Rates(10e-6, 4e9, 4e10, 1e10)}


class Choice(NamedTuple):
    """An algorithm and a process grid."""

    kind: str
    grid: tuple[int, int]


class Problem(NamedTuple):
    """A matrix of N x K times a model of K x M, the bytes of an element, and ``"host"`` or ``"device"``."""

    n: int
    k: int
    m: int
    itemsize: int
    memory: str


def keeps_rows(choice: Choice, problem: Problem) -> bool:
    """Return whether a rank stores its complete rows of the matrix, which then need no messages."""
    p, q = choice.grid
    return q == 1 or -(-problem.n // p) * problem.k * problem.itemsize <= _MAX_KEPT


def rounds_for(choice: Choice, problem: Problem) -> int:
    """Return the number of rounds of SUMMA."""
    return max(1, ceil(_received(choice, problem) / 2 / _ROUND))


def fastest(choices: Iterable[Choice], problem: Problem) -> Choice:
    """Return the choice with the least time for forward and adjoint.

    Among equally fast choices, the least memory decides, and then the fewest bytes received. Choices that need more
    than twice the memory of an even split over all ranks, plus 128 MiB, are excluded.
    """
    n, k, m, itemsize, _ = problem
    candidates = list(choices)

    def held(choice: Choice) -> float:
        p, q = choice.grid
        if choice.kind == "block":
            return (n / p * k + k * m / q + n * m / (p * q)) * itemsize
        stores_rows = keeps_rows(choice, problem)
        return (n / p * k / (1 if stores_rows else q) + (k * m + n * m) / (p * q)) * itemsize

    ranks = candidates[0].grid[0] * candidates[0].grid[1]
    split = (n * k + k * m + n * m) / ranks * itemsize
    small = [choice for choice in candidates if held(choice) <= max(2 * split, split + _SPARED)] or candidates
    times = {choice: seconds(choice, problem) for choice in small}
    least = min(times.values())

    def rank(choice: Choice) -> tuple[float, float]:
        return round(held(choice)), _received(choice, problem)

    return min((choice for choice in small if times[choice] <= _EQUAL * least), key=rank)


def seconds(choice: Choice, problem: Problem) -> float:
    """Return the modelled time of forward and adjoint together."""
    (p, q), (n, k, m, itemsize, memory) = choice.grid, problem
    rates = _RATES[memory]
    rows, columns = -(-n // p), -(-m // q)
    read = (rows * k + k * columns + rows * columns) * itemsize
    product = max(2 * rows * k * columns / rates.operations, read / rates.memory)
    if choice.kind == "block":
        return 2 * product + (p > 1) * rates.latency + _received(choice, problem) / rates.bandwidth
    number = rounds_for(choice, problem)
    messages = number * ((p > 1) + (not keeps_rows(choice, problem))) * rates.latency
    messages += _received(choice, problem) / 2 / rates.bandwidth
    exposed = min(product, messages) / (number if memory == "device" else 1)
    return 2 * (max(product, messages) + exposed)


def _received(choice: Choice, problem: Problem) -> float:
    """Return the bytes that a rank receives in forward and adjoint together; in SUMMA, half in each direction."""
    (p, q), (n, k, m, itemsize, _) = choice.grid, problem
    model = 2 * (p - 1) / p * k * -(-m // q)
    sends_matrix = choice.kind == "summa" and not keeps_rows(choice, problem)
    return (model + (2 * (q - 1) / q * k * -(-n // p) if sends_matrix else 0)) * itemsize
