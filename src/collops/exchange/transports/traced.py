"""JAX arrays: an all-to-all-v of the traced program, between a gather and a scatter.

All three have transposes, so that all transformations of JAX apply; the transpose of a bcast is a reduce. Under ``jit``
the messages are part of the compiled program, and the compiler orders them.
"""

from __future__ import annotations

from collections.abc import Callable

from collops.backend import LocalArray
from collops.exchange.exchange import Exchange, LocalWork, Transfer


class TracedExchange(Exchange):
    """Messages between traced arrays; it owns no memory, and its slots are never occupied."""

    def begin(self) -> Transfer:
        return Transfer(self, 0, 0)

    def starter(self, work: LocalWork) -> Callable[[LocalArray, LocalArray, Transfer], LocalArray]:
        ranks = self.comm.size
        pack, stay = work.packer(0, work.leaving.size), work.stay()
        leaving, arriving = self.pattern.sends.counts(ranks), self.pattern.receives.counts(ranks)

        def start(source: LocalArray, target: LocalArray, transfer: Transfer) -> LocalArray:
            transfer.incoming = self.comm.alltoallv(pack(source, None), leaving, arriving)
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, work: LocalWork) -> Callable[[Transfer, LocalArray], LocalArray]:
        finish, concatenate = super().finisher(work), self.engine.xp.concatenate
        if work.arriving.size:
            return finish
        # The target must depend on the message even if no values arrive: the derivative of the message is collective.
        return lambda transfer, target: concatenate([finish(transfer, target), transfer.incoming])

    def mover(self, work: LocalWork) -> Callable[[LocalArray, LocalArray], LocalArray]:
        return self.mover_in_steps(work)
