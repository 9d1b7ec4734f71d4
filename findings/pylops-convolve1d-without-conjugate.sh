#!/usr/bin/env bash
# PyLops 2.8.0: the adjoint of Convolve1D with a complex filter lacks the conjugate. It is the transpose, and ConvolveND
# with the same filter has the adjoint.
# Seen for h = (1, 2i, 3 - i), with both methods and all offsets: <y, A x> is 13.4 + 8.4i, <A^H y, x> is -8.6 - 13.5i,
# and 100 iterations of CGLS on noise-free data leave a solution with several times the norm of the true one as its
# error.
# Why it matters: convolutions with analytic signals and complex wavelets invert to noise without a message. Real filters
# are right, and ConvolveND is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pylops==2.8.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import pylops
from pylops.optimization.basic import cgls
from pylops.signalprocessing import Convolve1D, ConvolveND

rng = np.random.default_rng(0)
n, h = 9, np.array([1, 2j, 3 - 1j])
x, y = (rng.standard_normal(n) + 1j * rng.standard_normal(n) for _ in range(2))


def pair(A):
    return np.vdot(y, A @ x), np.vdot(A.H @ y, x)


differ = []
for method in ("direct", "fft"):
    for offset in (0, 1, 2):
        left, right = pair(Convolve1D(n, h, offset=offset, method=method, dtype="complex128"))
        print("Convolve1D", method, offset, left.round(2), right.round(2))
        differ.append(abs(left - right) > 1)
A = Convolve1D(n, h, offset=1, dtype="complex128")
dense = A.todense()
assert np.allclose(A.H @ y, dense.T @ y) and not np.allclose(A.H @ y, dense.conj().T @ y)
assert np.isclose(*pair(ConvolveND((n, 1), h[:, None], offset=(1, 0), axes=(0, 1), dtype="complex128")))
assert np.isclose(*pair(Convolve1D(n, h.imag, offset=1, dtype="complex128")))
found = cgls(A, A @ x, x0=np.zeros(n, complex), niter=100, tol=1e-20)[0]
error = np.linalg.norm(found - x) / np.linalg.norm(x)
print("PyLops", pylops.__version__, "condition number", np.linalg.cond(dense).round(1), "error of CGLS", error.round(2))
raise SystemExit(not (all(differ) and error > 1))
EOF
