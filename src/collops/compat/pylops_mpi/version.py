"""The version of PyLops-MPI whose interface this is."""

__all__ = ["__version__", "version", "version_tuple"]

__version__ = version = "0.8.0"
version_tuple = (0, 8, 0)
