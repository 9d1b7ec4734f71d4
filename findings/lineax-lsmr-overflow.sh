#!/usr/bin/env bash
# lineax 0.1.1: LSMR reports a successful solve with x = 0 for a large float32 right-hand side. Its CG and BiCGStab
# report "non-finite" for the same problem.
# Seen for the diagonal matrix (1, 2, 4) and b = 1e25: x = 0, result "successful", istop 2, norm_r inf, norm_Ar nan.
# Why it matters: lineax raises or returns a failure by default, so that callers do not look at the norms. Zero passes for
# the least-squares solution.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 lineax==0.1.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import jax.numpy as jnp
import lineax

operator = lineax.MatrixLinearOperator(jnp.diag(jnp.array([1, 2, 4], jnp.float32)))
solver = lineax.LSMR(rtol=1e-6, atol=0)
solution = lineax.linear_solve(operator, jnp.full(3, 1e25, jnp.float32), solver, throw=False)
success = bool(solution.result == lineax.RESULTS.successful)
norms = {name: float(solution.stats[name]) for name in ("istop", "norm_r", "norm_Ar")}
print("lineax", lineax.__version__, "success:", success, "x:", solution.value.tolist(), norms)
raise SystemExit(not (success and (solution.value == 0).all()))
EOF
