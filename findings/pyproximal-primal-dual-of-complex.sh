#!/usr/bin/env bash
# PyProximal 0.13.0: L1.proxdual projects complex numbers on a real interval: it clips them as NumPy orders complex
# numbers, by the real part. L1.prox of the same class is right. PrimalDual, which calls proxdual, therefore ends
# elsewhere.
# Seen: proxdual of 3 + 4i with sigma 1 is 1 instead of 0.6 + 0.8i. For min |x - b|^2 / 2 + |x|_1 and eight complex
# numbers b, 2000 iterations of PrimalDual end at an objective of 29.5, ADMM at the smallest, 22.6.
# Why it matters: sparse spectra and compressed sensing have complex unknowns, and
# collops.lift_proximal(pyproximal.L1()) takes the same proxdual. collops.L1 projects on the disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  numpy==2.4.6 scipy==1.17.1 pylops==2.8.0 pyproximal==0.13.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import pylops
import pyproximal
from pyproximal.optimization.primal import ADMM
from pyproximal.optimization.primaldual import PrimalDual

rng = np.random.default_rng(0)
b = 3 * (rng.standard_normal(8) + 1j * rng.standard_normal(8))
f, g, start = pyproximal.L2(b=b), pyproximal.L1(1.0), np.zeros(8, complex)


def objective(x):
    return np.linalg.norm(x - b) ** 2 / 2 + np.abs(x).sum()


least = objective(b * np.maximum(1 - 1 / np.abs(b), 0))
dual = g.proxdual(np.array([3 + 4j]), 1.0)[0]
ends = PrimalDual(f, g, pylops.Identity(8, dtype="complex128"), start, tau=0.9, mu=0.9, niter=2000)
other = ADMM(f, g, start, tau=0.9, niter=2000)[0]
print("PyProximal", pyproximal.__version__, "proxdual of 3 + 4i:", dual)
print("least", round(least, 4), "ADMM", round(objective(other), 4), "PrimalDual", round(objective(ends), 4))
assert objective(other) < least + 1e-6
raise SystemExit(not (abs(dual - (0.6 + 0.8j)) > 0.5 and objective(ends) > 1.2 * least))
EOF
