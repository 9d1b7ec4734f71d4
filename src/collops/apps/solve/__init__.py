"""Sparse linear systems, from a file or on a mesh that is made up: what ``collops solve`` does."""
