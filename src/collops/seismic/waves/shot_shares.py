"""The sharing of shots among ranks by their cost."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.seismic.real_numbers import finite_array


def share_by_cost(costs: ArrayLike, ranks: int) -> list[list[int]]:
    r"""Share shots among ranks such that the most expensive share is cheap. Sends nothing.

    Shots are given away in the order of falling costs, each to the rank with the least so far: the most expensive share
    costs at most 4/3 of the smallest possible one [1]_.

    Parameters
    ----------
    costs : array
        A nonnegative number for each shot, for example the grid points of its model times its time steps.
    ranks : int
        Number of ranks.

    Returns
    -------
    list of list of int
        The shots of each rank, in rising order. Ranks may have none.

    Raises
    ------
    InputError
        If costs are not a sequence of finite nonnegative numbers, or `ranks` is not a positive integer.

    References
    ----------
    .. [1] Graham, R. L., "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2),
       416-429, 1969.

    Examples
    --------
    >>> from collops.seismic.waves import share_by_cost
    >>> share_by_cost([5.0, 1.0, 3.0, 1.0, 2.0], 2)
    [[0, 1], [2, 3, 4]]
    """
    values = finite_array("costs", costs)
    try:
        count = operator.index(ranks)
    except TypeError as error:
        raise InputError(f"the number of ranks must be an integer, not {ranks!r}") from error
    if values.ndim != 1 or not (values >= 0).all():
        raise InputError(f"costs must be a sequence of numbers of at least 0, not {costs!r}")
    if count < 1:
        raise InputError(f"the number of ranks must be at least 1, not {count}")
    loads, shares = [(0.0, rank) for rank in range(count)], [[] for _ in range(count)]
    for shot in np.argsort(-values, kind="stable").tolist():
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + float(values[shot]), rank))
        shares[rank].append(shot)
    return [sorted(share) for share in shares]


def consecutive_shares(costs: Sequence[int], ranks: int) -> list[int]:
    """Return how many consecutive shots each rank gets, such that the most expensive share is as cheap as possible.

    Shares are even, the first ones larger by one shot, where these are as cheap. Costs are nonnegative integers, so
    that all ranks find the same shares. Sends nothing.
    """
    sums = np.concatenate([[0], np.cumsum(np.asarray(costs, np.int64))])
    even = len(costs) // ranks + (np.arange(ranks) < len(costs) % ranks)
    low, high = 0, int(np.diff(sums[np.cumsum([0, *even])]).max())
    largest = high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _first_shots(sums, ranks, middle)[0] == 0 else (middle + 1, high)
    if low == largest:
        return even.tolist()
    ends, first = [0], _first_shots(sums, ranks, low)
    for rank in range(1, ranks + 1):  # near even costs, but not so few that the rest would cost too much
        ideal = int(np.searchsorted(sums, sums[-1] * rank / ranks))
        reach = int(np.searchsorted(sums, sums[ends[-1]] + low, "right")) - 1
        ends.append(min(max(ideal, first[rank]), reach))
    return _without_idle_ranks(np.diff(ends).tolist())


def _without_idle_ranks(shares: list[int]) -> list[int]:
    """Move the ends of shares such that no rank is idle, if there are enough shots.

    Each shot that moves has a share of its own or belongs to a share that shrinks, so that none becomes more expensive
    than the most expensive one.
    """
    for rank, share in enumerate(shares):
        if share == 0:
            giving = [other for other, count in enumerate(shares) if count > 1]
            if giving:
                nearest = min(giving, key=lambda other: abs(other - rank))
                shares[nearest] -= 1
                shares[rank] += 1
    return shares


def _first_shots(sums: np.ndarray, ranks: int, limit: int) -> list[int]:
    """Return the smallest first shot of each rank with which the shots up to the end cost each rank at most `limit`.

    The last number is the end. The first one is 0 if the shots fit. `sums` has the cost of all shots before each.
    """
    first = [len(sums) - 1]
    for _ in range(ranks):
        first.append(int(np.searchsorted(sums, sums[first[-1]] - limit)))
    return first[::-1]
