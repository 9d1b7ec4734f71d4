#!/usr/bin/env bash
# scikit-fmm 2025.6.23: travel_time reads a speed that is not in C order as if it were, without an error.
# Seen for a speed that grows with depth, 60 x 80 points: the same values in Fortran order give times that differ by up
# to 0.18 s, where the longest time is 0.49 s.
# Why it matters: velocity models are often transposed views, for instance of SEG-Y traces. The travel times look smooth
# and plausible, and the migrated image is wrong. Pass numpy.ascontiguousarray(speed).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scikit-fmm==2025.6.23
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import skfmm

speed = np.linspace(1500.0, 3000.0, 60)[:, None] * np.ones(80)
source = np.ones_like(speed)
source[0, 0] = -1
times = skfmm.travel_time(source, speed, dx=10.0)
transposed = skfmm.travel_time(source, np.asfortranarray(speed), dx=10.0)
difference = abs(times - transposed).max()
print(f"longest time {times.max():.3f} s; Fortran order differs by up to {difference:.3f} s")
raise SystemExit(bool(difference < 0.1))
EOF
