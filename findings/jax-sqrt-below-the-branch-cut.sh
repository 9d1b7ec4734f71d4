#!/usr/bin/env bash
# JAX 0.10.2 (and 0.12.0.1) on CPUs: sqrt of a complex number just below the branch cut ignores the sign of its zero.
# Seen: jnp.sqrt of complex64(-1, -0.0) is +1j. NumPy and C99 return -1j, and jnp.log of the same number has the imaginary
# part -pi, so that exp(log(z) / 2) and sqrt(z) disagree.
# Why it matters: vertical wavenumbers are square roots of negative numbers for evanescent waves. With the conjugate
# convention of the transform the imaginary part is -0.0, and the wrong root grows where the right one decays.
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

below = np.array([complex(-1.0, -0.0)], np.complex64)
root, reference = complex(jnp.sqrt(jnp.asarray(below))[0]), complex(np.sqrt(below)[0])
angle = float(jnp.log(jnp.asarray(below)).imag[0])
print("JAX", jax.__version__, "sqrt:", root, "imaginary part of log:", angle, "NumPy's sqrt:", reference)
raise SystemExit(not (root.imag == 1 and reference.imag == -1 and angle < 0))
EOF
