#!/usr/bin/env bash
# spgl1 0.0.3: small data are "solved" by x = 0, with a status of success. Tolerances are added to or compared with
# max(1, norm), in the units of the data.
# Seen for a sparse vector of 60 numbers and 30 data: spg_bp finds it to 7e-6. For the same data times 1e-4 its error is
# 8 %, and times 1e-7 the result is zero after no iteration. All three have the status 1 (root found).
# Why it matters: pressures in bars or displacements in metres have such sizes, and PyLops' SPGL1 passes the data on as they
# are. Divide the data by their norm first, and multiply the solution by it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 spgl1==0.0.3
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
from importlib.metadata import version

import numpy as np
import spgl1

rng = np.random.default_rng(0)
matrix, sparse, errors = rng.standard_normal((30, 60)), np.zeros(60), []
sparse[[3, 17, 40]] = 1.0, -2.0, 1.5
for unit in (1.0, 1e-4, 1e-7):
    x, _, _, info = spgl1.spg_bp(matrix, matrix @ sparse * unit)
    errors.append(np.linalg.norm(x / unit - sparse) / np.linalg.norm(sparse))
    print("data times", unit, "relative error", errors[-1], "status", info["stat"], "iterations", info["niters"])
    assert info["stat"] == 1
print("spgl1", version("spgl1"))
raise SystemExit(not (errors[0] < 1e-4 and errors[1] > 0.01 and errors[2] == 1))
EOF
