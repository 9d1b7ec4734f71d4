"""Proximal operators: one family of functions in each file."""

from __future__ import annotations

from collops.solvers.proximal.operators.box import Box
from collops.solvers.proximal.operators.compositions import (
    AffineAddition,
    Chain,
    Conjugate,
    PostComposition,
    PreComposition,
)
from collops.solvers.proximal.operators.euclidean import Euclidean
from collops.solvers.proximal.operators.l0 import L0
from collops.solvers.proximal.operators.l1 import L1
from collops.solvers.proximal.operators.l2 import L2
from collops.solvers.proximal.operators.l21 import L21
from collops.solvers.proximal.operators.lift import LiftedProximal, lift_proximal
from collops.solvers.proximal.operators.nuclear import Nuclear

__all__ = [
    "L0",
    "L1",
    "L2",
    "L21",
    "AffineAddition",
    "Box",
    "Chain",
    "Conjugate",
    "Euclidean",
    "LiftedProximal",
    "Nuclear",
    "PostComposition",
    "PreComposition",
    "lift_proximal",
]
