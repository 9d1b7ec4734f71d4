#!/usr/bin/env bash
# lineax 0.1.1: LSMR raises TypeError for operators and vectors in float32 if JAX's 64-bit types are enabled. Its other
# iterative solvers accept them.
# Seen with JAX 0.10.2 for the diagonal matrix (1, 2, 3, 4): "lax.select requires arguments to have the same dtypes, got
# float32, float64"; without JAX_ENABLE_X64 the solution is right.
# Why it matters: programs enable 64-bit types for geometry and travel times while traces stay in single precision, and
# LSMR is lineax's solver for least squares of any shape. collops.bridges.lineax.Solver(collops.lsmr) solves it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 lineax==0.1.1
cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import lineax


def outcome(solver):
    matrix = jnp.diag(jnp.arange(1, 5, dtype="float32"))
    operator = lineax.MatrixLinearOperator(matrix, lineax.positive_semidefinite_tag)
    try:
        solution = lineax.linear_solve(operator, jnp.ones(4, "float32"), solver(rtol=1e-5, atol=1e-5)).value
    except TypeError as error:
        return str(error).partition(" (")[0]
    return bool(jnp.allclose(solution, 1 / jnp.arange(1, 5), rtol=1e-4))


found = {}
for enabled in (False, True):
    jax.config.update("jax_enable_x64", enabled)
    for solver in (lineax.LSMR, lineax.CG, lineax.BiCGStab, lineax.GMRES):
        found[enabled, solver.__name__] = outcome(solver)
print("lineax", lineax.__version__, found)
error = found.pop((True, "LSMR"))
raise SystemExit(error is True or "float32, float64" not in error or set(found.values()) != {True})
EOF
