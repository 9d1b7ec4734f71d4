#!/usr/bin/env bash
# JAX 0.10.2: jax.scipy.sparse.linalg.gmres returns the starting point, with info = 0, if the norm of the right-hand side
# is below the rounding unit of its precision, 1.2e-7 in single and 2.2e-16 in double precision.
# Seen for the second difference of 20 points and b of norm 1e-8 in float32: zeros, a relative residual of 1; for a norm
# of 1e-6 the residual is 2e-7. cg and bicgstab solve both. In float64 the same for norms of 1e-17 and 1e-6.
# Why it matters: recorded amplitudes in volts or metres are that small, far from underflow, and data of zeros look like
# a result. The tolerances are relative, and no status shows it. Divide the right-hand side by its norm.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 jax==0.10.2
cd "$folder"
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

n = 20
A = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
direction = A @ np.sin(np.arange(n) + 1.0)
direction /= np.linalg.norm(direction)
wrong = []
for dtype, size in (("float32", 1e-6), ("float32", 1e-8), ("float64", 1e-6), ("float64", 1e-17)):
    matrix, b = jnp.asarray(A, dtype), jnp.asarray(size * direction, dtype)
    residuals = {}
    for solver in (gmres, cg, bicgstab):
        x, info = solver(lambda v: matrix @ v, b, tol=1e-5)
        residuals[solver.__name__] = float(jnp.linalg.norm(b - matrix @ x) / jnp.linalg.norm(b))
        assert not info and (solver is gmres or residuals[solver.__name__] < 1e-4)
    print("JAX", jax.__version__, dtype, "norm", size, {name: f"{value:.1e}" for name, value in residuals.items()})
    wrong.append(residuals["gmres"] > 0.99)
raise SystemExit(wrong != [False, True, False, True])
EOF
