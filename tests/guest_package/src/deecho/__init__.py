"""Remove echoes from traces."""

from deecho.descent import SteepestDescent, steepest_descent
from deecho.echo import Echo
from deecho.neighbours import NeighbourExchange

__all__ = ["Echo", "NeighbourExchange", "SteepestDescent", "steepest_descent"]
