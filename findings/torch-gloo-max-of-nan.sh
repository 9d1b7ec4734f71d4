#!/usr/bin/env bash
# PyTorch 2.13.0, torch.distributed on hosts (Gloo): MAX and MIN of NaN depend on the position of the element and on the
# rank that has the NaN.
# Seen for three equal elements on three ranks: NaN on rank 0 gives (nan, nan, 1), on rank 1 (1, 1, nan), and on rank 2
# (1, 1, 1): the NaN is gone. torch.maximum, and all_reduce with SUM, return NaN in each case. The documentation of
# ReduceOp says nothing of NaN.
# Why it matters: programs look for NaN in the largest absolute value, such as a gradient's before it is clipped, or a
# residual's. A rank's NaN passes unseen, or is seen on some numbers of ranks only.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
cd "$folder"
cat > program.py <<'EOP'
import math

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

RANKS = 3


def work(rank):
    store = dist.FileStore("store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found = []
    for operation in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.SUM):
        for where in range(RANKS):
            x = torch.full((3,), math.nan if rank == where else 1.0)
            dist.all_reduce(x, operation)
            found.append(x.isnan().tolist())
    if rank == 0:
        print("PyTorch", torch.__version__, "NaN in MAX, for NaN on each rank:", found[:RANKS])
    lost = found[:RANKS] == [[True, True, False], [False, False, True], [False] * 3]
    right = all(map(all, found[2 * RANKS :])) and torch.maximum(torch.ones(1), torch.full((1,), math.nan)).isnan()
    dist.destroy_process_group()
    if not (lost and right):
        raise SystemExit(1)


if __name__ == "__main__":
    processes.spawn(work, nprocs=RANKS)
EOP
"$folder/venv/bin/python" program.py
