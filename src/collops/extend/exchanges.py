"""Transports of exchanges: the base class with the interface of a transport, and the values that it receives.

``StarForest``, ``IndexScatter`` and ``CSRMatrix`` take a subclass of :class:`Exchange` as ``transport=``. ``SLOTS`` is
the number of pairs of buffers of an exchange. `LibraryExchangePlan` is an ``ExchangePlan`` without peer-to-peer
kernels, for comparisons of libraries.
"""

from collops.exchange.boxes import LibraryExchangePlan as LibraryExchangePlan
from collops.exchange.exchange import SLOTS as SLOTS
from collops.exchange.exchange import Exchange as Exchange
from collops.exchange.exchange import LocalWork as LocalWork
from collops.exchange.exchange import Transfer as Transfer
from collops.exchange.pattern import Pattern as Pattern

__all__ = ["Exchange", "LocalWork", "Pattern", "Transfer"]
