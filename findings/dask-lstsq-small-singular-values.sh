#!/usr/bin/env bash
# Dask 2026.8.0: the singular values that dask.array.linalg.lstsq returns are roots of the eigenvalues of A^H A, of
# which small ones are rounding errors: wrong or NaN below 1e-8 of the largest in double precision, 3e-4 in single
# precision.
# Seen for 1, 1e-3, 1e-9 and 1e-11: lstsq has 3.1e-9 (or NaN) and NaN, where NumPy's lstsq and dask.array.linalg.svd
# have all four to five digits; in float32 for 1, 1e-2, 3e-5 and 1e-5 likewise. The solution and the rank are right.
# Why it matters: condition numbers and truncations of large least-squares problems are chosen by these numbers. A
# problem of condition 1e11 looks like one of 1e9, and a comparison with NaN keeps or drops its direction by accident.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 dask==2026.8.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'EOF'
import dask
import dask.array as da
import numpy as np

rng = np.random.default_rng(0)
left, right = np.linalg.qr(rng.standard_normal((60, 4)))[0], np.linalg.qr(rng.standard_normal((4, 4)))[0]
wrong = []
for dtype, values in (("float64", [1, 1e-3, 1e-9, 1e-11]), ("float32", [1, 1e-2, 3e-5, 1e-5])):
    A = (left * values @ right.T).astype(dtype)
    chunked = da.from_array(A, chunks=(20, 4))
    *_, rank, found = dask.compute(*da.linalg.lstsq(chunked, da.from_array(A @ np.ones(4, dtype), chunks=20)))
    other, reference = da.linalg.svd(chunked)[1].compute(), np.linalg.lstsq(A, A @ np.ones(4, dtype))[3]
    print("dask", dask.__version__, dtype, "lstsq", found, "svd", other, "NumPy's lstsq", reference, "rank", rank)
    assert np.allclose(other, values, rtol=0.05, atol=0) and np.allclose(reference, values, rtol=0.05, atol=0)
    assert np.allclose(found[:2], values[:2], rtol=1e-2, atol=0)
    wrong.append(not np.isclose(found[2:], values[2:], rtol=0.5, atol=0).any())
raise SystemExit(not all(wrong))
EOF
