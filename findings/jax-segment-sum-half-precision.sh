#!/usr/bin/env bash
# JAX 0.10.2 (and 0.12.0.1) on CPUs: segment_sum and scatter-add of float16 accumulate in float16, jnp.sum does not.
# Seen: 4096 ones in one segment sum to 2048, since 2048 + 1 rounds to 2048; jnp.sum of the same array is 4096.
# Why it matters: the adjoint of a gather (ghost values, interpolation, a sparse product) is a scatter-add. In half
# precision it stops growing at 2048 contributions of equal size, and the dot test fails.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp

ones = jnp.ones(4096, jnp.float16)
segment = float(jax.ops.segment_sum(ones, jnp.zeros(4096, int), num_segments=1)[0])
print("JAX", jax.__version__, "segment_sum:", segment, "sum:", float(jnp.sum(ones)))
raise SystemExit(not (segment == 2048 and float(jnp.sum(ones)) == 4096))
EOF
