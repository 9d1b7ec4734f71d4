#!/usr/bin/env bash
# Numba 0.68.1: np.max and np.min compiled with parallel=True lose NaN; without it they propagate NaN, as NumPy does.
# Seen: np.max of [1, nan, 3] is 3.0 with parallel=True and nan without; np.min is 1.0.
# Why it matters: a diverged wavefield or a missing sample is found by the maximum of its values. With one more option of
# the compiler that check passes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.68.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numba
import numpy as np

values = np.array([1.0, np.nan, 3.0])


def extremes(x):
    return np.max(x), np.min(x)


serial, parallel = (numba.njit(extremes, parallel=flag)(values) for flag in (False, True))
print("Numba", numba.__version__, "serial:", serial, "parallel:", parallel, "NumPy:", extremes(values))
raise SystemExit(not (np.isnan(serial).all() and parallel == (3.0, 1.0)))
EOF
