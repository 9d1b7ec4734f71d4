#!/usr/bin/env bash
# mpi4py-fft 2.0.6: fftw.hfftn transforms without the conjugate of numpy.fft.hfft and scipy.fft.hfftn, and
# fftw.ihfftn likewise: they are irfftn and rfftn under another name. Its result is theirs in reverse order.
# Seen for (1, 2 + i, 3 - i, 4): NumPy has hfft = (15, -4, 3.46, -1, -3.46, -4), mpi4py-fft (15, -4, -3.46, -1, 3.46,
# -4). The example of its documentation has real numbers only, of which both are equal.
# Why it matters: a program that replaces NumPy's transform gets spectra with reversed frequencies, or time that runs
# backwards; norms and real or symmetric tests do not show it.
# Needs a C compiler and FFTW with its headers: exit 77 where the package cannot be compiled.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 mpi4py==4.1.2 mpich==5.0.2
PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check mpi4py-fft==2.0.6 || exit 77
cd "$folder"
"$folder/venv/bin/python" - <<'EOP'
import numpy as np
import scipy.fft
from mpi4py_fft import fftw

values = np.array([1, 2 + 1j, 3 - 1j, 4])
x = fftw.aligned(4, dtype="D")
forward = fftw.hfftn(x)
x[:] = values
found = np.array(forward())
y = fftw.aligned(6, dtype="d")
backward = fftw.ihfftn(y)
y[:] = found
inverse = np.array(backward(normalize=True))
theirs = np.fft.hfft(values)
print("hfft of NumPy:", theirs.round(2), "hfftn of mpi4py-fft:", found.round(2))
reverse = np.allclose(found, np.roll(theirs[::-1], 1)) and not np.allclose(found, theirs)
same = np.allclose(theirs, scipy.fft.hfftn(values)) and np.allclose(inverse, np.fft.ihfft(found).conj())
raise SystemExit(not (reverse and same))
EOP
