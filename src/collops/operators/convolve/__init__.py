"""Convolution with filters that vary along the axis."""
