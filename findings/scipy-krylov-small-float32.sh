#!/usr/bin/env bash
# SciPy 1.17.1 (and 1.18.1): for a float32 right-hand side of 1e-25 several Krylov methods return info = 0, their sign of
# success, with a wrong solution.
# Seen for the diagonal matrix (1, 2, 4): minres returns zeros; cg, cgs, bicgstab and gmres return x = b. The solution is
# (1, 0.5, 0.25) * 1e-25, which float32 holds to seven digits. lgmres finds it.
# Why it matters: squares of 1e-25 underflow in float32. Recorded amplitudes in volts or metres can be that small, and the
# documented check (`info == 0`) passes. Scale the right-hand side, or solve in float64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import scipy
from scipy.sparse import linalg

matrix, scale = np.diag(np.array([1, 2, 4], np.float32)), 1e-25
b, exact = np.full(3, scale, np.float32), np.array([1, 0.5, 0.25])
wrong = []
for name in ("cg", "cgs", "bicgstab", "gmres", "minres", "lgmres"):
    x, info = getattr(linalg, name)(matrix, b)
    print("SciPy", scipy.__version__, name, "info", info, "x:", np.round(x / scale, 3), "* 1e-25")
    if info == 0 and abs(x / scale - exact).max() > 0.1:
        wrong.append(name)
raise SystemExit(wrong != ["cg", "cgs", "bicgstab", "gmres", "minres"])
EOF
