"""Run scripts one after the other on these ranks, and keep what each leaves in its namespace.

``mpiexec -n 3 python replay.py collops|pylops_mpi FOLDER SCRIPT...`` writes ``FOLDER/NAME.RANK`` for each.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np


def kept(value: Any) -> Any:
    """Return what is compared of a value: numbers and arrays, also this rank's parts of distributed ones."""
    if isinstance(value, type):
        return None
    if hasattr(value, "distarrays"):
        return {str(number): kept(part) for number, part in enumerate(value.distarrays)}
    if hasattr(value, "local_array"):
        shapes = [tuple(int(n) for n in shape) for shape in value.local_shapes]
        return {"local": np.asarray(value.local_array), "shapes": shapes, "partition": value.partition.name}
    if isinstance(value, np.ndarray | np.number | np.bool_ | int | float | complex):
        return value if np.asarray(value).dtype.kind in "biufc" else None
    return None


def replay(script: Path) -> dict[str, Any]:
    """Run a script as a program of its own; return what is in its namespace then."""
    import matplotlib.pyplot as plt

    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    os.chdir(script.parent)
    np.random.seed(7)  # noqa: NPY002 - the generator of those scripts that do not seed it
    begin = time.perf_counter()
    with contextlib.suppress(SystemExit):  # some ranks have nothing to do in some scripts
        exec(compile(script.read_text(), str(script), "exec"), namespace)
    plt.close("all")
    found = {name: kept(value) for name, value in namespace.items() if not name.startswith("_")}
    return {"seconds": time.perf_counter() - begin} | {n: v for n, v in found.items() if v is not None}


def main(package: str, folder: str, *scripts: str) -> None:
    if package == "collops":
        from collops.compat.pylops_mpi.__main__ import replace

        replace()
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    time.sleep = lambda _: None  # some scripts pause, so that ranks print in turn
    for script in map(Path, scripts):
        try:
            left = replay(script)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
            raise
        with open(Path(folder) / f"{script.stem}.{rank}", "wb") as file:
            pickle.dump(left, file)
        del left
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
