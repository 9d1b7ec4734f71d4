#!/usr/bin/env bash
# ObsPy 1.5.1: a sample interval with a fraction of a microsecond is cut when a SEG-Y file is written, without a warning.
# Seen for 62.5 microseconds (16 kHz): the file reads back with 62. The revision 2 field for it (3273) stays empty.
# Why it matters: site-survey and ultrasonic data are sampled like this. After one second the time axis is 8 ms short.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 obspy==1.5.1 setuptools==80.9.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import warnings

import numpy as np

warnings.simplefilter("ignore")
import obspy

trace = obspy.Trace(np.zeros(10, np.float32))
trace.stats.delta = 62.5e-6
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    obspy.Stream([trace]).write("line.segy", format="SEGY", data_encoding=5)
about = [str(warning.message) for warning in caught if "interval" in str(warning.message)]
delta = float(obspy.read("line.segy", format="SEGY")[0].stats.delta)
print("ObsPy", obspy.__version__, "written: 6.25e-05 s, read:", delta, "warnings about the interval:", about)
raise SystemExit(not (abs(delta - 62e-6) < 1e-12 and not about))
EOF
