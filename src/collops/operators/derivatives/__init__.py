"""Derivatives by finite differences, over any process grid, with one exchange for all axes."""

from collops.operators.derivatives.operators import FirstDerivative, Gradient, Laplacian, SecondDerivative

__all__ = ["FirstDerivative", "Gradient", "Laplacian", "SecondDerivative"]
