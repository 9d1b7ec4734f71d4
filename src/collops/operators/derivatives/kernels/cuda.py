"""Products with bands on the GPU: one launch of ``banded.cu``, or two so that the exchange overlaps with the first.

Compile options, grids, blocks and the one argument of a launch are arithmetic, which needs no CuPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collops._nvrtc import cuda_module
from collops.array.fused import LocalPairs
from collops.backend import CudaKernel, LocalArray
from collops.operators.derivatives.bands import MAX_SPECIAL, REACH, WIDTH, Problem, Several, Term
from collops.operators.derivatives.kernels.array_kernels import ArrayKernel

__all__ = ["make_kernel"]

_THREADS = 256
_WARP = 64  # threads that can exchange numbers by shuffles, on any device
_BATCH = 4  # as in banded.cu
# Rows of a thread; the next thread reads two of them again, from the L2 cache. Measured on an H200, with a band along
# the last axis, which needs more registers, and without.
_MAX_CHUNK, _MAX_CHUNK_ALONE = 12, 8
_THREADS_AT_ONCE = 768 * 132  # threads that the registers of a large device can hold; with fewer, chunks are shortened
# With fewer threads, chunks become shorter than batches, until each multiprocessor has a block.
_THREADS_ALONE = _THREADS * 132 // 2
_MAX_BLOCKS = 65535  # of a grid's second axis
_MAX_ROWS = (1 << 31) - _MAX_CHUNK * _MAX_BLOCKS
_LOAD_BYTES = 16
_ARGUMENT_BYTES = 4096
_PARTS = {"f": 1, "d": 1, "F": 2, "D": 2}
_ALIGNMENT = 16
_LARGE = 16 << 20  # bytes of an array: above this size, overlapping the exchange with the interior saves time


def make_kernel(problem: Problem) -> _CudaKernel | ArrayKernel:
    """Return the kernel: ``banded.cu``, or CuPy's ufuncs if its limits are exceeded."""
    by_cuda = math.prod(problem.shape) and fits(problem.shape, problem.terms, problem.dtype)
    return _CudaKernel(problem) if by_cuda else ArrayKernel(problem)


@cache
def _compiled(device: int, options: tuple[str, ...]) -> CudaKernel:
    import cupy

    source = Path(__file__).with_name("banded.cu").read_text(encoding="utf-8")
    with cupy.cuda.Device(device):
        return cuda_module(source, options).get_function("banded").kernel


class _CudaKernel:
    """Bands on arrays of one shape and dtype.

    ``splits`` is true for large arrays that are split along the marched axis only. Deep copies of operators share the
    kernel, since its launches contain pointers to their own memory; every call sets the pointers to the arrays.
    """

    def __init__(self, problem: Problem) -> None:
        import cupy

        # Calling a kernel through CuPy takes more host time, see `collops.comm.device_launch`.
        self._submit, self._stream = cupy.cuda.driver.launchKernel, cupy.cuda.get_current_stream
        self._new = cupy.ndarray
        self._itemsize = problem.dtype.itemsize
        self._device = cupy.cuda.Device().id
        self._wide, self._narrow = Launches(problem, wide=True), Launches(problem, wide=False)
        unmarched = [term for number, term in enumerate(problem.terms) if number != self._wide.march]
        self.splits = (
            math.prod(problem.shape) * self._itemsize >= _LARGE
            and self._wide.parts["inner"] is not None
            and all(term.before is None and term.after is None for term in unmarched)
        )

    def __deepcopy__(self, memo: dict[int, object]) -> _CudaKernel:
        return self

    def run(
        self,
        part: str,
        sources: Sequence[LocalArray],
        targets: Sequence[LocalArray],
        landing: LocalArray,
        squares: LocalPairs | None = None,
    ) -> Sequence[LocalArray]:
        """Compute one part of the rows, reading 16 bytes at once if the addresses allow it.

        If the problem has `squares`, a new array with a sum for each block is appended to the list `squares`, as
        :func:`collops.array.kernels.cupy_kernels.dots` expects. The ``rest`` shares the array of the ``inner`` part.
        """
        inputs = [array.data.ptr for array in sources]
        outputs = [array.data.ptr for array in targets]
        wide = all(address % _ALIGNMENT == 0 for address in (*inputs, *outputs))
        launches = self._wide if wide else self._narrow
        launches.point_at(inputs, outputs, 0 if landing is None else landing.data.ptr, self._itemsize)
        launch = launches.parts[part]
        if launch is not None:
            if squares is not None:
                launch.argument["squares"] = self._sums(part, launches.blocks, squares)
            kernel = _compiled(self._device, launches.options).ptr
            self._submit(kernel, *launch.grid, 1, *launch.block, 1, 0, self._stream().ptr, launch.parameters, 0)
        return targets

    def _sums(self, part: str, blocks: dict[str, int], squares: LocalPairs) -> int:
        """Return the address of the sums of a launch's blocks in the array of `squares`, appended if missing."""
        if part != "rest":
            size = blocks[part] + (blocks["rest"] if part == "inner" else 0)
            squares.append((self._new(size, np.float64), None))
        sums, _ = squares[-1]
        return sums.data.ptr + (blocks["inner"] * sums.itemsize if part == "rest" else 0)


