"""Star forests: sparse exchange between neighbours, planned once, and what is built of it."""

from collops.graph.forest import StarForest
from collops.graph.index_scatter import IndexScatter
from collops.graph.wires.choice import WIRES

__all__ = ["WIRES", "IndexScatter", "StarForest"]
