"""Wires of star forests: how packed buffers travel, one file for each way, chosen by name or by measurement."""

from collops.graph.wires.choice import WIRES, wire_for
from collops.graph.wires.wire import Channel, Routes, Transfer, Wire

__all__ = ["WIRES", "Channel", "Routes", "Transfer", "Wire", "wire_for"]
