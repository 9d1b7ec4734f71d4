"""Quality control of a migration: common-image gathers in offset and angle, their residual moveout, and spectra.

References
----------
Al-Yahya, K., *Velocity analysis by iterative profile migration*, Geophysics 54 (1989), 718-729.
Xu, S., Chauris, H., Lambare, G., and Noble, M., *Common-angle migration: a strategy for imaging complex media*,
Geophysics 66 (2001), 1877-1894.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import Field, balanced, figure, local_stage, symmetric_limit
from collops.seismic.signals import power_spectrum
from collops.seismic.survey.traveltimes import seconds_from

if TYPE_CHECKING:
    from collops import LinearOperator
    from collops.extend.engines import Engine
    from collops.seismic.lsm.problem import Problem

_COLUMNS = 5
_RATIOS = np.linspace(0.8, 1.2, 41)  # of the migration velocity to a velocity that makes gathers flat
_MAX_ANGLE = 60.0  # degrees: angle of reflection at the end of the last class


@dataclass(frozen=True)
class Gathers:
    """Common-image gathers of some columns, and their residual moveout."""

    axis: str  # name and unit of the classes, such as "offsets, m"
    classes: np.ndarray  # the middle of each class
    values: np.ndarray  # shape ``(columns, classes, rows)``
    semblance: np.ndarray  # shape ``(columns, ratios, rows)``, 0 to 1
    ratio: float  # of the migration velocity to the velocity for which the sum of all gathers is flattest

    @classmethod
    def examined(
        cls, axis: str, classes: np.ndarray, values: np.ndarray, z: np.ndarray, depths: np.ndarray, windows: list[int]
    ) -> Gathers:
        """Measure the residual moveout of gathers; for `depths` and the windows of each column see `semblance`."""
        results = [semblance(gather, z, depths, window) for gather, window in zip(values, windows, strict=True)]
        power, flatness = (np.stack(part) for part in zip(*results, strict=True))
        return cls(axis, classes, values, flatness, float(_RATIOS[power.sum(axis=(0, 2)).argmax()]))


@dataclass(frozen=True)
class Quality:
    """The result of `examine`; the same on every rank."""

    x: np.ndarray  # position of the columns with gathers along the line, in metres
    z: np.ndarray  # depth of the rows in metres
    offsets: Gathers
    angles: Gathers
    frequencies: np.ndarray  # in hertz
    spectra: dict[str, np.ndarray]  # amplitude spectra of the data, the modelled data and the residual
    wavenumbers: np.ndarray  # of depth, in cycles per metre
    image_spectra: dict[str, np.ndarray]  # amplitude spectra of the adjoint image and of the image

    def fields(self) -> dict[str, Field]:
        """Return the arrays of ``result.zarr``."""
        fields = {
            "gather_x": Field(self.x, ("column",), "m"),
            "velocity_ratio": Field(_RATIOS, ("velocity_ratio",), "1"),
            "frequency": Field(self.frequencies, ("frequency",), "Hz"),
            "wavenumber": Field(self.wavenumbers, ("wavenumber",), "1/m"),
        }
        for name, unit, axis, gathers in (("", "m", "class", self.offsets), ("angle_", "degree", "angle", self.angles)):
            fields |= {
                f"gather_{axis.replace('class', 'offset')}": Field(gathers.classes, (axis,), unit),
                f"{name}gathers" if name else "common_image_gathers": Field(gathers.values, ("column", axis, "z"), "1"),
                f"{name}semblance": Field(gathers.semblance, ("column", "velocity_ratio", "z"), "1"),
            }
        fields |= {f"{name}_spectrum": Field(gathers, ("frequency",), "1") for name, gathers in self.spectra.items()}
        return fields | {
            f"{name}_spectrum": Field(gathers, ("wavenumber",), "1") for name, gathers in self.image_spectra.items()
        }

    def draw(self, folder: Path) -> list[Path]:
        """Draw the gathers, their semblance and the spectra; return the pictures."""
        words = (
            ("amplitude spectra of the traces", "frequency (Hz)"),
            ("amplitude spectra of the images", "wavenumber of depth (1/km)"),
        )
        by_offset = folder / "quality.png", self.offsets, self.frequencies, self.spectra, words[0]
        by_angle = folder / "angles.png", self.angles, 1e3 * self.wavenumbers, self.image_spectra, words[1]
        return [self._draw(*by_offset), self._draw(*by_angle)]

    def _draw(
        self,
        path: Path,
        gathers: Gathers,
        positions: np.ndarray,
        spectra: dict[str, np.ndarray],
        words: tuple[str, str],
    ) -> Path:
        with figure(path, 3, (17, 5.5)) as (_, axes):
            shown = np.stack([balanced(gather) for gather in gathers.values])
            limit = symmetric_limit(shown)
            parts = ((shown, "gray", -limit, limit), (gathers.semblance, "viridis", 0.0, 1.0))
            for ax, (panels, colors, low, high) in zip(axes, parts, strict=False):
                columns, width, rows = panels.shape
                separator = np.full((columns, 1 + width // 20, rows), np.nan)
                mosaic = np.concatenate([panels, separator], axis=1)
                step = mosaic.shape[1]
                mosaic = mosaic.reshape(-1, rows)[: -separator.shape[1]].T
                extent = (-0.5, len(mosaic[0]) - 0.5, self.z[-1], self.z[0])
                ax.imshow(mosaic, cmap=colors, vmin=low, vmax=high, extent=extent, aspect="auto")
                middles = step * np.arange(columns) + (width - 1) / 2
                ax.set_xticks(middles, [f"{x:.0f} m" for x in self.x])
                if panels is gathers.semblance:
                    for first in step * np.arange(columns):
                        ax.axvline(first + np.interp(1, _RATIOS, np.arange(width)), color="white", lw=0.7, ls=":")
            quantity, _, unit = gathers.axis.partition(", ")
            axes[0].set(title="common-image gathers, amplitudes balanced", ylabel="depth (m)")
            axes[0].set_xlabel(
                f"position; in each, {quantity} of {gathers.classes[0]:.0f} to {gathers.classes[-1]:.0f} {unit}"
            )
            axes[1].set(title=f"flatness, best at a velocity ratio of {gathers.ratio:.2f}")
            axes[1].set_xlabel(f"position; in each, velocity ratios of {_RATIOS[0]:g} to {_RATIOS[-1]:g}, dotted 1")
            first = next(iter(spectra)) if gathers is self.offsets else None
            for name, spectrum in spectra.items():
                axes[2].semilogy(
                    positions, spectrum / (spectra[first or name].max() or 1.0), label=name.replace("_", " ")
                )
            axes[2].set(title=words[0], xlabel=words[1], ylim=(1e-4, 2))
            axes[2].legend()
        return path


def field_bytes(problem: Problem, classes: int | None) -> int:
    """Return the bytes of `Quality.fields` and of the illumination, without spectra; 0 without classes."""
    grid = problem.image_grid
    return 8 * (2 * _COLUMNS * (classes + len(_RATIOS)) * grid.nz + grid.points) if classes else 0


def examine(
    problem: Problem,
    operator: LinearOperator,
    weighted: list[np.ndarray],
    explained: list[np.ndarray],
    images: dict[str, np.ndarray],
    classes: int,
    engine: Engine,
) -> Quality:
    """Image classes of offset and angle, measure their residual moveout, and compare spectra. Collective.

    `operator` is the operator of the survey, `weighted` are the traces of this rank's shots times the squares of their
    weights, and `explained` the traces modelled from the image. Gathers are columns along the line, in 3-D in the
    middle of the axis y.
    """
    survey, grid, z = problem.survey, problem.image_grid, problem.image_grid.z
    chosen = np.unique(np.linspace(0, grid.nx - 1, _COLUMNS + 2).round().astype(int)[1:-1])
    middle = () if grid.ny is None else (grid.ny // 2,)
    speeds = np.median(problem.at_image(problem.velocity)[middle][chosen], axis=1)
    windows = [max(3, round(float(speed) / problem.frequency / 2 / grid.dz)) for speed in speeds]
    offsets, migrated = survey.by_offset(operator, classes, traces=weighted, engine=engine)
    values = np.stack([image[(*middle, chosen)] for image in migrated], axis=1)
    square = _RATIOS[:, None, None] ** 2 - 1
    depths = np.sqrt(np.maximum(z**2 + square * offsets[:, None] ** 2 / 4, 0))
    by_offset = Gathers.examined("offsets, m", offsets, values, z, depths, windows)
    angles, values = by_angle(problem, weighted, chosen, classes)
    depths = z / np.sqrt(np.maximum(1 - square * np.tan(np.deg2rad(angles[:, None])) ** 2, 1e-6))
    by_angles = Gathers.examined("angles of reflection, degrees", angles, values, z, depths, windows)
    samples = survey.geometry.samples
    kinds = {
        "data": survey.traces,
        "explained": explained,
        "residual": [measured - modelled for measured, modelled in zip(survey.traces, explained, strict=False)],
    }
    return Quality(
        grid.x[chosen],
        z,
        by_offset,
        by_angles,
        np.fft.rfftfreq(samples, survey.geometry.interval),
        {name: np.sqrt(survey.comm.allreduce(power_spectrum(traces, samples))) for name, traces in kinds.items()},
        np.fft.rfftfreq(grid.nz, grid.dz),
        {name: np.sqrt(power_spectrum([traces.reshape(-1, grid.nz)], grid.nz)) for name, traces in images.items()},
    )


def by_angle(
    problem: Problem, traces: list[np.ndarray], columns: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Migrate traces into classes of the angle of reflection, at some columns of the image. Collective.

    The angle is half of the angle between the gradients of the travel times from the source and from the receiver at
    the image point: the angle between the rays and the normal of a reflector at this point. Its classes are equally
    wide, from 0 to 60 degrees.

    Parameters
    ----------
    problem : Problem
        The survey, the velocity and the wavelet.
    traces : list of arrays
        The traces of the shots of this rank.
    columns : array of int
        Numbers of the columns along x; in 3-D in the middle of the axis y.
    classes : int
        Number of classes.

    Returns
    -------
    angles : array
        The middle of each class in degrees.
    gathers : array
        Shape ``(columns, classes, rows)``. The sum over the classes is the adjoint image without steeper angles.
    """
    from scipy.signal import oaconvolve

    survey, grid = problem.survey, problem.image_grid
    geometry, comm = survey.geometry, survey.comm
    positions, sources, receivers = geometry.stations
    times, slowness = _rays(problem, positions, columns)
    taps, centre = problem.wavelet
    shape = len(columns), grid.nz, classes
    cells = classes * np.arange(len(columns) * grid.nz).reshape(shape[:2])
    sums = np.zeros(int(np.prod(shape)))
    with local_stage(comm):
        for shot, recorded in zip(survey.shots, traces, strict=True):
            source, stations = sources[shot], receivers[shot]
            first = len(taps) - 1 - centre
            correlated = oaconvolve(recorded, taps[None, ::-1], axes=1)[:, first : first + geometry.samples]
            live = np.flatnonzero(recorded.any(axis=1))
            index = (times[source] + times[stations[live]] - geometry.start) / geometry.interval
            cosine = (slowness[source] * slowness[stations[live]]).sum(axis=1)
            angle = np.rad2deg(np.arccos(np.clip(cosine, -1, 1)) / 2)
            inside = (index >= 0) & (index < geometry.samples - 1) & (angle < _MAX_ANGLE)
            trace, *point = np.nonzero(inside)
            sample, part = np.divmod(index[inside], 1)
            early = sample.astype(int)
            values = (1 - part) * correlated[live[trace], early] + part * correlated[live[trace], early + 1]
            cell = cells[tuple(point)] + (angle[inside] * (classes / _MAX_ANGLE)).astype(int)
            sums += np.bincount(cell, values, len(sums))
    return (np.arange(classes) + 0.5) * (_MAX_ANGLE / classes), comm.allreduce(sums).reshape(shape).swapaxes(1, 2)


