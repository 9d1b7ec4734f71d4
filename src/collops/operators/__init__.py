"""Linear operators on distributed arrays: their algebra, stacks of them, and the operators themselves.

Each line exports one name; adding an operator takes its file and a line here.
"""

from types import ModuleType as _Module

from collops.operators.base import LinearOperator as LinearOperator
from collops.operators.basic import Diagonal as Diagonal
from collops.operators.basic import Identity as Identity
from collops.operators.basic import Sum as Sum
from collops.operators.basic import Transpose as Transpose
from collops.operators.basic import Zero as Zero
from collops.operators.columns import Columns as Columns
from collops.operators.convolve.distributed import NonStationaryConvolve1D as NonStationaryConvolve1D
from collops.operators.csr import CSRMatrix as CSRMatrix
from collops.operators.derivatives.operators import FirstDerivative as FirstDerivative
from collops.operators.derivatives.operators import Gradient as Gradient
from collops.operators.derivatives.operators import Laplacian as Laplacian
from collops.operators.derivatives.operators import SecondDerivative as SecondDerivative
from collops.operators.dottest import dottest as dottest
from collops.operators.fourier.fftnd import FFT as FFT
from collops.operators.fourier.fftnd import FFT2D as FFT2D
from collops.operators.fourier.fftnd import FFTND as FFTND
from collops.operators.fredholm1 import Fredholm1 as Fredholm1
from collops.operators.halo import Halo as Halo
from collops.operators.local import LocalOperator as LocalOperator
from collops.operators.local import lift_local as lift_local
from collops.operators.matrix_mult.distributed import MatrixMult as MatrixMult
from collops.operators.matrix_mult.distributed import best_process_grid as best_process_grid
from collops.operators.mdc import MDC as MDC
from collops.operators.memory import Buffers as Buffers
from collops.operators.patch import Patch as Patch
from collops.operators.restriction import Restriction as Restriction
from collops.operators.sliding import Sliding as Sliding
from collops.operators.stacks import BlockDiag as BlockDiag
from collops.operators.stacks import HStack as HStack
from collops.operators.stacks import StackedBlockDiag as StackedBlockDiag
from collops.operators.stacks import StackedHStack as StackedHStack
from collops.operators.stacks import StackedVStack as StackedVStack
from collops.operators.stacks import VStack as VStack
from collops.operators.toeplitz.operator import BlockToeplitz as BlockToeplitz

_names = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module)]
__all__ = list(_names)
