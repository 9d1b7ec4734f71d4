"""Kernels of the solvers: the steps of sparse and proximal methods, and CUDA sources with the function that loads them.

``steps`` has a generic implementation of each step in the array API. The others are faster implementations of the same
functions: ``numpy_steps`` in pieces that stay in cache, ``cupy_steps`` with one launch for each. All functions return
their results; memory passed for a result is filled if the engine is mutable, and ignored otherwise.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial

from collops._nvrtc import cuda_kernel
from collops.backend import kernel_table

__all__ = ["HALF_CUT", "Rule", "kernel", "step_kernels_for"]

HALF_CUT = 54 ** (1 / 3) / 4
"""Values up to this size become 0 under the rule HALF with the threshold 1."""


class Rule(IntEnum):
    r"""Rules for shrinking a value :math:`u` by a threshold :math:`t`; the numbers are defined in CUDA kernels, too."""

    KEEP = 0
    """No shrinkage."""
    SOFT = 1
    r""":math:`u \max(1 - t / |u|, 0)`, the proximal operator of :math:`t |u|`."""
    HARD = 2
    r""":math:`u` where :math:`|u| > \sqrt{2 t}`, else 0: the proximal operator of :math:`t` where u is not 0."""
    HALF = 3
    r"""The proximal operator of :math:`t |u|^{1/2} / 2`, which is 0 where :math:`|u| \le 54^{1/3} t^{2/3} / 4`."""
    PROJECT = 4
    r""":math:`u \min(t / |u|, 1)`, the projection on the ball of radius t: the difference of :math:`u` and SOFT."""
    CLIP = 5
    """The nearest value between two bounds; for real values only."""
    HARD_AT = 6
    r"""HARD, with :math:`t` itself as the size up to which values become 0, which avoids rounding."""
    HALF_AT = 7
    r"""HALF, with :math:`t` itself as the size up to which values become 0."""


step_kernels_for = kernel_table(__name__, "steps", numpy="numpy_steps", cupy="cupy_steps")
"""The module of an engine's ``advance``, ``shrink``, ``group_norms``, ``group_shrink`` and others."""

kernel = partial(cuda_kernel, __file__)
"""The CUDA kernels of the files in this folder: ``kernel(source, name, *options)``."""
