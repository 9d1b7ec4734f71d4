"""Run scripts one after the other on these ranks, by PyLops-MPI and by this package, and store their variables.

``mpiexec -n 3 python replay.py FOLDER pylops_mpi SCRIPT... collops SCRIPT...`` writes ``FOLDER/PACKAGE/NAME.RANK``.
One start serves both packages, since the imports of a rank take longer than most scripts.
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
    """Return the numbers and arrays of a value that are compared, among them this rank's parts of distributed ones."""
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
    """Run a script as a program of its own; return its variables."""
    import matplotlib.pyplot as plt

    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    os.chdir(script.parent)
    np.random.seed(7)  # noqa: NPY002 - the generator of those scripts that do not seed it
    begin = time.process_time()
    with contextlib.suppress(SystemExit):  # some ranks have nothing to do in some scripts
        exec(compile(script.read_text(), str(script), "exec"), namespace)
    plt.close("all")
    found = {name: kept(value) for name, value in namespace.items() if not name.startswith("_")}
    return {"seconds": time.process_time() - begin} | {n: v for n, v in found.items() if v is not None}


def take(package: str) -> None:
    """Let ``pylops_mpi`` mean this package from here on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pylops_mpi"]:
        del sys.modules[name]
    if package == "collops":
        from collops.compat.pylops_mpi import install

        install()


def main(folder: str, *words: str) -> None:
    from matplotlib.figure import Figure
    from mpi4py import MPI

    from collops.comm.ending import abort

    rank = MPI.COMM_WORLD.Get_rank()
    results = Path(folder).resolve()
    time.sleep = lambda _: None  # some scripts pause, so that ranks print in turn
    # The figures are not checked, and take longer to draw than to compute.
    Figure.tight_layout = Figure.savefig = lambda *_, **__: None
    package = ""
    for word in words:
        if word in ("collops", "pylops_mpi"):
            package = word
            take(package)
            continue
        script = Path(word)
        try:
            left = replay(script)
        except Exception:
            traceback.print_exc()
            abort(MPI.COMM_WORLD, 1, f"{script} failed on rank {rank}")
            raise
        with open(results / package / f"{script.stem}.{rank}", "wb") as file:
            pickle.dump(left, file)
        del left
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
