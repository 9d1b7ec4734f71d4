"""Stacks of diagonals, whose local work is next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from collops_bench.operators.case import Case
from collops_bench.operators.sizes import sizes_of
from collops_bench.peers import Peer
from collops_bench.registry import Context
from collops.operators import BlockDiag, HStack, VStack

__all__ = ["cases"]

_STACKS = {"VStack": (VStack, ("model",)), "HStack": (HStack, ("data",)), "BlockDiag": (BlockDiag, ())}


def cases(context: Context) -> Iterator[Case]:
    """Yield every stack in every size."""
    from pylops import Diagonal

    for size in sizes_of(context):
        values = np.random.default_rng(context.comm.rank).standard_normal(size.elements).astype(size.dtype)
        local = Diagonal(context.engine.from_host(values), dtype=size.dtype)
        for name, (stack, replicated) in _STACKS.items():
            yield Case(
                f"{name} of diagonals",
                {"elements_per_rank": size.elements, "dtype": size.dtype},
                stack([local], comm=context.comm),
                partial(_of_peer, name=name, local=local),
                dtype=size.dtype,
                plan=size.plan,
                replicated=replicated,
            )


def _of_peer(peer: Peer, name: str, local: Any) -> Any:
    return getattr(peer.module, f"MPI{name}")(ops=[local])
