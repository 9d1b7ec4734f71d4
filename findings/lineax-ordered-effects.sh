#!/usr/bin/env bash
# lineax 0.1.1: an operator with an ordered effect of JAX cannot be used in lineax.linear_solve. JAX 0.10.2 raises a KeyError
# that names the effect when it lowers the program, eagerly and under jit. jax.scipy.sparse.linalg.cg solves the system.
# Seen for the diagonal matrix (1, 2, 4) whose product logs by io_callback(ordered=True): KeyError:
# <jax._src.callback.OrderedIOEffect object at …>.
# Why it matters: messages between processes are ordered effects, so that an operator with messages fails in the same way,
# with an error that names neither lineax nor the operator. The primitive of linear_solve declares no effects.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 lineax==0.1.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import lineax
from jax.experimental import io_callback


def product(x):
    io_callback(lambda: None, None, ordered=True)
    return jnp.array([1.0, 2.0, 4.0]) * x


y = jnp.ones(3)
operator = lineax.FunctionLinearOperator(product, jax.eval_shape(lambda: y), lineax.positive_semidefinite_tag)



def solve(y):
    return lineax.linear_solve(operator, y, lineax.CG(rtol=1e-6, atol=0)).value


failures = []
for function in (solve, jax.jit(solve)):
    try:
        function(y)
        failures.append("none")
    except Exception as error:
        failures.append(type(error).__name__)
expected = jax.jit(lambda y: jax.scipy.sparse.linalg.cg(product, y)[0])(y)
print("lineax", lineax.__version__, failures, "jax.scipy:", expected.tolist())
solved = jnp.allclose(expected, jnp.array([1.0, 0.5, 0.25]), rtol=1e-5)
raise SystemExit(not (failures == ["KeyError"] * 2 and bool(solved)))
EOF