class Launch(NamedTuple):
    """One launch: grid, block, and its argument, one element of the struct.

    ``parameters`` is the address of the array ``addresses``, which contains the address of the argument, as the driver
    API expects.
    """

    grid: tuple[int, int]
    block: tuple[int, int]
    argument: np.ndarray
    addresses: np.ndarray
    parameters: int


def fits(shape: tuple[int, ...], terms: Sequence[Term], dtype: np.dtype) -> bool:
    """Return whether ``banded.cu`` supports the dtype, the number of elements and the number of terms."""
    if dtype.char not in _PARTS:
        return False
    real = np.dtype(dtype.char.lower())
    rows, columns = math.prod(shape[:-1]), shape[-1]
    return _problem_type(len(terms), real, squares=True).itemsize <= _ARGUMENT_BYTES and max(rows, columns) < _MAX_ROWS


class Launches:
    """The launches for one load width: 16 bytes if `wide` and rows are multiples of 16 bytes, else one number.

    ``options`` are the compiler options. ``parts`` are the launches for all rows (``whole``), for the rows that need no
    face (``inner``), and for the other rows (``rest``); ``None`` if empty. The last two are used if the only faces are
    along the marched axis, the axis of term ``march``. ``blocks`` are the numbers of blocks of the launches.
    """

    def __init__(self, problem: Problem, wide: bool) -> None:
        shape, terms, several, dtype, _, add, self._squares = problem
        self._real = np.dtype(dtype.char.lower())
        parts = _PARTS[dtype.char]
        extents = (*shape[:-1], shape[-1] * parts)
        pack = _LOAD_BYTES // self._real.itemsize
        if not wide or extents[-1] % pack:
            pack = 1
        last_axis = len(shape) - 1
        last = next((number for number, term in enumerate(terms) if term.axis == last_axis), None)
        strided = sorted(
            (number for number, term in enumerate(terms) if term.axis != last_axis),
            key=lambda number: terms[number].before is None and terms[number].after is None,
        )
        self.march = strided[0] if strided else None
        self._has_last = last is not None
        self._order = strided + ([] if last is None else [last])
        self._terms = terms
        self._several = several
        self._add = add
        axis = last_axis if self.march is None else terms[self.march].axis
        self._rows = math.prod(shape[:-1]) if self.march is None else shape[axis]
        self._inner = extents[-1] if self.march is None else math.prod(extents[axis + 1 :])
        outer = 1 if self.march is None else math.prod(shape[:axis])
        self._packs = self._inner // pack
        self._columns = outer * self._packs
        self._across = min(_THREADS, 1 << (self._columns - 1).bit_length())
        self._last = extents[-1]
        self._flat = outer == 1 and (last is None or self._inner == self._last)
        self._strides = [math.prod(extents[term.axis + 1 :]) if term.axis != last_axis else parts for term in terms]
        self.options = self._compile_options(pack, parts, last)
        begin, end = (0, self._rows) if self.march is None else _inner_rows(terms[self.march])
        self.parts = {
            "whole": self._launch((0, self._rows), (0, 0)),
            "inner": self._launch((begin, end), (0, 0)),
            "rest": self._launch((0, begin), (end, self._rows)),
        }
        self.blocks = {part: math.prod(launch.grid) if launch else 0 for part, launch in self.parts.items()}
        # The addresses are the first four fields of a band; the bands are the first field of the struct.
        self._words = [launch.argument.view(np.uint64) for launch in self.parts.values() if launch]
        self._words_per_band = _problem_type(len(terms), self._real, self._squares)["bands"].base.itemsize // 8
        self._seen: tuple[int, ...] = ()

    def point_at(self, sources: Sequence[int], targets: Sequence[int], landing: int, itemsize: int) -> None:
        """Set the addresses of the arrays in all launches."""
        seen = (*sources, *targets, landing)
        if seen == self._seen:
            return
        self._seen = seen
        for position, number in enumerate(self._order):
            term, first = self._terms[number], position * self._words_per_band
            addresses = (
                sources[number if self._several is Several.SOURCES else 0],
                targets[number if self._several is Several.TARGETS else 0],
                0 if term.before is None else landing + term.before.begin * itemsize,
                0 if term.after is None else landing + term.after.begin * itemsize,
            )
            for words in self._words:
                words[first : first + 4] = addresses

    def _compile_options(self, pack: int, parts: int, last: int | None) -> tuple[str, ...]:
        options = [f"-DPACK={pack}", f"-DPARTS={parts}", f"-DSEVERAL={self._several.value}"]
        if self._add:
            options.append("-DADD=1")
        if self._squares:
            options.append("-DSQUARES=1")
        if self._flat:
            options.append("-DFLAT=1")
        if self._real.char == "d":
            options.append("-DCOLLOPS_DOUBLE")
        if self.march is not None:
            lower, upper = _reach(self._terms[self.march])
            strided = len(self._order) - (last is not None)
            options += ["-DMARCH=1", f"-DOTHERS={strided - 1}", f"-DLOWER={lower}", f"-DUPPER={upper}"]
        if last is not None:
            lower, upper = _reach(self._terms[last])
            options += ["-DLAST=1", f"-DLAST_LOWER={lower}", f"-DLAST_UPPER={upper}"]
            if max(lower, upper) * parts <= pack and self._across % _WARP == 0:
                options.append("-DSHUFFLE=1")
        return tuple(options)

    def _launch(self, first: tuple[int, int], second: tuple[int, int]) -> Launch | None:
        """Return the launch for two ranges of rows; ``None`` if both are empty."""
        rows = first[1] - first[0] + second[1] - second[0]
        if rows <= 0:
            return None
        across = self._across
        down = _THREADS // across
        chunk = _MAX_CHUNK if self._has_last else _MAX_CHUNK_ALONE
        while chunk > _BATCH and self._columns * -(-rows // chunk) < _THREADS_AT_ONCE:
            chunk = max(_BATCH, chunk // 2)
        while chunk > 1 and self._columns * -(-rows // chunk) <= _THREADS_ALONE:
            chunk //= 2
        chunk = max(chunk, -(-rows // (_MAX_BLOCKS * down - 2)))
        first_chunks, second_chunks = (-(-(end - begin) // chunk) for begin, end in (first, second))
        argument = np.zeros(1, _problem_type(len(self._terms), self._real, self._squares))
        for position, number in enumerate(self._order):
            self._describe(argument["bands"][0][position], number)
        for name, value in (
            ("columns", self._columns),
            ("packs", self._packs),
            ("inner", self._inner),
            ("last", self._last),
            ("rows", self._rows),
            ("first_begin", first[0]),
            ("first_end", first[1]),
            ("second_begin", second[0]),
            ("second_end", second[1]),
            ("chunk", chunk),
            ("first_chunks", first_chunks),
            ("chunks", first_chunks + second_chunks),
        ):
            argument[name] = value
        grid = (-(-self._columns // across), -(-(first_chunks + second_chunks) // down))
        addresses = np.array([argument.ctypes.data], np.uint64)
        return Launch(grid, (across, down), argument, addresses, addresses.ctypes.data)

    def _describe(self, band: np.void, number: int) -> None:
        """Set the fields of a band that do not depend on addresses."""
        term = self._terms[number]
        local = term.band
        band["stride"] = self._strides[number]
        for name in ("extent", "head_end", "head_row", "tail_begin", "tail_row"):
            # The first row matters only if it is special; otherwise its number may overflow the field.
            band[name] = min(getattr(local, name), (1 << 31) - 1)
        band["planes_before"] = 0 if term.before is None else local.before
        band["planes_after"] = 0 if term.after is None else local.after
        band["usual"] = local.stencil
        band["special"][: len(local.special)] = local.special


def _reach(term: Term) -> tuple[int, int]:
    """Return how far the stencil reaches down and up."""
    offsets = np.flatnonzero(term.band.stencil) - REACH
    return (max(0, -int(offsets[0])), max(0, int(offsets[-1]))) if len(offsets) else (0, 0)


def _inner_rows(term: Term) -> tuple[int, int]:
    """Return the range of rows that need no face, special rows included."""
    band = term.band
    low, high = 0, band.extent
    for row in (*range(min(REACH, band.extent)), *range(max(0, band.extent - REACH), band.extent)):
        offsets = np.flatnonzero(band.row(row)) - REACH
        if len(offsets) and row + offsets[0] < 0:
            low = max(low, row + 1)
        if len(offsets) and row + offsets[-1] >= band.extent:
            high = min(high, row)
    return (low, high) if low < high else (0, 0)


def _problem_type(bands: int, real: np.dtype, squares: bool) -> np.dtype:
    """Return the dtype of ``Problem`` in banded.cu, with the layout of the C struct."""
    band = np.dtype(
        [
            *((name, np.uint64) for name in ("source", "target", "before", "after")),
            ("stride", np.int64),
            *((name, np.int32) for name in ("extent", "planes_before", "planes_after")),
            *((name, np.int32) for name in ("head_end", "head_row", "tail_begin", "tail_row", "unused")),
            ("usual", real, (WIDTH,)),
            ("special", real, (MAX_SPECIAL, WIDTH)),
        ],
        align=True,
    )
    return np.dtype(
        [
            ("bands", band, (bands,)),
            *((name, np.int64) for name in ("columns", "packs", "inner", "last")),
            *((name, np.int32) for name in ("rows", "first_begin", "first_end", "second_begin", "second_end")),
            *((name, np.int32) for name in ("chunk", "first_chunks", "chunks")),
            *([("squares", np.uint64)] if squares else []),
        ],
        align=True,
    )
