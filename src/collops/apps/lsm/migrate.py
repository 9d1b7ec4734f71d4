"""The migration itself: the operator from travel times, modelling, the adjoint image, and CGLS with its costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collops import profile
from collops.apps.lsm.problem import Problem
from collops.apps.lsm.traveltimes import travel_times
from collops.apps.lsm.wavelet import ricker
from collops.apps.report import TimeSplit
from collops.apps.stages import local_stage

if TYPE_CHECKING:
    from collops.array import DistributedArray
    from collops.comm import Communicator
    from collops.operators import LinearOperator

__all__ = ["Migration", "data_array", "kirchhoff", "least_squares", "local_traces"]

# Seconds that measuring where the time goes may add to a run.
_PROBE_SECONDS = 1.0
_MOST_PROBES = 10
