"""Interfaces of other packages, so that their programs run unchanged."""
