#!/usr/bin/env bash
# Dask 2026.8.0: the mean of a float16 array is NaN where NumPy's is right.
# Seen for 70,000 ones in chunks of 1000: dask has nan, NumPy 1.0. NumPy adds float16 in float32 for a mean; dask adds the
# sums and the counts of the chunks in float16, and both overflow to infinity above 65,504.
# Why it matters: half precision is how large volumes are stored. Pass dtype="float32" to mean, var and std.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "numpy==2.4.6" "dask[array]==2026.8.0"
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import warnings

import dask
import dask.array
import numpy as np

warnings.simplefilter("ignore")
ones = np.ones(70_000, np.float16)
mean = float(dask.array.from_array(ones, chunks=1000).mean().compute())
print("dask", dask.__version__, "mean:", mean, "NumPy:", float(ones.mean()))
raise SystemExit(not (np.isnan(mean) and ones.mean() == 1))
EOF
