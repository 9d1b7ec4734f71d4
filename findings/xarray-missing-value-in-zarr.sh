#!/usr/bin/env bash
# xarray 2026.9.0 with Zarr-Python 3.1.6: where the mark of missing values is found depends on the Zarr format and on the
# type. Format 2: the array's fill_value, and no attribute. Format 3, integers: a number in the attribute _FillValue.
# Format 3, floating point: base64 text there. In format 3 the array's own fill_value is another number (nan, 0).
# Seen for _FillValue=-999.0 of float32: format 2 has fill_value -999 and no attribute, format 3 has 'AAAAAAA4j8A='.
# Why it matters: a program that reads such stores by Zarr itself, and looks for a number in the attribute as in NetCDF,
# takes -999 for an amplitude or a coordinate. Behind the text are the eight bytes of a little-endian float64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 zarr==3.1.6 xarray==2026.9.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import base64
import struct
import warnings

import numpy as np
import xarray
import zarr

warnings.simplefilter("ignore")
values = np.array([1, np.nan, 3])
dataset = xarray.Dataset({"amplitude": ("x", values.astype("float32")), "count": ("x", values)})
encoding = {"amplitude": {"_FillValue": -999.0}, "count": {"dtype": "int16", "_FillValue": -1}}
marks = {}
for version in (2, 3):
    dataset.to_zarr(f"{version}.zarr", zarr_format=version, encoding=encoding)
    for name in ("amplitude", "count"):
        array = zarr.open_group(f"{version}.zarr", mode="r")[name]
        marks[version, name] = float(array.fill_value), array.attrs.get("_FillValue")
print("xarray", xarray.__version__, "fill_value and attribute:", marks)
text = marks[3, "amplitude"][1]
found = marks[2, "amplitude"] == (-999.0, None) and marks[2, "count"] == (-1.0, None) and marks[3, "count"] == (0.0, -1)
raise SystemExit(not (found and struct.unpack("<d", base64.b64decode(text)) == (-999.0,)))
EOF
