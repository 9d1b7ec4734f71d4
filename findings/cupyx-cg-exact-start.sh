#!/usr/bin/env bash
# CuPy 14.2.0, cupyx.scipy.sparse.linalg.cg: a start that is the solution becomes NaN.
# Seen for diag(1, 2, 3) x = (1, 1, 1) with x0 = (1, 1/2, 1/3): CuPy returns (nan, nan, nan) and the status 30, all
# iterations that it may make; SciPy 1.17.1 and 1.18.1 return x0 and 0. The residual of x0 is zero, and the first step
# divides 0 by 0 before anything is compared with the tolerance.
# Why it matters: time steps and outer iterations start from the last solution. Where nothing changes, as in a state of
# rest, the next solution is NaN, and all that follow. Compare the residual with the tolerance first.
# Needs one NVIDIA GPU and CuPy 14.2.0 in python3, such as cupy-cuda13x==14.2.0: exit 77 without.
set -euo pipefail
python3 -c 'import cupy; cupy.cuda.runtime.getDeviceCount()' 2> /dev/null || exit 77
cd "$(mktemp -d)"
python3 - <<'EOF'
import cupy
import numpy as np
import scipy
from cupyx.scipy.sparse import csr_matrix
from cupyx.scipy.sparse.linalg import cg
from scipy.sparse.linalg import cg as cg_of_scipy

matrix, start = np.diag([1.0, 2.0, 3.0]), np.array([1.0, 1 / 2, 1 / 3])
found, status = cg(csr_matrix(cupy.asarray(matrix)), cupy.ones(3), x0=cupy.asarray(start))
expected, status_of_scipy = cg_of_scipy(matrix, np.ones(3), x0=start)
print("CuPy", cupy.__version__, found, status, "SciPy", scipy.__version__, expected, status_of_scipy)
wrong = bool(cupy.isnan(found).all()) and status > 0
raise SystemExit(not (wrong and status_of_scipy == 0 and (expected == start).all()))
EOF
