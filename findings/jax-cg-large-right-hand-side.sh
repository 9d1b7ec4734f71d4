#!/usr/bin/env bash
# JAX 0.10.2 (and 0.12.0.1): jax.scipy.sparse.linalg.cg, gmres and bicgstab return x = 0 for a large float32 right-hand
# side. cg and bicgstab have no status (the second value is None), and gmres returns 0, its sign of success.
# Seen for the diagonal matrix (1, 2, 4) and b = 1e25: x = 0 from all three, where the solution is (1, 0.5, 0.25) * 1e25.
# Why it matters: the square of |b| overflows to infinity above 1.8e19, and every residual is below a tolerance of
# infinity. Data in small units are "solved" by zero, and nothing says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

matrix, b = jnp.diag(jnp.array([1, 2, 4], jnp.float32)), jnp.full(3, 1e25, jnp.float32)
found = {solve.__name__: solve(matrix, b) for solve in (cg, gmres, bicgstab)}
print("JAX", jax.__version__, {name: (x.tolist(), status) for name, (x, status) in found.items()})
raise SystemExit(not all((x == 0).all() and status in (None, 0) for x, status in found.values()))
EOF
