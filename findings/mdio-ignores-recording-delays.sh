#!/usr/bin/env bash
# MDIO (multidimio) 1.1.3: segy_to_mdio ignores the delay recording time of SEG-Y (bytes 109 to 110): the time axis begins at
# zero.
# Seen for a volume whose traces begin at 1000 ms, and at -20 ms: time is (0, 4, 8, 12, 16, 20) ms in both, without a
# warning. segyio has the samples from 1000 and from -20 ms on.
# Why it matters: windows of large volumes are exported with this header. In the Zarr store every event is early by the
# delay, and velocities or wells in time do not fit. Add the delay to the axis after the conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 segyio==1.9.14 multidimio==1.1.3 segy==0.6.1 zarr==3.1.6 xarray==2026.9.0
cd "$folder"
cat > convert.py <<'EOF'
import logging
from importlib.metadata import version

import numpy as np
import segyio
from mdio import open_mdio, segy_to_mdio
from mdio.builder.template_registry import get_template
from segy.schema import HeaderField
from segy.standards import get_segy_standard

logging.disable(logging.WARNING)
field = segyio.TraceField


def times(delay):
    spec, interval = segyio.spec(), 4000
    spec.format, spec.samples, spec.tracecount = 5, 4.0 * np.arange(6), 4
    with segyio.create("volume.segy", spec) as file:
        file.bin.update({segyio.BinField.Interval: interval, segyio.BinField.SEGYRevision: 1})
        for trace in range(4):
            file.header[trace] = {field.INLINE_3D: 1 + trace // 2, field.CROSSLINE_3D: 1 + trace % 2}
            file.header[trace].update({field.CDP_X: trace, field.CDP_Y: trace, field.SourceGroupScalar: 1})
            file.header[trace].update({field.TRACE_SAMPLE_INTERVAL: interval, field.DelayRecordingTime: delay})
            file.trace[trace] = np.ones(6, np.float32)
    places = {"inline": 189, "crossline": 193, "cdp_x": 181, "cdp_y": 185}
    headers = [HeaderField(name=name, byte=byte, format="int32") for name, byte in places.items()]
    headers.append(HeaderField(name="coordinate_scalar", byte=71, format="int16"))
    standard = get_segy_standard(1.0).customize(trace_header_fields=headers)
    segy_to_mdio(standard, get_template("PostStack3DTime"), "volume.segy", "volume.mdio", overwrite=True)
    return open_mdio("volume.mdio")["time"].values


if __name__ == "__main__":
    found = {}
    for delay in (1000, -20):
        found[delay] = times(delay).tolist()
        with segyio.open("volume.segy", ignore_geometry=True) as file:
            assert file.samples[0] == delay
    print("multidimio", version("multidimio"), "delay and times in ms:", found)
    raise SystemExit(not all(axis == [0, 4, 8, 12, 16, 20] for axis in found.values()))
EOF
"$folder/venv/bin/python" convert.py 2> log || { tail -5 log; exit 1; }