def _rays(problem: Problem, positions: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return travel times from positions to columns, and their normalised gradients. Collective.

    `positions` has the shape ``(positions, axes)``; the results have the shapes ``(positions, columns, rows)`` and
    ``(positions, axes, columns, rows)``. The ranks share the work.
    """
    grid, comm = problem.image_grid, problem.survey.comm
    shares = np.array_split(positions, comm.size)
    local_positions, spacing = shares[comm.rank], grid.spacing
    local_tables = np.empty((len(local_positions), 1 + len(spacing), len(columns), grid.nz), np.float32)
    with local_stage(comm):
        for row, position in enumerate(local_positions):
            table = seconds_from(position, problem.velocity, problem.grid, problem.mode)
            parts = [problem.at_image(part) for part in (table, *np.gradient(table, *spacing))]
            local_tables[row] = [(part if grid.ny is None else part[grid.ny // 2])[columns] for part in parts]
    tables = comm.allgatherv(local_tables, [len(share) for share in shares]) if comm.size > 1 else local_tables
    length = np.sqrt((tables[:, 1:] ** 2).sum(axis=1, keepdims=True))
    return tables[:, 0], tables[:, 1:] / np.maximum(length, np.finfo(np.float32).tiny)


def semblance(gather: np.ndarray, z: np.ndarray, depths: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the power of the stack of a gather and its semblance, for each velocity ratio and depth.

    `gather` has the shape ``(classes, rows)``, and the window is in rows. `depths`, of shape ``(ratios, classes,
    rows)``, are the depths at which a velocity of r times the true velocity images a flat reflector that lies at the
    depth of the row for offset and angle zero. For constant velocities these are sqrt(z^2 + (r^2 - 1) h^2) at half
    offset h, and z / sqrt(1 - (r^2 - 1) tan(a)^2) at the angle a. Both results have the shape ``(ratios, rows)``.
    """
    from scipy.ndimage import uniform_filter1d

    flat = np.stack([np.interp(depths[:, number], z, row, right=0.0) for number, row in enumerate(gather)])
    power = uniform_filter1d(flat.sum(axis=0) ** 2, window, axis=-1)
    energy = len(gather) * uniform_filter1d((flat**2).sum(axis=0), window, axis=-1)
    return power, power / (energy + 1e-6 * energy.max() + np.finfo(float).tiny)
