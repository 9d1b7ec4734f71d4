#!/usr/bin/env bash
# Dask 2026.8.0: store writes the values below the mask of a masked array, as if they were valid, into a dataset of HDF5;
# numpy.asarray converts the array likewise. The fill value has no effect, and there is no warning.
# Seen for 0 to 5 with a mask on values above 3 and a fill value of -999, with h5py 3.16.0: the file has 0 to 5. compute()
# keeps the mask, and the sum, before storing, is 6. xarray.DataArray of the array has NaN there.
# Why it matters: masks exclude dead traces and missing samples. After storing, and in any function that converts its
# arguments to NumPy arrays, they are data. dask.array.ma.filled before storing keeps the information.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    numpy==2.4.6 dask==2026.8.0 h5py==3.16.0 xarray==2026.9.0
cd "$folder"
"$folder/venv/bin/python" -W error::UserWarning - <<'EOF'
import dask
import dask.array as da
import h5py
import numpy as np
import xarray

values = np.arange(6.0)
masked = da.ma.masked_greater(da.from_array(values, chunks=2), 3)
da.ma.set_fill_value(masked, -999.0)
with h5py.File("a.h5", "w") as file:
    da.store(masked, file.create_dataset("x", (6,), "f8"))
    in_hdf5 = file["x"][:]
found = [in_hdf5, np.asarray(masked)]
print("dask", dask.__version__, *found, "computed", masked.compute(), "sum", float(masked.sum().compute()))
assert masked.compute().mask.tolist() == [False] * 4 + [True] * 2 and float(masked.sum().compute()) == 6
assert np.isnan(xarray.DataArray(masked).values[4:]).all()
assert da.ma.filled(masked, -999.0).compute().tolist() == [0, 1, 2, 3, -999, -999]
raise SystemExit(not all(np.array_equal(array, values) for array in found))
EOF
