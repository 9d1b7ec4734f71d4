"""Derivatives by finite differences, over any process grid, with one exchange for all axes."""

from collops.operators.derivatives.first import FirstDerivative
from collops.operators.derivatives.gradient import Gradient
from collops.operators.derivatives.laplacian import Laplacian
from collops.operators.derivatives.second import SecondDerivative

__all__ = ["FirstDerivative", "Gradient", "Laplacian", "SecondDerivative"]
