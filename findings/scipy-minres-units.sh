#!/usr/bin/env bash
# SciPy 1.17.1: minres stops after one iteration with info = 0, its sign of success, if the right-hand side is in large
# units or the matrix in small ones. Its tests compare numbers in the units of the one with numbers in the units of the
# other, so that the result depends on the units.
# Seen for the second difference of 20 points and rtol = 1e-8 in double precision: a relative residual of 1e-15 for b, and
# of 0.40 for 1e10 * b; of 0.03 if the matrix is multiplied by 1e-6. cg and gmres solve all three.
# Why it matters: pressures in Pa with compliances in 1/Pa, or sources of 1e10 N m, are such systems, no squares over- or
# underflow, and the documented check passes. Divide the equations by the norm of b, and the matrix by its own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import scipy
from scipy.sparse import diags_array
from scipy.sparse.linalg import cg, gmres, minres

n = 20
A = diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]).tocsr()
b = A @ np.sin(np.arange(n) + 1.0)
wrong = []
for size_of_A, size_of_b in ((1.0, 1.0), (1.0, 1e10), (1e-6, 1.0)):
    residuals = {}
    for solver in (minres, cg, gmres):
        x, info = solver(size_of_A * A, size_of_b * b, rtol=1e-8)
        residuals[solver.__name__] = np.linalg.norm(size_of_b * b - size_of_A * (A @ x)) / np.linalg.norm(size_of_b * b)
        assert info == 0 and (solver is minres or residuals[solver.__name__] < 1e-7)
    print("SciPy", scipy.__version__, "A", size_of_A, "b", size_of_b, {k: f"{v:.2e}" for k, v in residuals.items()})
    wrong.append(residuals["minres"] > 1e-2)
raise SystemExit(wrong != [False, True, True])
EOF
