#!/usr/bin/env bash
# lineax 0.1.1: BiCGStab raises an error that its output is not finite if the first half of a step finds the solution,
# because it then divides zero by zero.
# Seen with JAX 0.10.2 in float64 for twice the identity and for a system of one unknown. lineax's CG and GMRES, and
# bicgstab of JAX and of SciPy, return the solution.
# Why it matters: this is the case for a preconditioner that is the inverse, for a system whose parts are decoupled, and
# in tests. The message, "returned non-finite (NaN or inf) output", advises to check the operator for such values.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 scipy==1.17.1 jax==0.10.2 lineax==0.1.1
cd "$folder"
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import scipy.sparse.linalg

failed = []
for n in (1, 4):
    matrix, b = 2 * jnp.eye(n), jnp.arange(1.0, n + 1)
    operator = lineax.MatrixLinearOperator(matrix, lineax.positive_semidefinite_tag)
    solutions = [
        jax.scipy.sparse.linalg.bicgstab(lambda x, matrix=matrix: matrix @ x, b)[0],
        scipy.sparse.linalg.bicgstab(np.asarray(matrix), np.asarray(b))[0],
        lineax.linear_solve(operator, b, lineax.CG(rtol=1e-6, atol=1e-6)).value,
        lineax.linear_solve(operator, b, lineax.GMRES(rtol=1e-6, atol=1e-6)).value,
    ]
    assert all(np.allclose(x, b / 2) for x in solutions)
    found = lineax.linear_solve(operator, b, lineax.BiCGStab(rtol=1e-6, atol=1e-6), throw=False)
    print("lineax", lineax.__version__, "unknowns", n, "value", found.value, lineax.RESULTS[found.result][:60])
    failed.append(bool(found.result != lineax.RESULTS.successful) and not bool(jnp.isfinite(found.value).any()))
raise SystemExit(not all(failed))
EOF
