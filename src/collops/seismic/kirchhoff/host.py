"""The kernels of the Kirchhoff operator for host memory, in Numba or plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from collops.seismic.host_kernels import uses_numba
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.weights import Bands, Weights


def kernels(
    tables: FixedTables,
    filters: dict[str, Any],
    _dims: tuple[int, ...],
    *,
    name: str | None,
    threads: int | None,
    deterministic: bool,
) -> Any:
    """Return the kernels of a :class:`LocalKirchhoff`, in Numba if it is installed. They are always `deterministic`.

    Forward and adjoint also accept several images, one after the other.
    """
    if uses_numba(name, "Kirchhoff operators run"):
        from collops.seismic.kirchhoff.cpu import NumbaKernels

        return NumbaKernels(tables, **filters, threads=threads)
    return _NumpyKernels(tables, **filters)


class _NumpyKernels:
    """Forward and adjoint in plain NumPy, one trace at a time: without Numba, and as a reference in tests."""

    def __init__(
        self, tables: FixedTables, wavelets: np.ndarray, center: int, weights: Weights | None, bands: Bands | None
    ) -> None:
        from scipy.signal import oaconvolve

        self._convolve = oaconvolve
        self._tables, self._weights, self._bands = tables, weights, bands
        self._wavelets, self._center = wavelets, center
        self._size = (len(wavelets), tables.scale.samples)  # of a trace: a row for each band

    def forward(self, images: np.ndarray, traces: np.ndarray) -> None:
        """Demigrate an image, or several one after the other, into traces."""
        rows, samples = self._size
        images, traces = self._columns(images, traces)
        for number, (points, index, fraction, weight) in enumerate(self._arrivals()):
            for image, trace in zip(images, traces[:, number], strict=True):
                values = image[points] * weight
                far = values * fraction
                raw = np.bincount(index, values - far, rows * samples) + np.bincount(index + 1, far, rows * samples)
                full = self._convolve(raw.reshape(self._size), self._wavelets, axes=1).sum(axis=0)
                trace[...] = full[self._center : self._center + samples]

    def adjoint(self, traces: np.ndarray, images: np.ndarray) -> None:
        """Migrate traces into an image, or into several one after the other."""
        samples = self._size[1]
        images, traces = self._columns(images, traces)
        totals = np.zeros(images.shape)
        first = self._wavelets.shape[1] - 1 - self._center
        for number, (points, index, fraction, weight) in enumerate(self._arrivals()):
            for total, trace in zip(totals, traces[:, number], strict=True):
                full = self._convolve(np.broadcast_to(trace, self._size), self._wavelets[:, ::-1], axes=1)
                filtered = full[:, first : first + samples].ravel()
                total[points] += weight * (filtered[index] * (1 - fraction) + filtered[index + 1] * fraction)
        images[...] = totals

    def _columns(self, images: np.ndarray, traces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return views of both, (columns, points) and (columns, traces, samples)."""
        tables = self._tables
        images = images.reshape(-1, tables.nodes.points)
        return images, traces.reshape(len(images), len(tables.sources) * len(tables.receivers), self._size[1])

    def _arrivals(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | float]]:
        """Yield for each trace its image points, the sample before each arrival, the fraction after it, the weight."""
        tables, weights, bands = self._tables, self._weights, self._bands
        scale, nodes = tables.scale, tables.nodes
        mask = (1 << scale.fraction_bits) - 1
        nearest = None if bands is None else nodes.nearest()
        fields = (
            {}
            if weights is None
            else {
                row: nodes.refine(weights.fields[row]) for row in {*tables.sources.tolist(), *tables.receivers.tolist()}
            }
        )
        back = [tables.station_times(row) for row in tables.receivers]
        for source in tables.sources:
            outward = tables.station_times(source)
            for number, receiver in enumerate(tables.receivers):
                time = outward + back[number]
                index = time >> scale.fraction_bits
                points = np.flatnonzero((index >= 0) & (index < scale.samples - 1))
                fraction = np.ldexp((time[points] & mask).astype(float), -scale.fraction_bits)
                weight = 1.0 if weights is None else weights.pair_weight(fields[source], fields[receiver])[points]
                if bands is not None:
                    index = index + bands.choice[bands.receivers[number]][nearest].astype(index.dtype) * scale.samples
                yield points, index[points], fraction, weight
