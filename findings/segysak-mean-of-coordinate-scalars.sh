#!/usr/bin/env bash
# segysak 0.5.4: scale_coords divides all coordinates of a SEG-Y file by the mean of the scalars in its trace headers.
# Seen for four traces at 1000, 1025, 1050 and 1075 m, two stored in centimetres (scalar -100) and two in decimetres
# (-10): the coordinates are 1818, 1864, 191 and 195 m, without a warning. The standard has a scalar for each trace.
# Why it matters: merged surveys, and files whose writer chose the scalar by the size of each number, have such headers.
# Files with one scalar are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 xarray==2026.9.0 segyio==1.9.14 segysak==0.5.4
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
from importlib.metadata import version

import numpy as np
import segyio
import xarray

field = segyio.TraceField
spec = segyio.spec()
spec.format, spec.samples, spec.tracecount = 5, 4.0 * np.arange(6), 4
with segyio.create("lines.segy", spec) as file:
    for trace, (scalar, x) in enumerate([(-100, 100_000), (-100, 102_500), (-10, 10_500), (-10, 10_750)]):
        file.header[trace] = {field.SourceGroupScalar: scalar, field.CDP_X: x, field.CDP_Y: x}
        file.header[trace].update({field.INLINE_3D: 1 + trace // 2, field.CROSSLINE_3D: 1 + trace % 2})
        file.trace[trace] = np.zeros(6, np.float32)
places = {"dim_byte_fields": {"iline": 189, "xline": 193}, "extra_byte_fields": {"cdp_x": 181, "cdp_y": 185}}
volume = xarray.open_dataset("lines.segy", engine="sgy_engine", **places)
volume.segysak.scale_coords()
found = volume.cdp_x.values.ravel()
print("segysak", version("segysak"), found.round(1).tolist(), "expected [1000, 1025, 1050, 1075]")
raise SystemExit(not np.allclose(found, np.array([100_000, 102_500, 10_500, 10_750]) / 55))
EOF
