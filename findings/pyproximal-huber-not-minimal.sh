#!/usr/bin/env bash
# PyProximal 0.13.0: Huber.prox does not minimise: it shrinks elements between alpha and alpha + tau as if the norm were L1.
# Seen for alpha 0.6, tau 1.5 and x = -1.281: prox is 0, while tau H(z) + (z - x)^2 / 2 is least at z = -0.366, as
# HuberCircular of the same package finds for one element. At |x| = tau > alpha the error is tau alpha / (tau + alpha).
# Why it matters: proximal gradients and ADMM with lift_proximal(pyproximal.Huber(...)) converge to a point that solves
# another problem, and report success. Elements outside of that interval are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  numpy==2.4.6 scipy==1.17.1 pylops==2.8.0 pyproximal==0.13.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import pyproximal
from scipy.optimize import minimize_scalar

alpha, tau = 0.6, 1.5
huber, circular = pyproximal.Huber(alpha), pyproximal.HuberCircular(alpha)
errors = []
for x in (-2.5, -1.281, 0.4, 1.1):
    least = minimize_scalar(lambda z: tau * huber(np.array([z])) + (z - x) ** 2 / 2, bounds=(-4, 4), method="bounded").x
    one, other = huber.prox(np.array([x]), tau)[0], circular.prox(np.array([x]), tau)[0]
    print(f"x {x:6.3f}  least at {least:6.3f}  Huber.prox {one:6.3f}  HuberCircular.prox {other:6.3f}")
    assert abs(other - least) < 1e-4
    errors.append(abs(one - least))
raise SystemExit(not (errors[0] < 1e-4 and errors[2] < 1e-4 and errors[1] > 0.3 and errors[3] > 0.3))
EOF
