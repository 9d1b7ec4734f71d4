"""Linear operators on distributed arrays: their algebra, stacks of them, and the operators themselves."""

from __future__ import annotations

from collops.operators.algebra import Adjoint, Combination, Conjugate, Product
from collops.operators.base import LinearOperator
from collops.operators.block_diag import BlockDiag
from collops.operators.dottest import dottest
from collops.operators.fourier import FFT, FFT2D, FFTND
from collops.operators.fredholm1 import Fredholm1
from collops.operators.hstack import HStack
from collops.operators.kirchhoff.distributed import Kirchhoff
from collops.operators.local import LocalOperator, lift_local
from collops.operators.mdc import MDC
from collops.operators.stacked import StackedBlockDiag, StackedHStack, StackedVStack
from collops.operators.vstack import VStack

__all__ = [
    "FFT",
    "FFT2D",
    "FFTND",
    "MDC",
    "Adjoint",
    "BlockDiag",
    "Combination",
    "Conjugate",
    "Fredholm1",
    "HStack",
    "Kirchhoff",
    "LinearOperator",
    "LocalOperator",
    "Product",
    "StackedBlockDiag",
    "StackedHStack",
    "StackedVStack",
    "VStack",
    "dottest",
    "lift_local",
]
