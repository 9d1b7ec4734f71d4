"""Distributed sparse matrices by compressed rows: the operator, its assembly, and orderings that cut communication."""

from collops.operators.csr.matrix import CSRMatrix
from collops.operators.csr.partition import Partition, partition_rows

__all__ = ["CSRMatrix", "Partition", "partition_rows"]
