"""The jax engine: variables that hold JAX arrays and are written like NumPy's, and the functions that take them.

JAX arrays never change. A :class:`Variable` holds one and is given another when it is written to, also by way of its
views, so that operators and solvers, which write into given memory, run on JAX as they are: what a trace sees of them
is a pure function. Loaded by :func:`collops.backend.engine` when the engine is first asked for.
"""

from collops.jax_engine.engine import JaxEngine
from collops.jax_engine.lowering import lowered
from collops.jax_engine.variable import Variable, value_of

__all__ = ["JaxEngine", "Variable", "lowered", "value_of"]
