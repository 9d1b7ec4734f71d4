#!/usr/bin/env bash
# ObsPy 1.5.1: NaN and infinity written to SEG-Y in the IBM format (data_encoding=1) read back as zeros, without an error.
# Seen: [1, nan, inf] reads as [1, -0, 0]. In the IEEE format (data_encoding=5) they survive.
# Why it matters: the IBM format has no such values. A diverged result that is exported in the format which most older
# programs ask for looks like muted traces.
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

trace = obspy.Trace(np.array([1, np.nan, np.inf], np.float32))
trace.stats.delta = 0.002
read = {}
for encoding in (1, 5):
    obspy.Stream([trace]).write("line.segy", format="SEGY", data_encoding=encoding)
    read[encoding] = obspy.read("line.segy", format="SEGY")[0].data
print("ObsPy", obspy.__version__, "IBM:", read[1], "IEEE:", read[5])
raise SystemExit(not ((read[1][1:] == 0).all() and np.isnan(read[5][1]) and np.isinf(read[5][2])))
EOF
