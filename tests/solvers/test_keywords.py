"""Unknown options of solvers: a TypeError that names the solver and the option that was probably meant."""

from __future__ import annotations

import inspect

import pytest

import collops
from collops import solvers
from collops.solvers import proximal


def functions(module):
    return {name: found for name in module.__all__ if inspect.isfunction(found := getattr(module, name))}


# Other functions of these packages do not return the result of a run.
SOLVERS = {
    name: found
    for name, found in {**functions(solvers), **functions(proximal)}.items()
    if inspect.signature(found).return_annotation == "SolverResult"
}
MISSPELT = {"n_iter": "niter", "call_back": "callback", "checkpoints": "checkpoint", "resumed": "resume"}


def test_the_solvers_are_found():
    assert set(SOLVERS) >= {"cg", "cgls", "lsqr", "ista", "fista", "power_iteration", "solve"}
    assert set(SOLVERS) >= {"bicgstab", "gmres", "lsmr", "minres"}
    assert set(SOLVERS) >= {"admm", "admm_l2", "linearized_admm", "primal_dual", "proximal_gradient"}


@pytest.mark.parametrize("solver", SOLVERS)
def test_unknown_options(comm, solver):
    call = getattr(collops, solver, solvers.solve)
    for given, meant in MISSPELT.items():
        text = rf"^{solver}\(\) has no option '{given}'; did you mean '{meant}'\? It takes .*niter"
        with pytest.raises(TypeError, match=text):
            call(**{given: 3})
    with pytest.raises(TypeError, match=rf"^{solver}\(\) has no option 'zzz'\. It takes .*callback, .*niter"):
        call(zzz=3)


@pytest.mark.parametrize(
    ("solver", "given", "meant"),
    [("cgls", "dampp", "damp"), ("fista", "sop", "SOp"), ("lsqr", "calcvar", "calc_var"), ("ista", "Niter", "niter")],
)
def test_own_options(comm, solver, given, meant):
    """Of the solver, and of the one that it calls."""
    with pytest.raises(TypeError, match=rf"{solver}\(\) has no option '{given}'; did you mean '{meant}'\?"):
        getattr(collops, solver)(None, None, **{given: 3})


def test_known_options_are_passed_on(comm):
    A = collops.Identity(3, comm=comm)
    seen = []
    y = collops.ones(A.range, comm=comm)
    result = collops.fista(A, y, niter=2, callback=lambda *_: seen.append(1), progress=False, alpha=0.5)
    assert len(seen) == result.iterations
    with pytest.raises(TypeError, match=r"cgls\(\) takes from 2 to 3 positional arguments"):
        collops.cgls(A, y, None, 3)
