#!/usr/bin/env bash
# segyio 1.9.14 reads the extended number of samples of SEG-Y revision 2 (bytes 3269 to 3272), but not the extended
# sample interval (bytes 3273 to 3280).
# Seen for a revision 2 file with 62.5 microseconds there and 62 in the old two-byte field: tools.dt and samples say 62.
# Why it matters: the standard gives the extended field precedence. After 16,000 samples of a high-resolution survey the
# time axis is 8 ms short, and frequencies are 0.8 % off. segyio has no name for the field: read the bytes yourself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 segyio==1.9.14
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import struct
from importlib.metadata import version

import numpy as np
import segyio

samples, traces = 10, 2
header = bytearray(400)
struct.pack_into(">hhh", header, 16, 62, 0, 0)  # interval in microseconds (3217), and no number of samples (3221)
struct.pack_into(">h", header, 24, 5)  # IEEE floating point, 3225
struct.pack_into(">id", header, 68, samples, 62.5)  # extended number of samples and interval, 3269 and 3273
struct.pack_into(">i", header, 96, 16909060)  # byte order, 3297
header[300:302] = 2, 0  # revision
with open("line.segy", "wb") as file:
    file.write(b" " * 3200 + header)
    for number in range(traces):
        trace = bytearray(240)
        struct.pack_into(">i", trace, 0, number + 1)
        struct.pack_into(">hh", trace, 114, samples, 62)
        file.write(trace + np.arange(samples, dtype=">f4").tobytes())
with segyio.open("line.segy", ignore_geometry=True) as file:
    interval, count = segyio.tools.dt(file), len(file.samples)
print("segyio", version("segyio"), "samples:", count, "interval:", interval, "microseconds; the file says 62.5")
raise SystemExit(not (count == samples and interval == 62))
EOF
