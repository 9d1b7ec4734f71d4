#!/usr/bin/env bash
# finufft 2.5.1: Plan.setpts keeps a reference to the points and no copy, if they are contiguous and in the precision of the
# plan. A change of these arrays changes the transforms that follow. Points that need a conversion are copied.
# Seen for 50 points in 8 modes: after setpts(x) and x += 1, the error of execute() is larger than the result. If x is every
# second element of an array, execute() still has the transform at the old points. The docstring of setpts does not say
# that the points must stay.
# Why it matters: programs often read the coordinates of each shot into one array. Plans of the earlier shots then silently
# transform to the points of the last one. Pass copies.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 finufft==2.5.1
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import finufft
import numpy as np

rng = np.random.default_rng(0)
points, modes = rng.uniform(-1, 1, 50), rng.standard_normal(8) + 1j * rng.standard_normal(8)
before = np.exp(1j * np.outer(points, np.arange(-4, 4))) @ modes
error = {}
for name, given in (("contiguous", points.copy()), ("strided", np.repeat(points, 2)[::2])):
    plan = finufft.Plan(2, (8,), eps=1e-12, isign=1)
    plan.setpts(given)
    assert abs(plan.execute(modes) - before).max() < 1e-9
    given += 1
    error[name] = abs(plan.execute(modes) - before).max() / abs(before).max()
print("finufft", finufft.__version__, "error after the points changed:", error)
raise SystemExit(not (error["contiguous"] > 0.1 and error["strided"] < 1e-9))
EOF
