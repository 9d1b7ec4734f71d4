"""Channels whose every use is agreed upon first, where ``COLLOPS_CHECK`` is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collops.graph.wires.wire import Channel, Motion, Transfer

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["agreed"]


def agreed(channel: Channel, comm: Communicator, **facts: Any) -> Channel:
    """Return a channel whose transfers begin when all ranks want to begin them; without checks, as it was.

    Parameters
    ----------
    channel : Channel
        Newly made.
    comm : Communicator
        The ranks.
    **facts
        What tells this channel from others, the same on all ranks.
    """
    if comm.calls is None:
        return channel
    begin, mover = channel.begin, channel.mover

    def begin_together() -> Transfer:
        comm.announce("star forest", **facts)
        return begin()

    def mover_together(motion: Motion) -> Callable[[Any, Any], None]:
        # One announcement, whether or not this rank's mover is made of a start and an end.
        channel.begin = begin  # pyright: ignore[reportAttributeAccessIssue]
        move = mover(motion)
        channel.begin = begin_together  # pyright: ignore[reportAttributeAccessIssue]

        def move_together(source: Any, target: Any) -> None:
            comm.announce("star forest", **facts)
            move(source, target)

        return move_together

    channel.begin = begin_together  # pyright: ignore[reportAttributeAccessIssue]
    channel.mover = mover_together  # pyright: ignore[reportAttributeAccessIssue]
    return channel
