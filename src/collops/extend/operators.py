"""Operators: directions, buffers, results in ``out``, blocks of columns, and sums of local operators."""

from collops.operators.base import AnyLayout as AnyLayout
from collops.operators.base import Direction as Direction
from collops.operators.base import Flat as Flat
from collops.operators.base import product as product
from collops.operators.base import reinterpret as reinterpret
from collops.operators.columns import Columns as Columns
from collops.operators.dense import multiply as multiply
from collops.operators.local import applied_on_host as applied_on_host
from collops.operators.memory import Buffers as Buffers
from collops.operators.memory import contiguous as contiguous
from collops.operators.memory import filled as filled
from collops.operators.memory import store as store
from collops.operators.stacks import LocalSum as LocalSum
