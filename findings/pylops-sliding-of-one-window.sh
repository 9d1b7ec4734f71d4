#!/usr/bin/env bash
# PyLops 2.8.0: Sliding1D with a single window repeats the first sample of the window over all its samples. An operator
# for each window and an operator for all windows at once are told apart by the sizes, which are equal for one window.
# Seen for nine samples, a window of nine and tapertype=None: S @ x is nine times (M @ x)[0], and the dot test fails.
# Two windows of the same operator are right. (With a taper, the adjoint raises an error.)
# Why it matters: a design for any length meets traces, or the last block of a long record, that fit in one window. The
# forward is wrong without a message. collops.Sliding of one window is the operator itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pylops==2.8.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import pylops
from pylops.signalprocessing.sliding1d import Sliding1D, sliding1d_design

rng = np.random.default_rng(0)
matrix, error = rng.standard_normal((9, 3)), {}
for samples in (9, 17):
    windows, dim, *_ = sliding1d_design(samples, 9, 1, 3)
    S = Sliding1D(pylops.MatrixMult(matrix), dim, samples, 9, 1, tapertype=None)
    x = rng.standard_normal((windows, 3))
    expected = np.zeros(samples)
    for number in range(windows):
        expected[8 * number : 8 * number + 9] += matrix @ x[number]
    found = S @ x.ravel()
    error[windows] = np.abs(found - expected).max()
    print(windows, "window(s)", found.round(2), "expected", expected.round(2))
    if windows == 1:
        assert np.allclose(found, expected[0])
print("PyLops", pylops.__version__)
raise SystemExit(not (error[1] > 1 and error[2] < 1e-12))
EOF
