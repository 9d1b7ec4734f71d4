"""The CUDA kernels of the Kirchhoff operator: compilation, launch shapes and the scratch that they need."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collops.operators.kirchhoff.fixed_point import FixedTables

_BLOCKS_PER_MULTIPROCESSOR = 8  # blocks to have in total for each multiprocessor, so that the last wave is short


@cache
def _module(device: int, double: bool, receivers_per_block: int, sources_per_pass: int) -> Any:
    """Compile kirchhoff.cu for one device, type and unrolling; cached for the life of the process."""
    import cupy

    options = [
        "-std=c++17",
        f"-DRECEIVERS_PER_BLOCK={receivers_per_block}",
        f"-DSOURCES_PER_PASS={sources_per_pass}",
    ]
    if double:
        options.append("-DCOLLOPS_DOUBLE")
    source = Path(__file__).with_name("kirchhoff.cu").read_text(encoding="utf-8")
    with cupy.cuda.Device(device):
        return cupy.RawModule(code=source, options=tuple(options))


class CudaKernels:
    """Forward and adjoint on one device for one set of travel-time tables.

    Nothing is allocated after construction and nothing waits for the device, so that both directions can be captured
    in a CUDA graph. Sums are made by atomic additions: results agree from call to call to rounding, not to the bit.

    Parameters
    ----------
    tables : FixedTables
        The travel times.
    wavelet : numpy.ndarray
        Taps of the wavelet.
    center : int
        Index of the tap at time zero.
    columns, depths : int
        The image is (columns, depths); a 3-D image has ny * nx columns.
    """

    def __init__(
        self,
        tables: FixedTables,
        wavelet: np.ndarray,
        center: int,
        columns: int,
        depths: int,
        *,
        forward_variant: str = "march",
        adjoint_variant: str = "cached",
        receivers_per_block: int = 4,
        sources_per_pass: int = 8,
        segment_columns: int = 32,
        forward_threads: int = 512,
        adjoint_threads: int = 256,
    ) -> None:
        import cupy

        self._cupy = cupy
        self._dtype = tables.scale.dtype
        n_samples = tables.scale.samples
        self._sources, self._receivers = len(tables.sources), len(tables.receivers)
        self._columns, self._depths, self._samples = columns, depths, n_samples
        self._traces = self._sources * self._receivers
        if self._traces == 0:
            return
        self._source_times = cupy.asarray(tables.sources)
        self._receiver_times = cupy.asarray(tables.receivers)
        self._bits = tables.scale.fraction_bits
        self._taps, self._center = len(wavelet), center
        self._wavelet = cupy.asarray(wavelet, dtype=self._dtype)
        self._reversed_wavelet = cupy.ascontiguousarray(self._wavelet[::-1])
        # The traces before the convolution (forward), or after it as pairs (adjoint).
        self._scratch = cupy.zeros(2 * self._traces * n_samples, dtype=self._dtype)

        device = cupy.cuda.Device()
        module = _module(device.id, self._dtype.itemsize == 8, receivers_per_block, sources_per_pass)
        self._forward_variant, self._adjoint_variant = forward_variant, adjoint_variant
        self._forward_kernel = module.get_function(f"forward_{forward_variant}")
        self._adjoint_kernel = module.get_function(f"adjoint_{adjoint_variant}")
        self._convolve = module.get_function("convolve")
        self._pairs_to_traces = module.get_function("traces_from_pairs")

        multiprocessors = device.attributes["MultiProcessorCount"]
        wanted = _BLOCKS_PER_MULTIPROCESSOR * multiprocessors
        shared = device.attributes["MaxSharedMemoryPerBlockOptin"]
        itemsize = self._dtype.itemsize

        # Forward: one block for every (source, group of receivers), part of the image and window of samples.
        groups = self._sources * -(-self._receivers // receivers_per_block)
        window = min(n_samples, shared // (itemsize * receivers_per_block))
        self._segment = min(segment_columns, columns)
        slots = depths * -(-columns // self._segment) if forward_variant != "atomic" else depths * columns
        parts = min(-(-wanted // groups), max(1, slots // forward_threads), 65535)
        self._window = window
        if forward_variant == "global":
            forward_threads = 256
            parts = min(-(-2 * wanted // groups), max(1, slots // forward_threads))
            self._forward_shared = 0
            self._forward_grid = (groups, parts, 1)
        else:
            self._forward_shared = itemsize * receivers_per_block * window * (2 if forward_variant == "pair" else 1)
            self._forward_grid = (groups, parts, -(-n_samples // window))
            self._forward_kernel.max_dynamic_shared_size_bytes = self._forward_shared
        self._forward_block = (forward_threads,)

        # Adjoint: one thread a point; receivers are split until there are enough threads.
        points = columns * depths
        self._adjoint_shared = 0
        if adjoint_variant == "tiled":
            blocks = -(-depths // 32) * -(-columns // (adjoint_threads // 32))
        elif adjoint_variant == "staged":
            adjoint_threads = 512
            blocks = -(-points // (2 * adjoint_threads))
            self._adjoint_shared = 2 * itemsize * sources_per_pass * n_samples
            self._adjoint_kernel.max_dynamic_shared_size_bytes = self._adjoint_shared
        else:
            blocks = -(-points // adjoint_threads)
        resident = wanted if adjoint_variant != "staged" else 4 * multiprocessors
        parts = min(max(1, -(-2 * resident // blocks)), self._receivers)
        self._receivers_per_part = -(-self._receivers // parts)
        self._adjoint_grid = (blocks, -(-self._receivers // self._receivers_per_part))
        self._adjoint_block = (adjoint_threads,)

    def forward(self, image: Any, traces: Any) -> None:
        """Demigrate a flat image into flat traces, ordered on the current stream."""
        if self._traces == 0:
            return
        raw = self._scratch[: traces.size]
        parts = self._forward_grid[1]
        as_pairs = self._forward_variant == "global"
        if as_pairs:
            self._scratch.fill(0)
        elif parts > 1:
            raw.fill(0)
        self._forward_kernel(
            self._forward_grid,
            self._forward_block,
            (
                image,
                self._source_times,
                self._receiver_times,
                self._scratch,
                np.int32(self._receivers),
                np.int32(self._samples),
                np.int32(self._columns),
                np.int32(self._depths),
                np.int32(self._segment),
                np.int32(self._window),
                np.int32(self._bits),
            ),
            shared_mem=self._forward_shared,
        )
        if as_pairs:
            # For the comparison only: in place of a fused convolution.
            if not hasattr(self, "_extra"):
                self._extra = self._cupy.empty_like(traces)
            self._pairs_to_traces(
                (1024,), (256,), (self._scratch, self._extra, np.int64(traces.size), np.int32(self._samples))
            )
            raw = self._extra
        self._filter(raw, self._wavelet, traces, self._center, as_pairs=False)

    def adjoint(self, traces: Any, image: Any) -> None:
        """Migrate flat traces into a flat image, ordered on the current stream."""
        if self._traces == 0:
            image.fill(0)
            return
        self._filter(traces, self._reversed_wavelet, self._scratch, self._taps - 1 - self._center, as_pairs=True)
        if self._adjoint_grid[1] > 1:
            image.fill(0)
        sizes = (
            (np.int32(self._columns), np.int32(self._depths))
            if self._adjoint_variant == "tiled"
            else (np.int32(self._columns * self._depths),)
        )
        self._adjoint_kernel(
            self._adjoint_grid,
            self._adjoint_block,
            (
                self._scratch,
                self._source_times,
                self._receiver_times,
                image,
                np.int32(self._sources),
                np.int32(self._receivers),
                np.int32(self._samples),
                *sizes,
                np.int32(self._receivers_per_part),
                np.int32(self._bits),
            ),
            shared_mem=self._adjoint_shared,
        )

    def _filter(self, traces: Any, taps: Any, result: Any, center: int, *, as_pairs: bool) -> None:
        """Convolve every trace; as pairs (value, difference to the next one) for the adjoint."""
        tile = 511 if as_pairs else 512
        self._convolve(
            (self._traces, -(-self._samples // tile)),
            (128,),
            (
                traces,
                taps,
                result,
                np.int32(self._samples),
                np.int32(self._taps),
                np.int32(center),
                np.int32(as_pairs),
            ),
        )
