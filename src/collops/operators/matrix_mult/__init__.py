"""Products of distributed matrices: by rows of blocks, and by SUMMA on any grid of processes."""
