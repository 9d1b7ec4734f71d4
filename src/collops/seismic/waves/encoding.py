"""Source encoding: shots with a fixed spread that are fired together with random signs, and their data added alike."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from collops import DistributedArray, Layout
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.seismic.real_numbers import finite_array
from collops.seismic.waves.geometry import Geometry


@dataclass(frozen=True, eq=False)
class SourceEncoding:
    r"""Linear combinations of shots: an encoded shot fires the sources of several shots together.

    Modelling and migration of K encoded shots cost as much as of K shots, however many shots they combine.

    Parameters
    ----------
    weights : array
        The weight of each shot in each encoded shot, shape (encoded shots, shots). :meth:`random` makes random ones.

    Raises
    ------
    InputError
        If the weights are not finite numbers of this shape, or an encoded shot has no shot.

    Notes
    -----
    Waves are linear in their sources [1]_. With weights :math:`a_{ki}` an encoded shot has the traces
    :math:`\sum_i a_{ki} F_i`, and the encoded data are :math:`\sum_i a_{ki} d_i`. If each shot is in one encoded shot,
    with an independent random sign, then :math:`E[a_{ki} a_{kj}] = 0` for :math:`i \ne j`, so that half the squared
    residual of the encoded shots, and its gradient, have the expectations of all single shots:

    .. math::
        E \left[\frac12 \sum_k \Big\| \sum_i a_{ki} (F_i - d_i) \Big\|^2\right] = \frac12 \sum_i \| F_i - d_i \|^2.

    Absorbing layers without a frequency of their own take it from all wavelets. If the wavelets of the shots differ,
    the layers of encoded shots may differ from the layers of the shots: pass ``Layers(frequency=)``.

    The products of different shots are the noise of the gradient, called crosstalk. It decreases with the number of
    encoded shots, and as an average over different signs.

    References
    ----------
    .. [1] Krebs, J. R., Anderson, J. E., Hinkley, D., Neelamani, R., Lee, S., Baumstein, A., and Lacasse, M.-D., "Fast
       full-wavefield seismic inversion using encoded sources", Geophysics 74(6), WCC177-WCC188, 2009.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.waves import Geometry, Grid, Propagator, SourceEncoding
    >>> grid = Grid((40, 30), (10.0, 10.0), order=4)
    >>> geometry = Geometry([[100.0, 50.0], [200.0, 50.0]], [[300.0, 55.0]], np.hanning(20), 0.002)
    >>> F = Propagator(grid, geometry, kernels="numpy")
    >>> observed = F(collops.full(F.domain, 2000.0))
    >>> encoding = SourceEncoding.random(shots=2, encoded=1, seed=3)
    >>> encoded = Propagator(grid, encoding.geometry(geometry), kernels="numpy")
    >>> modelled = encoded(collops.full(F.domain, 2000.0))
    >>> bool((modelled - encoding.data(observed)).norm() < 1e-5 * modelled.norm())
    True
    """

    weights: ArrayLike

    def __post_init__(self) -> None:
        weights = finite_array("weights", self.weights)
        if weights.ndim != 2 or not weights.size:
            raise InputError(f"weights must have the shape (encoded shots, shots), not {weights.shape}")
        if not weights.any(axis=1).all():
            raise InputError(f"encoded shot {int(np.argmin(weights.any(axis=1)))} has no shot: its weights are all 0")
        object.__setattr__(self, "weights", weights)

    @classmethod
    def random(cls, shots: int, encoded: int = 1, *, seed: int | Sequence[int] = 0) -> SourceEncoding:
        """Return an encoding with each shot, times a random sign, in one of the encoded shots, chosen at random.

        The numbers of shots in encoded shots differ by one at most. Sends nothing: all ranks draw the same numbers.

        Parameters
        ----------
        shots, encoded : int
            Number of shots, and of encoded shots, at most as many.
        seed : int or sequence of int
            Of the random numbers, at least 0.

        Raises
        ------
        InputError
            If an argument cannot be used.
        """
        try:
            shots, encoded = operator.index(shots), operator.index(encoded)
            rng = np.random.default_rng(seed)
        except (TypeError, ValueError) as error:
            raise InputError(f"an encoding needs numbers of shots, and seeds of at least 0: {error}") from error
        if not 1 <= encoded <= shots:
            raise InputError(f"the number of encoded shots must be from 1 to {shots}, the number of shots: {encoded}")
        weights = np.zeros((encoded, shots))
        signs = rng.choice((-1.0, 1.0), shots)
        for row, group in zip(weights, np.array_split(rng.permutation(shots), encoded), strict=True):
            row[group] = signs[group]
        return cls(weights)

    def geometry(self, geometry: Geometry) -> Geometry:
        """Return the geometry of the encoded shots, whose sources have wavelets of their own.

        Raises InputError if the number of shots differs, or the shots have different receivers, and
        UnsupportedTypeError for any other type.
        """
        if not isinstance(geometry, Geometry):
            raise UnsupportedTypeError(f"geometry must be a Geometry, not {type_name(geometry)}")
        weights, receivers = np.asarray(self.weights), np.asarray(geometry.receivers)
        if geometry.shape[0] != weights.shape[1]:
            raise InputError(f"weights of {weights.shape[1]} shots do not fit a geometry of {geometry.shape[0]}")
        if receivers.ndim == 3:
            if (receivers != receivers[0]).any():
                raise InputError("shots can be encoded only if all have the same receivers: a fixed spread")
            receivers = receivers[0]
        most = int(np.count_nonzero(weights, axis=1).max())
        sources, wavelets = [], []
        for row in weights:
            shots = np.flatnonzero(row)
            shots = np.pad(shots, (0, most - len(shots)), "edge")  # repeats a shot, with the factor 0
            factors = np.where(np.arange(most) < np.count_nonzero(row), row[shots], 0.0)
            sources.append(np.concatenate([geometry.sources_of(shot) for shot in shots]))
            pairs = zip(factors, shots, strict=True)
            wavelets.append(np.concatenate([factor * geometry.wavelets_of(shot) for factor, shot in pairs]))
        components = geometry.source_components
        if not isinstance(components, str):
            components = (*components,) * most
        return replace(
            geometry,
            sources=np.stack(sources),
            receivers=receivers,
            wavelet=np.stack(wavelets),
            source_components=components,
        )

    def data(self, data: DistributedArray) -> DistributedArray:
        """Return the data of the encoded shots, split or replicated as the data are. Collective.

        They are shared out evenly; where the propagator of the encoded shots has an aperture, pass them on as
        ``encoded.redistribute(F.range)``. The same bits on any ranks. Messages: two all-to-all-v of the data.

        Parameters
        ----------
        data : DistributedArray
            Shape (shots, receivers, samples), split by shots or replicated: the range of a propagator.

        Raises
        ------
        LayoutError, UnsupportedTypeError
            On every rank, if the data have another shape or layout, or are not a distributed array.
        """
        if not isinstance(data, DistributedArray):
            raise UnsupportedTypeError(f"the data must be a distributed array, not {type_name(data)}")
        layout, weights = data.layout, np.asarray(self.weights)
        if not isinstance(layout, Layout) or layout.ndim != 3 or set(layout.split_axes) - {0}:
            raise LayoutError(f"data must have three axes and be split by shots only, not {layout}")
        if layout.shape[0] != weights.shape[1]:
            raise LayoutError(f"data of {layout.shape[0]} shots do not fit weights of {weights.shape[1]}")
        # On each rank all shots at some receivers, which it adds in the order of the shots.
        grid, (axis, _, _) = layout.process_grid, layout.axes
        traces = data.redistribute(Layout(layout.shape, layout.ranks, grid, (None, axis, None))).local_array
        rows = []
        for row in weights:
            first, *others = np.flatnonzero(row)
            total = float(row[first]) * traces[first]
            for shot in others:
                total = total + float(row[shot]) * traces[shot]
            rows.append(total)
        shape = len(weights), *layout.shape[1:]
        together = Layout(shape, layout.ranks, grid, (None, axis, None))
        encoded = DistributedArray(together, data.comm, data.engine.xp.stack(rows))
        return encoded.redistribute(Layout(shape, layout.ranks, grid, layout.axes))
