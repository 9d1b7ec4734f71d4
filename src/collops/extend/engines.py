"""Engines: the array modules NumPy, CuPy and JAX with their memory, and kernels that are compiled at run time."""

from collops._numba_cache import cached_njit as cached_njit
from collops._nvrtc import cuda_module as cuda_module
from collops.backend import Engine as Engine
from collops.backend import engine as engine
from collops.backend import engine_of as engine_of
from collops.backend import free_memory as free_memory
from collops.backend import kernel_table as kernel_table
from collops.backend import memory_of as memory_of
from collops.backend import repeatable as repeatable
