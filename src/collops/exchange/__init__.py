"""Sparse exchange between neighbours: a pattern says who sends what to whom, an exchange carries it out.

:class:`StarForest` makes patterns of points, which move between roots and leaves; :class:`ExchangePlan` takes
boxes. Halos, redistributions and index scatters of distributed arrays, in :mod:`collops.array`, are made of them.
"""

from collops.exchange.boxes import ExchangePlan
from collops.exchange.exchange import InFlight
from collops.exchange.forest import StarForest
from collops.exchange.pattern import Box
from collops.exchange.transports import TRANSPORTS, possible_transports

__all__ = ["TRANSPORTS", "Box", "ExchangePlan", "InFlight", "StarForest", "possible_transports"]
