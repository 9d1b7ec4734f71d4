#!/usr/bin/env bash
# PyTorch 2.13.0, torch.distributed on hosts (Gloo): broadcast, all_reduce, reduce and scatter send the memory of a tensor,
# whatever its strides. If those of the ranks differ, elements arrive at other indices, without an error.
# Seen for the array ((0, 1, 2), (3, 4, 5)) in Fortran order, as torch.from_numpy returns it: a rank whose tensor is in C
# order gets ((0, 3, 1), (4, 2, 5)) from broadcast, and all_reduce adds element (0, 1) to element (1, 0). all_gather of the
# same tensors is right, and send and all_to_all_single raise "has to be contiguous". The documentation asks for tensors
# with the same number of elements.
# Why it matters: results of LAPACK and files in Fortran order give such arrays; the shapes and norms are right, so that
# the other ranks go on with a permuted matrix. Call contiguous() first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
cd "$folder"
cat > program.py <<'EOP'
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

RANKS = 2
A = np.arange(6.0).reshape(2, 3)


def work(rank):
    store = dist.FileStore("store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    fortran = torch.from_numpy(np.asfortranarray(A))
    sent = fortran.clone() if rank == 0 else torch.zeros(2, 3, dtype=torch.float64)
    dist.broadcast(sent, 0)
    total = fortran.clone() if rank == 0 else torch.from_numpy(A.copy())
    dist.all_reduce(total)
    parts = [torch.zeros(2, 3, dtype=torch.float64) for _ in range(RANKS)]
    dist.all_gather(parts, fortran)
    if rank == 1:
        print("PyTorch", torch.__version__, "broadcast:", sent.tolist(), "all_reduce:", total.tolist())
        wrong = sent.tolist() == [[0, 3, 1], [4, 2, 5]] and not np.array_equal(total, 2 * A)
        if not (wrong and all(np.array_equal(part, A) for part in parts)):
            raise SystemExit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    processes.spawn(work, nprocs=RANKS)
EOP
"$folder/venv/bin/python" program.py
