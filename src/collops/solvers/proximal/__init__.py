"""Proximal operators, and the methods that minimise sums of functions with them."""

from __future__ import annotations

from collops.solvers.proximal.admm import ADMM, admm
from collops.solvers.proximal.admm_l2 import ADMML2, admm_l2
from collops.solvers.proximal.compositions import AffineAddition, Chain, Conjugate, PostComposition, PreComposition
from collops.solvers.proximal.l2 import L2
from collops.solvers.proximal.lift import LiftedProximal, lift_proximal
from collops.solvers.proximal.linearized_admm import LinearizedADMM, linearized_admm
from collops.solvers.proximal.norms import L21, Euclidean, Nuclear
from collops.solvers.proximal.operator import ProxOperator
from collops.solvers.proximal.primal_dual import PrimalDual, primal_dual
from collops.solvers.proximal.proximal_gradient import ProximalGradient, proximal_gradient
from collops.solvers.proximal.separable import L0, L1, Box

__all__ = [
    "ADMM",
    "ADMML2",
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
    "LinearizedADMM",
    "Nuclear",
    "PostComposition",
    "PreComposition",
    "PrimalDual",
    "ProxOperator",
    "ProximalGradient",
    "admm",
    "admm_l2",
    "lift_proximal",
    "linearized_admm",
    "primal_dual",
    "proximal_gradient",
]
