"""Models of both velocities for tests of elastic media, and their products with the Jacobian."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import collops
from collops.seismic.waves import Propagator
from tests.seismic.test_waves import small
from tests.seismic.wave_media import at_depths_of_points, varying_solid


def solid_problem(ndim, order, time_order=2, shape=None, **options):
    """A grid with shots near its surface, if it has one, and a solid with a fluid in it."""
    grid, geometry = small(ndim, order, **options)
    grid = replace(grid, time_order=time_order, shape=shape or grid.shape)
    extent = [h * (n - 1) for h, n in zip(grid.spacing, grid.shape, strict=True)]
    shallow = [1.0] * (ndim - 1) + [0.2]
    inside = {name: np.asarray(getattr(geometry, name)) * shallow % extent for name in ("sources", "receivers")}
    return grid, at_depths_of_points(grid, replace(geometry, **inside)), varying_solid(grid)


def stacks_of(F, shear, seed=0, engine="numpy"):
    """A model of both velocities, a change of it that keeps fluids, and data, the same on any ranks."""
    rng = np.random.default_rng(seed)
    shape, values = F.grid.shape, [2000 + 200 * rng.standard_normal(F.grid.shape), np.asarray(shear)]
    changes = [rng.standard_normal(shape), rng.standard_normal(shape) * (values[1] > 0)]

    def array(values, layout):
        return collops.from_global(values, layout=layout, comm=F.comm, engine=engine)

    model, change = (collops.StackedArray([array(x, F.domain) for x in pair]) for pair in (values, changes))
    return model, change, array(rng.standard_normal(F.geometry.shape), F.range)


def parts(change):
    """Changes of either velocity and of both."""
    one, two = change
    return [collops.StackedArray([one, 0 * two]), collops.StackedArray([0 * one, two]), change]


def stack_products(F, shear, engine="numpy"):
    """Data, linearised data and images of both velocities as bytes of global arrays."""
    model, change, data = stacks_of(F, shear, engine=engine)
    J = F.jacobian(model)
    found = F(model), J.forward(change), *J.adjoint(data)
    return [np.asarray(x.engine.to_host(x.gather())).tobytes() for x in found]


def elastic_propagator(grid, geometry, own, **options):
    """Return a propagator of a solid whose shear velocities models replace."""
    return Propagator(grid, geometry, **options, **own | {"shear_velocity": 0.5 * own["shear_velocity"]})
