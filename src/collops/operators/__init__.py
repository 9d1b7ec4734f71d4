"""Linear operators on distributed arrays: their algebra, stacks of them, and the operators themselves."""

from __future__ import annotations

from collops.operators.algebra import Adjoint, Combination, Conjugate, Product
from collops.operators.base import Buffers, LinearOperator
from collops.operators.basic import Diagonal, Identity, Sum, Transpose, Zero
from collops.operators.convolve import NonStationaryConvolve1D
from collops.operators.csr import CSRMatrix
from collops.operators.derivatives import FirstDerivative, Gradient, Laplacian, SecondDerivative
from collops.operators.dottest import dottest
from collops.operators.fourier import FFT, FFT2D, FFTND
from collops.operators.fredholm1 import Fredholm1
from collops.operators.halo import Halo
from collops.operators.kirchhoff.distributed import Kirchhoff
from collops.operators.local import LocalOperator, lift_local
from collops.operators.matrix_mult import MatrixMult, best_process_grid
from collops.operators.mdc import MDC
from collops.operators.restriction import Restriction
from collops.operators.stacked import StackedBlockDiag, StackedHStack, StackedVStack
from collops.operators.stacks import BlockDiag, HStack, VStack

__all__ = [
    "FFT",
    "FFT2D",
    "FFTND",
    "MDC",
    "Adjoint",
    "BlockDiag",
    "Buffers",
    "CSRMatrix",
    "Combination",
    "Conjugate",
    "Diagonal",
    "FirstDerivative",
    "Fredholm1",
    "Gradient",
    "HStack",
    "Halo",
    "Identity",
    "Kirchhoff",
    "Laplacian",
    "LinearOperator",
    "LocalOperator",
    "MatrixMult",
    "NonStationaryConvolve1D",
    "Product",
    "Restriction",
    "SecondDerivative",
    "StackedBlockDiag",
    "StackedHStack",
    "StackedVStack",
    "Sum",
    "Transpose",
    "VStack",
    "Zero",
    "best_process_grid",
    "dottest",
    "lift_local",
]
