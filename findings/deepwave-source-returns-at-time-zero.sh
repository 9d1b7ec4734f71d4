#!/usr/bin/env bash
# deepwave 0.1.0: a source that has not decayed at its last sample also acts at time zero, where the time step is divided.
# Seen at 2000 m/s, cells of 5 m and a source of 10 Hz that goes on to the end: 0.16 s before its first arrival at 400 m
# a trace has a sixth of its largest value if samples are 4 ms apart, which deepwave divides by three, and 1e-10 of it
# if they are 1 ms apart. It resamples sources by a Fourier series, whose period is the trace, and pads only when asked
# (time_pad_frac).
# Why it matters: recorded or inverted source signatures are cut at the length of the traces. Modelled first breaks are
# then wrong, silently, and only for time steps above the stability limit. collops pads before it interpolates.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 deepwave==0.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import deepwave
import numpy as np
import torch


def early(interval, samples):
    """The largest value of a trace before 0.16 s, as a part of its largest; the first arrival comes after 0.2 s."""
    source = np.sin(20 * np.pi * interval * np.arange(samples))
    trace = deepwave.scalar(
        torch.full((120, 120), 2000.0), 5.0, interval,
        source_amplitudes=torch.tensor(source, dtype=torch.float32)[None, None],
        source_locations=torch.tensor([[[20, 60]]]), receiver_locations=torch.tensor([[[100, 60]]]), pml_freq=10.0,
    )[-1][0, 0].numpy()
    return np.abs(trace[: round(0.16 / interval)]).max() / np.abs(trace).max()


coarse, fine = early(0.004, 100), early(0.001, 400)
print(f"deepwave {deepwave.__version__}: before the first arrival {coarse:.2g} at 4 ms, {fine:.2g} at 1 ms")
raise SystemExit(not (coarse > 0.1 and fine < 1e-6))
EOF
