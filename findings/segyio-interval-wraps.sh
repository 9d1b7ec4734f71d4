#!/usr/bin/env bash
# segyio 1.9.14: create writes a sample interval of 65.536 ms or more modulo 65.536 ms, without an error.
# Seen for samples 70 ms apart: the header holds 4464 microseconds, and the file reads back with samples 4.464 ms apart.
# Why it matters: slices in depth or of long-period data (ocean-bottom seismometers, velocity models at 100 m, written in
# millimetres as some programs do) come back with another axis. The header's field has 16 bits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 segyio==1.9.14
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
from importlib.metadata import version

import numpy as np
import segyio

spec = segyio.spec()
spec.format, spec.samples, spec.tracecount = 5, 70.0 * np.arange(6), 1
with segyio.create("line.segy", spec) as file:
    file.trace[0] = np.arange(6, dtype=np.float32)
with segyio.open("line.segy", ignore_geometry=True) as file:
    samples = file.samples.tolist()
print("segyio", version("segyio"), "written:", spec.samples.tolist(), "read:", samples)
raise SystemExit(not abs(samples[1] - 4.464) < 1e-9)
EOF
