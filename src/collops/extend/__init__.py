"""The names that other packages may use, by subject; everything else inside collops may change.

Import from ``collops`` itself, from ``collops.errors`` and ``collops.profile``, and from these modules:

- ``operators`` and ``arrays``: user-defined operators (page "An operator of your own")
- ``solvers``: iterative methods ("A solver of your own")
- ``applications`` and ``commands``: commands of ``collops`` ("An application of your own")
- ``exchanges``: transports of star forests ("A transport of your own")
- ``communication``, ``engines``, ``jax``: errors on all ranks, deadlines, kernels, primitives
"""
