"""PyLops-MPI's operators of signal processing."""

from collops.compat.pylops_mpi.signalprocessing.FFT2D import MPIFFT2D
from collops.compat.pylops_mpi.signalprocessing.FFTND import MPIFFTND
from collops.compat.pylops_mpi.signalprocessing.Fredholm1 import MPIFredholm1
from collops.compat.pylops_mpi.signalprocessing.NonStatConvolve1d import MPINonStationaryConvolve1D

__all__ = ["MPIFFT2D", "MPIFFTND", "MPIFredholm1", "MPINonStationaryConvolve1D"]
