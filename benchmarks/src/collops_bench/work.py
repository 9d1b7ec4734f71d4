"""What an iteration has to do, on any number of ranks: what is measured, and what predictions are made of."""

from __future__ import annotations

from typing import Any

from collops_bench.predict import Work

__all__ = ["ALLREDUCE", "EXCHANGE", "cgls", "jacobi", "migration", "parameters_of", "sparse", "work_of"]

ALLREDUCE, EXCHANGE = "allreduce", "exchange"
_ITEM = 4  # bytes of a float32
_BLOCK = 8  # sweeps between two passages of the variant "blocked" through memory


def migration(points: int, shots: int, receivers: int, samples: int, ranks: int) -> Work:
    """Return the work of CGLS over modelling: operations are image points times traces, both ways."""
    traces = -(-shots // ranks) * receivers
    return Work(ranks, 2 * points * traces, 2 * _ITEM * traces * samples, _sums(points, ranks))


def cgls(rows: int, columns: int, ranks: int) -> Work:
    """Return the work of CGLS over a matrix whose rows are spread over the ranks."""
    most = -(-rows // ranks)
    return Work(ranks, 4 * most * columns, 2 * _ITEM * most * columns, _sums(columns, ranks))


def _sums(unknowns: int, ranks: int) -> list[tuple[str, float, float]]:
    """Return what an iteration of CGLS sends: the model that every rank has a part of, and two numbers."""
    return [(ALLREDUCE, 1, _ITEM * unknowns), (ALLREDUCE, 2, 2 * _ITEM)] if ranks > 1 else []


def sparse(side: int, planes: int, ranks: int) -> Work:
    """Return the work of a product with the 27-point stencil on a cube whose planes are spread over the ranks."""
    most = -(-planes // ranks)
    entries = most * 3 * (3 * side - 2) ** 2
    # Values and columns of the entries, and both vectors.
    nbytes = 2 * _ITEM * entries + 2 * _ITEM * most * side * side
    return Work(ranks, 2 * entries, nbytes, [(EXCHANGE, 1, _ITEM * side * side)] if ranks > 1 else [])


def jacobi(nx: int, ny: int, ranks: int, *, blocked: bool = False) -> Work:
    """Return the work of a sweep of Jacobi's method; blocked, it passes through memory with every eighth only."""
    points = nx * -(-ny // ranks)
    halo = [(EXCHANGE, 1 / _BLOCK if blocked else 1, _ITEM * nx * (_BLOCK if blocked else 1))]
    return Work(ranks, points, 2 * _ITEM * points / (_BLOCK if blocked else 1), halo if ranks > 1 else [])


def parameters_of(work: Work) -> dict[str, Any]:
    """Return work as the parameters of a measurement have it."""
    return {
        "operations": work.operations,
        "bytes": work.nbytes,
        "messages": [[kind, count, size] for kind, count, size in work.messages],
    }


def work_of(parameters: Any, ranks: int) -> Work:
    """Return the work that the parameters of a measurement describe."""
    messages = [(kind, count, size) for kind, count, size in parameters["messages"]]
    return Work(ranks, parameters["operations"], parameters["bytes"], messages)
