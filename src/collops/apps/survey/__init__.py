"""Seismic surveys before stacking."""
