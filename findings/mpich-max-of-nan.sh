#!/usr/bin/env bash
# MPICH 5.0.2: MPI_Allreduce with MPI_MAX leaves different values on the ranks if one of them contributes a NaN.
# Seen on two ranks, one number, rank 0 has NaN and rank 1 has 1.0: the result is 1.0 on rank 0 and nan on rank 1.
# Why it matters: after a reduction all ranks are expected to hold the same value. A step length or a stopping test
# computed from it differs between the ranks, which then wait for each other for ever. NumPy's maximum propagates NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 mpi4py==4.1.2 mpich==5.0.2
cd "$folder"
cat > program.py <<'EOF'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
value = np.array([np.nan if comm.rank == 0 else 1.0])
largest = np.empty(1)
comm.Allreduce(value, largest, op=MPI.MAX)
results = comm.allgather(float(largest[0]))
if comm.rank == 0:
    print(MPI.Get_library_version().split("\n")[0], "largest value by rank:", results)
sys.exit(len({str(result) for result in results}) == 1)
EOF
"$folder/venv/bin/mpiexec" -n 2 "$folder/venv/bin/python" program.py || exit 1
