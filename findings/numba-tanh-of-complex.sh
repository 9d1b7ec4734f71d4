#!/usr/bin/env bash
# Numba 0.68.1: tanh of a complex number is NaN once the real part is above about 355.
# Seen: np.tanh(800 + 0j) is (nan+nanj) in a compiled function. NumPy has (1+0j), as C99 asks. (np.exp(800 + 0j) has the
# imaginary part nan likewise.)
# Why it matters: tanh of a complex thickness times wavenumber is the recursion for reflectivity and conductivity of
# layered media, and is 1 for thick layers. One NaN spreads through the whole transform.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.68.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numba
import numpy as np

tangent = numba.njit(lambda z: np.tanh(z))
found, reference = tangent(800 + 0j), np.tanh(np.complex128(800))
print("Numba", numba.__version__, "tanh of 300:", tangent(300 + 0j), "of 800:", found, "NumPy:", reference)
raise SystemExit(not (abs(tangent(300 + 0j) - 1) < 1e-12 and np.isnan(found) and reference == 1))
EOF
