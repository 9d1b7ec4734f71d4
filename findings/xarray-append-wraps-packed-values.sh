#!/usr/bin/env bash
# xarray 2026.9.0: values appended to a packed Zarr variable are packed with the scale of the first ones, and wrap around
# where they do not fit, without an error.
# Seen for int16 with scale_factor 0.1: 5000.0 is appended and reads back as -1553.6.
# Why it matters: seismic amplitudes are stored as int16 with a scale chosen for the first shots. A stronger shot that is
# appended later changes its sign, and only a look at the traces shows it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 zarr==3.1.6 xarray==2026.9.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import warnings

import numpy as np
import xarray

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first = xarray.Dataset({"amplitude": ("shot", np.array([0.0, 1.0, 2.0]))})
    first.to_zarr("survey.zarr", encoding={"amplitude": {"dtype": "int16", "scale_factor": 0.1}})
    xarray.Dataset({"amplitude": ("shot", np.array([5000.0]))}).to_zarr("survey.zarr", append_dim="shot")
    last = float(xarray.open_zarr("survey.zarr").amplitude[-1])
messages = sorted({str(warning.message)[:70] for warning in caught})
print("xarray", xarray.__version__, "appended 5000.0, read", last, "warnings:", messages)
raise SystemExit(not last < 0)
EOF
