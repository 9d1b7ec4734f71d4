"""What a solution of a sparse system can be told, with the defaults, and the checks that need no other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collops.apps.options import JobOptions, check_choice, check_least, check_not_negative
from collops.errors import InputError

__all__ = ["METHODS", "Options"]

METHODS = ("cg", "cgls", "lsqr")


@dataclass(frozen=True, kw_only=True)
class Options(JobOptions):
    """The choices of one solution, beside those of every job. None means: choose for me.

    Parameters
    ----------
    matrix : str, optional
        Matrix Market file; without it a Poisson problem on an unstructured mesh is made.
    rhs : str, optional
        Right-hand side: a Matrix Market file with one column, or a .npy file.
    method : str, optional
        ``"cg"``, ``"cgls"`` or ``"lsqr"``.
    partition : str, optional
        ``"metis"`` or ``"rows"``.
    points : int, optional
        Points of the mesh; `seed` is that of their positions, too.
    tol : float
        Stop when the residual is this small, relative to the first.
    """

    matrix: str | None = None
    rhs: str | None = None
    method: str | None = None
    partition: str | None = None
    points: int | None = None
    tol: float = 1e-6
    iterations: int = 500
    dtype: str = "float64"
    out: str = "collops-solve"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; see `JobOptions`."""
        super().check()
        check_least(self, {"points": 8})
        check_not_negative(self, ["tol"])
        check_choice("method", self.method, (None, *METHODS))
        check_choice("partition", self.partition, (None, "metis", "rows"))
        if self.matrix is not None:
            self.refuse(("points",), "the made mesh", "--matrix")
            if not Path(self.matrix).is_file():
                raise InputError(f"{self.matrix} does not exist: check the name of the matrix file")
        if self.rhs is not None:
            self.refuse(("noise",), "made data", "--rhs")
            if self.matrix is None:
                raise InputError("--rhs belongs to a matrix from a file: give one with --matrix, or leave --rhs out")
            if not Path(self.rhs).is_file():
                raise InputError(f"{self.rhs} does not exist: check the name of the right-hand side")
