"""Derivatives by finite differences, over any process grid, with one exchange for all axes."""
