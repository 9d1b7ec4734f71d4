#!/usr/bin/env bash
# Zarr-Python 3.1.6 (and 3.4.2): a chunk of complex negative zeros is not written, and reads as positive zeros.
# Seen: complex128 values of -0.0 come back with signbit False; float64, float32 and float16 keep the sign.
# Why it matters: the sign of zero selects the side of a branch cut (square roots of slownesses, logarithms, angles), and
# a checkpoint that is resumed no longer has the bits of the run that wrote it. The option write_empty_chunks keeps them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 zarr==3.1.6
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import zarr

signs = {}
for dtype in ("float64", "complex128"):
    values = np.full(4, -0.0).astype(dtype)
    assert np.signbit(values.real).all()
    array = zarr.create_array(f"{dtype}.zarr", shape=(4,), chunks=(4,), dtype=dtype)
    array[:] = values
    signs[dtype] = bool(np.signbit(zarr.open_array(f"{dtype}.zarr", mode="r")[:].real).all())
print("Zarr", zarr.__version__, "keeps the sign of zero:", signs)
raise SystemExit(signs != {"float64": True, "complex128": False})
EOF
