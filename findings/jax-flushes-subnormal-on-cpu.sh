#!/usr/bin/env bash
# JAX 0.10.2 (and 0.12.0.1) on CPUs flushes subnormal numbers to zero, eagerly and under jit; NumPy does not.
# Seen: float32(1e-40) + float32(1e-40) is 0 in JAX and 2e-40 in NumPy. JAX 0.11.2 keeps such numbers on NVIDIA GPUs.
# Why it matters: the same program has other zeros on a laptop than on the GPU node and in NumPy. A comparison of two
# engines bit by bit, and tests such as `x != 0`, fail for wavefields ahead of their front.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np

tiny = np.full(1, 1e-40, np.float32)
eager = float((jnp.asarray(tiny) + jnp.asarray(tiny))[0])
compiled = float(jax.jit(lambda x: x + x)(jnp.asarray(tiny))[0])
exact = float((tiny + tiny)[0])
print("JAX", jax.__version__, jax.default_backend(), "eager:", eager, "compiled:", compiled, "NumPy:", exact)
raise SystemExit(not (eager == compiled == 0 and exact > 0))
EOF
