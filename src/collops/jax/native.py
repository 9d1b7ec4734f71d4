"""The native library: loading it, choosing its MPI, and registering its handlers with XLA."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from functools import cache
from pathlib import Path

import jax

from collops.comm.mpi import addresses, handles, mpi4py_module
from collops.comm.reductions import DTYPES, MOVED_BY_MPI, OPERATIONS
from collops.errors import InputError, TransportError

_HANDLERS = (
    *("allreduce", "reduce", "bcast", "allgather", "gather"),
    *("scatter", "reduce_scatter", "alltoall", "exchange", "barrier"),
)
OPS = tuple(name for name in OPERATIONS if name != "avg")
TYPES = tuple(DTYPES)

_MPI_FUNCTIONS = (
    *("Iallreduce", "Ireduce", "Ibcast", "Iallgatherv", "Iallgather", "Igather", "Iscatter", "Ireduce_scatter"),
    *("Ialltoallv", "Isend", "Irecv", "Ibarrier", "Test", "Error_string", "Op_create"),
)


_INTERFACE = 6  # of native/src/api.h


@cache
def library() -> ctypes.CDLL:
    """Load the native library, built for this version of the package, and register its handlers."""
    loaded = _loaded(_path())
    for name in ("collops_add_alone", "collops_add_mpi", "collops_add_devices", "collops_add_nccl"):
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.collops_calls.restype = ctypes.c_int64
    loaded.collops_load_mpi.restype = ctypes.c_char_p
    for name in _HANDLERS:
        _register(loaded, f"host_{name}", "cpu")
        for platform in ("CUDA", "ROCM"):
            _register(loaded, f"device_{name}", platform)
            _register(loaded, f"recorded_{name}", platform)
    return loaded


@cache
def load_mpi() -> None:
    """Make the native library call the MPI that mpi4py has loaded."""
    mpi = mpi4py_module()
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise TransportError(
            "collops.jax calls MPI from XLA's threads, but MPI was initialised for one thread; "
            "use an MPI with MPI_THREAD_MULTIPLE, and leave mpi4py.rc.threads at True and mpi4py.rc.thread_level at "
            "'multiple'"
        )
    wrong = library().collops_load_mpi(
        mpi._sizeof(mpi.Comm),
        int64s(addresses(_MPI_FUNCTIONS)),
        int64s(handles([dtype.mpi for dtype in DTYPES.values()])),
        int64s(handles(list(MOVED_BY_MPI.values())[:5])),
        int64s(handles([OPERATIONS[name].mpi for name in OPS])),
        ctypes.c_int64(int(mpi.IN_PLACE)),
    )
    if wrong is not None:
        raise TransportError(f"the native library cannot use this MPI: {wrong.decode()}")


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise InputError(f"the native library does not load: {error}") from error
    # A version number, because arguments may change under the same symbols. The oldest libraries lack the function.
    if not hasattr(loaded, "collops_interface") or loaded.collops_interface() != _INTERFACE:
        raise InputError(
            f"the native library {path} was built for another version of collops: "
            "run 'pip install ./native' again, in the checkout that collops is used from"
        )
    return loaded


def _register(loaded: ctypes.CDLL, name: str, platform: str) -> None:
    handler = jax.ffi.pycapsule(getattr(loaded, f"collops_{name}"))
    jax.ffi.register_ffi_target(f"collops_{name}", handler, platform=platform)


def _path() -> Path:
    named = os.environ.get("COLLOPS_NATIVE")
    if named:
        path = Path(named)
        if not path.is_file():
            raise InputError(f"COLLOPS_NATIVE={named!r} is not a file")
        return path
    if importlib.util.find_spec("collops_native") is None:
        raise InputError(
            "collops.jax needs its native library: run 'pip install ./native' in a checkout of collops "
            "(this needs a C++17 compiler and jaxlib), or set COLLOPS_NATIVE to its path"
        )
    from collops_native import library_path

    return library_path()


def int64s(values: list[int]) -> ctypes.Array[ctypes.c_int64]:
    """Return addresses and handles as a C array."""
    return (ctypes.c_int64 * len(values))(*(value - (1 << 64) if value >= 1 << 63 else value for value in values))
