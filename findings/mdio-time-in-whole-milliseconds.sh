#!/usr/bin/env bash
# MDIO (multidimio) 1.1.3: segy_to_mdio stores the time axis in whole milliseconds, and cuts fractions without a warning.
# Seen for a volume sampled every 500 microseconds: time is (0, 0, 1, 1, 2, 2) ms as int32, and all zeros for 62
# microseconds. Every 2000 microseconds it is right. The headers that are copied from the file have the interval.
# Why it matters: site surveys and vertical seismic profiles are sampled like this. Two samples have one time, so that
# selecting by time returns two of them, and an interval from the axis is 0 or 1 ms.
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


def times(interval):
    spec, delay = segyio.spec(), 0
    spec.format, spec.samples, spec.tracecount = 5, np.arange(6) * interval / 1e3, 4
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
    found = {interval: times(interval).tolist() for interval in (2000, 500, 62)}
    print("multidimio", version("multidimio"), "microseconds and times in ms:", found)
    right = [0, 2, 4, 6, 8, 10], [0, 0, 1, 1, 2, 2], [0] * 6
    raise SystemExit(not tuple(found.values()) == right)
EOF
"$folder/venv/bin/python" convert.py 2> log || { tail -5 log; exit 1; }
