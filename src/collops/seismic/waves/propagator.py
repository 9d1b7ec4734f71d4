"""The propagator: from a velocity model to the traces of all shots, on any number of ranks and tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops import Communicator, DistributedArray, LinearOperator, StackedArray
from collops.errors import InputError, UnsupportedTypeError
from collops.extend.arrays import Array
from collops.extend.communication import alone, collective_errors
from collops.seismic.waves.apertures import Box, ShotWindows, WindowedBorn, boxes_of, window_costs
from collops.seismic.waves.born import Born
from collops.seismic.waves.geometry import Geometry
from collops.seismic.waves.grid import Grid
from collops.seismic.waves.media.relaxation import Relaxation
from collops.seismic.waves.modelling import Modelling, check_host
from collops.seismic.waves.velocity_model import model_on_tile
from collops.seismic.waves.wavelet import WaveletModelling

if TYPE_CHECKING:
    from collops.seismic.waves.jax_program import Program


class Propagator:
    r"""Modelling of waves: the pressure at the receivers of all shots, as a function of the velocity. Collective.

    Shots are shared out among groups of ranks, and the grid of each shot among the tiles of a group. Traces and their
    derivatives do not depend on the number of ranks or tiles, bit for bit, but for images from compressed wavefields.

    Parameters
    ----------
    grid : Grid
        The grid of the model.
    geometry : Geometry
        Sources, receivers, wavelets and the time axis.
    tiles : sequence of int, optional
        Number of tiles along each axis of the grid. Their product must divide the number of ranks; by default 1, so
        that all ranks share the shots.
    dtype : dtype
        float32 or float64, of fields and data.
    density : array or float, optional
        The density in kg/m³, of the grid's shape, the same on all ranks; constant by default.
    shear_velocity : array or float, optional
        The velocity of S waves in m/s, of the grid's shape, the same on all ranks, for isotropic elastic media with two
        or three axes; 0 in fluids. The model is the velocity of P waves, at least the square root of 2 times as large,
        or a :class:`collops.StackedArray` of both velocities, with derivatives with respect to both. A `density` is
        optional, and fixed.
    epsilon, delta : array or float, optional
        Thomsen's parameters, of the grid's shape, the same on all ranks, for VTI media with constant density. The model
        is the vertical velocity. `epsilon` must be at least `delta`.
    quality_factor : array or float, optional
        The quality factor Q of viscoacoustic media, of the grid's shape or one number, the same on all ranks, also with
        a density, or with `epsilon` and `delta`; a large one where waves are not attenuated. It needs `relaxation`.
    relaxation : Relaxation, optional
        The frequency at which the model is the phase velocity, and the band in which Q is constant.
    aperture : float, optional
        Metres around the sources and the receivers of a shot that it is computed on, along all axes but the depth: each
        shot has absorbing layers around its own window of the model. By default shots are computed on the whole grid.
        It needs undivided grids, and models of NumPy or CuPy. Consecutive shots are shared out by the points of their
        windows, so that ranks may have different numbers of shots in the layout ``range``.
    memory : int, optional
        Bytes of this rank for the wavefields of a shot that the adjoint of the Jacobian needs; the same on all ranks.
        By default all wavefields of one shot are stored. For models of CuPy, what does not fit the device is on the
        host. For models of JAX, the time loop is divided into nested loops instead.
    wavefield_bits : {8, 16}, optional
        Permits the storage of wavefields in so many bits where `memory` is too small for exact ones and fewer steps are
        then recomputed. Adjoints then have errors, whose bound `storage` shows. By default wavefields are exact, and
        for models of JAX always.
    kernels : {"numba", "numpy"}, optional
        For models of NumPy: compiled kernels (the default), or plain NumPy, which computes the same bits many times
        slower. Without Numba, plain NumPy is the default, with a warning.
    threads : int, optional
        Threads of the Numba kernels; by default the ranks on one node share its cores.
    comm : Communicator, optional
        The ranks; the world by default.

    Attributes
    ----------
    domain, range : Layout
        Of a model in metres per second, or of each part of a stack, of the grid's shape: replicated, or split into
        tiles. Of the data, (shots, receivers, samples): split by shots over the groups, and replicated over the tiles
        of a group.
    shots : range
        The shots of this rank's group.
    storage : Storage
        What the adjoint stores; ``print`` shows it in words.

    Raises
    ------
    InputError, LayoutError, UnsupportedTypeError
        On every rank, if an argument cannot be used.

    Notes
    -----
    The pressure u solves

    .. math::
        \frac{1}{v^2} \partial_t^2 u = \nabla^2 u + w(t)\, \delta(x - x_s)

    with central differences of the orders of the grid: leapfrog in time, or its modified equation. Sample n is the
    pressure at time :math:`n \Delta t`. In a constant velocity in 3-D it is :math:`w(t - r / v) / (4 \pi r)`.

    With a density :math:`\rho` the pressure solves

    .. math::
        \frac{1}{\rho v^2} \partial_t^2 u = \nabla \cdot \left(\frac{1}{\rho} \nabla u\right)
        + \frac{w(t)}{\rho}\, \delta(x - x_s)

    on a staggered grid, so that a constant density changes nothing but the rounding and the dispersion. Between points
    the mean of both densities counts: the scheme is of second order in space where the density varies.

    In VTI media, the horizontal and the vertical stress p and q solve

    .. math::
        \frac{1}{v^2} \partial_t^2 \begin{pmatrix} p \\ q \end{pmatrix} =
        \begin{pmatrix} 1 + 2 \epsilon & \sqrt{1 + 2 \delta} \\ \sqrt{1 + 2 \delta} & 1 \end{pmatrix}
        \begin{pmatrix} (\partial_x^2 + \partial_y^2)\, p \\ \partial_z^2 q + w(t)\, \delta(x - x_s) \end{pmatrix}

    and receivers record q, which is the pressure where the medium is isotropic [1]_.

    With a shear velocity :math:`v_S` the stress :math:`\sigma` solves

    .. math::
        \partial_t^2 \sigma = \lambda \left(\nabla \cdot a - \frac{w(t)}{\rho}\, \delta(x - x_s)\right) I
        + \mu \left(\nabla a + \nabla a^T - \frac{2 w(t)}{n \rho}\, \delta(x - x_s)\, I\right), \quad
        a = \frac{1}{\rho} \nabla \cdot \sigma

    with :math:`\mu = \rho v_S^2` and :math:`\lambda + 2 \mu = \rho v^2`, on the staggered grid of velocity and stress
    [2]_. Receivers record the pressure, the negative mean of the n normal stresses. In homogeneous media it equals the
    pressure in a fluid with the same velocity and density, times the square of
    :math:`1 - 2 (n - 1) / n\, v_S^2 / v^2`.

    With a quality factor, the right-hand sides are convolved in time with the modulus of :class:`Relaxation`, relative
    to the modulus at the reference frequency [3]_.

    Messages: a model sends one small allreduce; a stack of both velocities two, on several tiles one exchange of halos,
    and with an aperture one metadata message, after its checks in all windows. Each time step on several tiles sends
    one exchange of halos, or two of fourth order in time, and each shot on several tiles one allreduce of its traces.

    References
    ----------
    .. [1] Duveneck, E., and Bakker, P. M., "Stable P-wave modeling for reverse-time migration in tilted TI media",
       Geophysics 76(2), S65-S75, 2011.
    .. [2] Virieux, J., "P-SV wave propagation in heterogeneous media: velocity-stress finite-difference method",
       Geophysics 51(4), 889-901, 1986.
    .. [3] Robertsson, J. O. A., Blanch, J. O., and Symes, W. W., "Viscoelastic finite-difference modeling", Geophysics
       59(9), 1444-1456, 1994.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.waves import Geometry, Grid, Propagator
    >>> grid = Grid((40, 30), (10.0, 10.0), order=4)
    >>> geometry = Geometry([[100.0, 50.0]], [[300.0, 55.0]], np.hanning(20), 0.002)
    >>> F = Propagator(grid, geometry, kernels="numpy")
    >>> F(collops.full(F.domain, 2000.0)).shape
    (1, 1, 20)
    """

    def __init__(
        self,
        grid: Grid,
        geometry: Geometry,
        *,
        tiles: Sequence[int] | None = None,
        dtype: DTypeLike = "float32",
        density: ArrayLike | None = None,
        shear_velocity: ArrayLike | None = None,
        epsilon: ArrayLike | None = None,
        delta: ArrayLike | None = None,
        quality_factor: ArrayLike | None = None,
        relaxation: Relaxation | None = None,
        aperture: float | None = None,
        memory: int | None = None,
        wavefield_bits: int | None = None,
        kernels: str | None = None,
        threads: int | None = None,
        comm: Communicator | None = None,
    ) -> None:
        self.grid, self.geometry = grid, geometry
        parameters: dict[str, Any] = {"density": density, "epsilon": epsilon, "delta": delta}
        parameters |= {"shear_velocity": shear_velocity, "quality_factor": quality_factor}
        options: dict[str, Any] = {"tiles": tiles, "dtype": dtype, "kernels": kernels, "threads": threads}
        options |= {"memory": memory, "wavefield_bits": wavefield_bits, "relaxation": relaxation}
        # Windows have the storage.
        shared: dict[str, Any] = options if aperture is None else options | {"memory": None}
        costs = None if aperture is None else partial(window_costs, grid, geometry, aperture)
        self._modelling = modelling = Modelling(grid, geometry, parameters=parameters, costs=costs, comm=comm, **shared)
        self._options, self._aperture = options, aperture
        self.comm, self.dtype = modelling.comm, modelling.dtype
        self.domain, self.range = modelling.domain, modelling.range
        self._windows = None if aperture is None else self._windows_of(aperture)
        self.shots, self.storage = modelling.shots, (self._windows.largest if self._windows else modelling).storage

    def __repr__(self) -> str:
        return f"<Propagator {self.grid.shape} -> {self.geometry.shape}, {self.dtype}>"

    def __call__(self, model: Array) -> DistributedArray:
        """Return the traces of all shots. Collective.

        Parameters
        ----------
        model : DistributedArray or StackedArray
            Velocities in metres per second, in the layout ``domain``, of NumPy, CuPy or JAX, as are the traces. JAX can
            differentiate and compile the call; velocities are not checked in traced functions. In elastic media it may
            be a stack of the velocities of P and S waves, which then replaces `shear_velocity`.

        Raises
        ------
        LayoutError, UnsupportedTypeError
            If the model has another layout, is not real, or is of another engine; if it is of JAX without 64-bit
            numbers, and `dtype` is float64.
        InputError
            On every rank, if a velocity is not a positive number or too small for the shear velocity, the time step
            is too long for the largest one, or a stack is passed for a medium without shear velocities.
        """
        modelling = self._modelling
        if _is_traced(model):
            return self._program(model)
        if self._windows is not None:
            self._check_windows(self._windows, model)
            return self._on_windows(self._windows, model)
        march, traces = modelling.march(model_on_tile(modelling, model).coefficients), modelling.no_traces(model.engine)
        for number, shot in enumerate(self.shots):
            march.model(modelling.shot(shot), traces[number])
        return DistributedArray(self.range, self.comm, modelling.joined(traces))

    def jacobian(self, model: Array) -> LinearOperator:
        """Return the derivative of the traces at a model, a linear operator. Collective.

        Parameters and exceptions as for :meth:`__call__`.
        """
        if _is_traced(model):
            return self._program.jacobian(model)
        if self._windows is not None:
            self._check_windows(self._windows, model)
            return WindowedBorn(self._modelling, self._windows, model)
        return Born(self._modelling, model)

    def linearise(self, model: Array) -> tuple[DistributedArray, LinearOperator]:
        """Return the traces at a model, and their derivative there. Collective.

        The same as a call and :meth:`jacobian`, bit for bit. The derivative keeps the wavefields of the shots that fit
        `memory` together, or without `memory` of a rank's only shot, so that its products need not compute them again:
        on devices those of all shots of a rank or none. With an aperture, or if wavefields are compressed, it keeps
        none.

        Parameters and exceptions as for :meth:`__call__`, and messages as for one call. On several tiles one small
        allreduce more agrees on the shots whose wavefields are kept; on devices, a metadata message and an allreduce.
        """
        if _is_traced(model):
            return self(model), self.jacobian(model)
        if self._windows is not None:
            self._check_windows(self._windows, model)
            return self._on_windows(self._windows, model), WindowedBorn(self._modelling, self._windows, model)
        born = Born(self._modelling, model)
        return born.modelled(), born

    def wavelet_operator(self, model: Array, *, common: bool = True) -> WaveletModelling:
        """Return the traces at a model as a linear function of the wavelet. Collective.

        A solver then finds the wavelet of recorded traces. Modelling takes as long as one call of the propagator. The
        sources of a shot all have this wavelet.

        Parameters
        ----------
        model : DistributedArray
            As for :meth:`__call__`, of NumPy.
        common : bool
            Whether all shots have the same wavelet, shape (samples,); otherwise each has its own, (shots, samples).

        Raises
        ------
        LayoutError, UnsupportedTypeError, InputError
            As for :meth:`__call__`, if the model is not of NumPy, or if the sources of a shot have wavelets of their
            own: then traces are not a function of one wavelet of each shot.
        """
        check_host(model, "the model")
        if np.ndim(self.geometry.wavelet) == 3:
            raise InputError(
                "traces are not a function of one wavelet where the sources of a shot have wavelets of their own: "
                "pass a wavelet of the shape (samples,) or (shots, samples)"
            )
        grid, absorption = self.grid, self._modelling.absorption
        # The layers must not depend on the wavelet.
        layers = replace(grid.layers, velocity=absorption.velocity, frequency=absorption.frequency)
        impulse = np.zeros(self.geometry.shape[2])
        impulse[0] = 1
        geometry = replace(self.geometry, wavelet=impulse)
        options: dict[str, Any] = self._options | self._modelling.parameters | {"aperture": self._aperture}
        other = Propagator(replace(grid, layers=layers), geometry, comm=self.comm, **options)
        return WaveletModelling(self._modelling, other(model), common)

    def _check_windows(self, windows: ShotWindows, model: Array) -> None:
        """Check a model on the whole grid, and both velocities in each window. Collective."""
        model_on_tile(self._modelling, model)
        if isinstance(model, StackedArray):  # a window's longest time step depends on the shear velocities around it
            with collective_errors(self.comm):
                for shot in self.shots:
                    own = windows.propagator(shot)
                    model_on_tile(own._modelling, windows.cut(shot, model, own))

    def _on_windows(self, windows: ShotWindows, model: Array) -> DistributedArray:
        """Return the traces of all shots on their windows, after checks of the model. Sends nothing."""
        traces = self._modelling.no_traces(model.engine)
        for number, shot in enumerate(self.shots):
            own = windows.propagator(shot)
            traces[number] = own(windows.cut(shot, model, own)).local_array[0]
        return DistributedArray(self.range, self.comm, traces)

    @cached_property
    def _program(self) -> Program:
        """The form for arrays of JAX. Collective at its first use."""
        if self._windows is not None:
            raise UnsupportedTypeError("with an aperture, models must be of numpy or cupy, not of jax")
        from collops.seismic.waves.jax_program import Program

        return Program(self._modelling)

    def _windows_of(self, aperture: float) -> ShotWindows:
        """Return the windows of shots. Collective."""
        modelling, options = self._modelling, self._options
        threads = modelling.threads

        def make(grid: Grid, geometry: Geometry, box: Box) -> Propagator:
            own: dict[str, Any] = options | {"tiles": None, "threads": threads}
            own |= {name: values[box] for name, values in modelling.parameters.items()}
            return Propagator(grid, geometry, comm=alone(), **own)

        with collective_errors(self.comm):
            if modelling.across.size != self.comm.size:
                raise InputError(f"shots with an aperture need undivided grids, not tiles={options['tiles']!r}")
            if not self.grid.layers.width:
                raise InputError("shots with an aperture need absorbing layers: their windows end inside the model")
            windows = ShotWindows(modelling, boxes_of(self.grid, self.geometry, aperture), make)
            # All windows of this rank, so that one that cannot be used is an error on all ranks. Where a window ends,
            # its edge values continue: steps may have to be shorter than on the whole grid with its densities.
            wavenumbers = [windows.propagator(shot)._modelling.wavenumber for shot in modelling.shots]
            modelling.wavenumber = max([modelling.wavenumber, *wavenumbers])
            return windows


def _is_traced(model: object) -> bool:
    """Return whether this is a model of JAX."""
    return isinstance(model, DistributedArray | StackedArray) and model.engine.traced
