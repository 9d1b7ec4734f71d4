#!/usr/bin/env bash
# PyNUFFT 2025.2.1: NUFFT.adjoint is the adjoint of NUFFT.forward divided by the number of points of the oversampled grid.
# Seen for eight samples on a grid of 24 points and 50 frequencies: <y, A x> is 24 times <A^H y, x>, and E^H y of the
# matrix E of exponentials is 24 times adjoint(y). forward agrees with E to five digits.
# Why it matters: the steps of CGLS with this pair are shorter by that factor, 10^6 for an image of 512 x 512 on a grid of
# twice as many points each way, and damping counts that many times more. Multiply adjoint by numpy.prod(Kd): the dot
# test then passes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pynufft==2025.2.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
from importlib.metadata import version

import numpy as np
from pynufft import NUFFT

rng = np.random.default_rng(0)
omega = rng.uniform(-np.pi, np.pi, (50, 1))
transform = NUFFT()
transform.plan(omega, (8,), (24,), (6,))
matrix = np.exp(-1j * omega * np.arange(-4, 4))
x, y = (rng.standard_normal(n) + 1j * rng.standard_normal(n) for n in (8, 50))
forward = abs(transform.forward(x) - matrix @ x).max() / abs(matrix @ x).max()
ratio = np.vdot(y, transform.forward(x)) / np.vdot(transform.adjoint(y), x)
of_matrix = (matrix.conj().T @ y) / transform.adjoint(y)
print("PyNUFFT", version("pynufft"), "error of forward", forward, "<y, A x> / <A^H y, x>:", ratio.round(2))
print("E^H y / adjoint(y):", of_matrix.round(2))
raise SystemExit(not (forward < 1e-4 and abs(ratio - 24) < 0.1 and abs(of_matrix - 24).max() < 0.1))
EOF
