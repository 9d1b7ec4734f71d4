#!/usr/bin/env bash
# JAX 0.10.2: an array of an explicit mesh that jax.device_put moves to one device keeps the mesh in its type, and no
# operation takes it.
# Seen for float32[8,4] split over two CPU devices of jax.make_mesh, whose axes are explicit by default: after
# jax.device_put(x, jax.devices()[0]) the sharding is of one device, the type is float32[8@d,4], and x + 1 raises
# "Length of device assignment 1 is not equal to the size of the mesh 2". With SingleDeviceSharding(device) instead of
# the device the type is float32[8,4], and all works. JAX 0.7.0 needs no such care.
# Why it matters: moving an array to the device of this rank is the remedy that libraries advise, collops as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2
cd "$folder"
"$folder/venv/bin/python" - <<'EOF'
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), devices=jax.devices())
x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, PartitionSpec("d")))
failed = {}
for name, place in (("device", jax.devices()[0]), ("SingleDeviceSharding", SingleDeviceSharding(jax.devices()[0]))):
    moved = jax.device_put(x, place)
    try:
        (moved + 1).block_until_ready()
        failed[name] = ""
    except ValueError as error:
        failed[name] = str(error).splitlines()[0]
    print("JAX", jax.__version__, name, moved.sharding, jax.typeof(moved), failed[name] or "works")
raise SystemExit(not (failed["device"] and not failed["SingleDeviceSharding"]))
EOF
