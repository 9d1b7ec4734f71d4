"""The exchange of the halos of tiles, in place."""

from __future__ import annotations

from collops import Communicator, ExchangePlan, Layout
from collops.extend.arrays import Box, LocalArray, transfers
from collops.seismic.waves.grid import Tile


class TileHalos:
    """Fill the halos of a field from neighbouring tiles. Collective: all ranks of the tiles make it.

    Parameters
    ----------
    tiles : sequence of Tile
        The tiles of all ranks of `comm`.
    layout : Layout
        Layout of the model over the ranks of `comm`.
    comm : Communicator
        The ranks of one group of tiles.
    fields : tuple of int
        Number of coupled fields, as the first axis of the array; empty for one field.
    """

    def __init__(self, tiles: list[Tile], layout: Layout, comm: Communicator, fields: tuple[int, ...]) -> None:
        own = tiles[comm.rank]
        missing = 3 - len(own.grid.shape)
        sizes = [[0] * len(blocks) for blocks in layout.sizes]
        for rank, tile in enumerate(tiles):
            for axis, (grid_axis, place) in enumerate(zip(layout.axes, tile.inner[missing:], strict=True)):
                sizes[axis][0 if grid_axis is None else layout.coordinates(rank)[grid_axis]] = place
        padded = Layout(own.grid.padded, comm.size, layout.process_grid, layout.axes, sizes)
        halo = [width if axis in layout.split_axes else 0 for axis, width in enumerate(own.halo[missing:])]

        def regions(rank: int) -> list[tuple[tuple[int, int], ...]]:
            parts = padded.slices(rank)
            return [tuple((part.start - w, part.stop + w) for part, w in zip(parts, halo, strict=True))]

        moves = transfers(padded, comm.rank, regions)
        # Boxes are relative to the tile in sends, and to the region in receives.
        all_fields = tuple(slice(0, n) for n in fields)
        sends = [(peer, all_fields + _moved(box, own.halo)) for peer, _, box in moves.sends if peer != comm.rank]
        beside = [width - w for width, w in zip(own.halo[missing:], halo, strict=True)]
        receives = [
            (peer, all_fields + _moved(box, (*own.halo[:missing], *beside)))
            for peer, _, box in moves.receives
            if peer != comm.rank
        ]
        self._plan = ExchangePlan(comm, sends, receives, travels=moves.travels)

    @property
    def recordable(self) -> bool:
        """Whether a CUDA graph can record the exchange of arrays on a device: messages of NCCL, not of MPI."""
        return self._plan.comm.device_transport == "nccl"

    def __call__(self, field: LocalArray) -> LocalArray:
        """Return a field with its halo filled, in place unless it is an array of JAX. Collective: one exchange."""
        return self._plan(field, field)


def _moved(box: Box, by: tuple[int, ...]) -> Box:
    """Return a box of the axes of the grid in an array of three axes, moved by the halo."""
    full = (slice(0, 1),) * (3 - len(box)) + tuple(box)
    return tuple(slice(part.start + width, part.stop + width) for part, width in zip(full, by, strict=True))
