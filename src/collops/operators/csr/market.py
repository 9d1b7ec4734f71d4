"""Matrix Market files of any of the format's kinds: read by one rank, which sends the other ranks their rows."""

from __future__ import annotations

import bz2
import gzip
import inspect
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collops.backend import engine, memory_of
from collops.comm.agreement import collective_errors
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["read_matrix"]

_TEXT = b"0123456789+-.eEinfatyINFATY \t\r\n"
_CHUNK = 1 << 24


def read_matrix(path: str | Path) -> Any:
    """Return the matrix of a file by coordinates, symmetric parts written out; raise InputError. Not collective."""
    from scipy import io, sparse

    try:
        _check_text(Path(path))
        _check_size(Path(path), *io.mminfo(path))
        # SciPy before 1.15 has matrices alone; after that it warns where the kind is left open.
        arrays = {"spmatrix": False} if "spmatrix" in inspect.signature(io.mmread).parameters else {}
        found = io.mmread(path, **arrays)
    except InputError:
        raise
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
    except (EOFError, TypeError, ValueError, OverflowError, zlib.error) as problem:
        raise InputError(f"{path} is no Matrix Market file: {problem}") from None
    return sparse.coo_array(found)


def _check_text(path: Path) -> None:
    """Raise for files with other characters than numbers: SciPy's parser reads beyond its memory there."""
    opened = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    in_header = True
    with opened(path, "rb") as file:
        rest = b""
        while chunk := file.read(_CHUNK):
            if in_header:  # comments may be in any language
                lines = (rest + chunk).split(b"\n")
                begin = next((number for number, line in enumerate(lines) if not line.startswith(b"%")), None)
                rest = lines[-1] if begin is None else b""
                if begin is None:
                    continue
                in_header, chunk = False, b"\n".join(lines[begin:])
            if chunk.translate(None, _TEXT):
                raise InputError(f"{path} is no Matrix Market file: it has other characters than those of numbers")


def _check_size(path: Path, rows: int, columns: int, entries: int, form: str, _: str, symmetry: str) -> None:
    """Raise for a file whose first lines announce more than it can hold, before memory is allocated."""
    fewest = 4 if form == "coordinate" else 2  # bytes of the line of an entry: two indices or a value, and the ends
    if form == "array" and symmetry != "general":
        entries = rows * (rows - 1) // 2  # without the other triangle, which the file leaves out
    held = os.stat(path).st_size if path.suffix not in (".gz", ".bz2") else None
    if held is not None and entries * fewest > held + fewest:
        raise InputError(f"{path} promises {entries} entries but has {held} bytes: it is truncated or damaged")
    if 8 * max(rows, columns) > memory_of(engine("numpy")):
        raise InputError(
            f"{path} is a matrix of {rows} x {columns}: its vectors do not fit into the memory of this machine"
        )


def read_triples(comm: Communicator, path: str | Path) -> tuple[tuple[int, int], Any, Any, Any]:
    """Return the shape on every rank; rows, columns and values on rank 0, empty elsewhere. Collective."""
    import numpy as np

    with collective_errors(comm):
        matrix = read_matrix(path) if comm.rank == 0 else None
    known = None if matrix is None else [*map(int, matrix.shape), str(matrix.dtype)]
    rows, columns, dtype = comm.allgather_metadata(known)[0]
    if matrix is None:
        nothing = np.empty(0, np.int64)
        return (rows, columns), nothing, nothing, np.empty(0, dtype)
    return (rows, columns), *matrix.coords, matrix.data
