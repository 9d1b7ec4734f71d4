"""PyLops-MPI's pictures."""
