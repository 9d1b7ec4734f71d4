"""Distributed sparse matrices by compressed rows: the operator, its assembly, and orderings that cut communication."""

from collops.operators.csr.assembled import assembled
from collops.operators.csr.matrix import CSRMatrix
from collops.operators.csr.partition import Partition, partition_rows
from collops.operators.csr.products import multiplied, transposed

__all__ = ["CSRMatrix", "Partition", "assembled", "multiplied", "partition_rows", "transposed"]
