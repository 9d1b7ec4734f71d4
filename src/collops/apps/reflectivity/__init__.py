"""Reflectivity inversion: sparse spikes from stacked data."""
