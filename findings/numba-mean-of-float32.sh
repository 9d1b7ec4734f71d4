#!/usr/bin/env bash
# Numba 0.68.1: np.mean and np.sum of float32 add one element after the other in float32.
# Seen for 16,777,216 values of 0.1: the mean is 0.1153, 15 % too large; NumPy, which adds in pairs, has 0.10000002. The
# type of Numba's result is float64, which suggests an accuracy that the sum never had.
# Why it matters: the mean or the energy of a data volume in single precision is wrong by percents as soon as a loop is
# compiled. Accumulate in a float64 variable of your own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.68.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numba
import numpy as np

values = np.full(1 << 24, 0.1, np.float32)
mean = numba.njit(lambda x: np.mean(x))(values)
print("Numba", numba.__version__, "mean:", mean, type(mean).__name__, "NumPy:", np.mean(values))
raise SystemExit(not (mean > 0.11 and abs(np.mean(values) - 0.1) < 1e-6))
EOF
