"""Distributed arrays: types, broadcasting, plans of halos, overlaps of layouts, checks of operands, arrays in files."""

from collops.array import Array as Array
from collops.array import transfers as transfers
from collops.array.broadcasting import broadcast as broadcast
from collops.array.broadcasting import broadcast_layout as broadcast_layout
from collops.array.broadcasting import broadcast_operand as broadcast_operand
from collops.array.dtypes import significant_bytes as significant_bytes
from collops.array.halo import HaloPlan as HaloPlan
from collops.array.halo import halo_widths as halo_widths
from collops.array.layout_arguments import as_shape as as_shape
from collops.array.operands import check_engine as check_engine
from collops.array.random_numbers import fill_random as fill_random
from collops.array.store import open_node as open_node
from collops.backend import LocalArray as LocalArray
from collops.exchange import Box as Box
from collops.exchange.boxes import extent as extent
