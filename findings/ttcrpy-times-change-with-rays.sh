#!/usr/bin/env bash
# ttcrpy 1.5.3: with compute_L=True (or return_rays=True) Grid2d.raytrace by FSM or DSPM returns other travel times, up to a
# tenth too long in a constant medium: times along the traced rays, which are bent, replace those of the sweeps.
# Seen for 2000 m/s in 20 x 15 cells of 1 m: without the option the times are right to 0.12 %, with it those of two of
# five receivers are 7 % and 11 % too long, as are the rays (the sums of the rows of L). The method SPM is right both ways.
# Why it matters: tomography asks for times and ray lengths at once, so that residuals and sensitivities are both wrong
# by much more than the picks; L @ slowness agrees with the times, so that this check passes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 ttcrpy==1.5.3
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
from importlib.metadata import version

import numpy as np
from ttcrpy.rgrid import Grid2d

source = np.array([[3.3, 2.2]])
receivers = np.c_[np.full(5, 17.1), np.linspace(1.1, 13.9, 5)]
exact = np.linalg.norm(receivers - source, axis=1) / 2
worst = {}
for method in ("SPM", "FSM"):
    grid = Grid2d(np.arange(21.0), np.arange(16.0), cell_slowness=True, method=method, n_threads=1)
    slowness = np.full((20, 15), 0.5)
    alone = grid.raytrace(source, receivers, slowness=slowness)
    times, lengths = grid.raytrace(source, receivers, slowness=slowness, compute_L=True)
    assert np.allclose(lengths @ slowness.ravel(), times)
    worst[method] = [abs(found / exact - 1).max() for found in (alone, times)]
    print(method, "times / exact without L", (alone / exact).round(4), "with L", (times / exact).round(4))
print("ttcrpy", version("ttcrpy"), worst)
raise SystemExit(not (max(worst["SPM"]) < 0.002 and worst["FSM"][0] < 0.002 and worst["FSM"][1] > 0.05))
EOF
