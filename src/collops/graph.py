"""Deprecated names: star forests are in :mod:`collops.exchange`, index scatters in :mod:`collops.array`."""

import warnings

from collops.array import IndexScatter
from collops.exchange import TRANSPORTS, StarForest

__all__ = ["WIRES", "IndexScatter", "StarForest"]

WIRES = TRANSPORTS

warnings.warn("collops.graph is now collops.exchange", DeprecationWarning, stacklevel=2)
