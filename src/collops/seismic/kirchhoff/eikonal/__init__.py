"""First arrivals from point sources in a velocity model, by fast sweeping."""

from collops.seismic.kirchhoff.eikonal.anisotropy import Thomsen
from collops.seismic.kirchhoff.eikonal.arrivals import arrivals_error, first_arrivals

__all__ = ["Thomsen", "arrivals_error", "first_arrivals"]
