"""Quality control of a migration: common-image gathers in offset and angle, their residual moveout, and spectra.

`moveout` and `angles` have their sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import Field, balanced, check_memory, figure, local_stage, symmetric_limit
from collops.seismic.lsm.angles import by_angle
from collops.seismic.lsm.moveout import MIN_CLASSES, RATIOS, picks, semblance, surrounding
from collops.seismic.signals import power_spectrum
from collops.seismic.survey.selection import offset_classes

if TYPE_CHECKING:
    from collops import LinearOperator
    from collops.extend.engines import Engine
    from collops.seismic.lsm.problem import Problem

_COLUMNS = 5  # number of columns with gathers, and of gathers in a picture
_COPIES = 3  # of the gathers, while their moveout is measured


@dataclass(frozen=True)
class Gathers:
    """Common-image gathers of some columns, and their residual moveout."""

    axis: str  # name and unit of the classes, such as "offsets, m"
    classes: np.ndarray  # the middle of each class
    values: np.ndarray  # shape ``(columns, classes, rows)``
    semblance: np.ndarray  # shape ``(columns, ratios, rows)``, 0 to 1
    # of the migration velocity to the velocity for which the sum of the usable gathers is flattest; None without any
    ratio: float | None
    picks: np.ndarray  # rows of column (its index in `values`), row of the image, ratio and semblance

    @classmethod
    def examined(
        cls,
        axis: str,
        classes: np.ndarray,
        values: np.ndarray,
        z: np.ndarray,
        depths: np.ndarray,
        windows: list[int],
        used: np.ndarray,
    ) -> Gathers:
        """Measure the residual moveout of gathers; for `depths` and the windows of each column see `semblance`.

        `used` are the usable classes of each column, bool, of shape ``(columns, classes)``. Columns with fewer than
        three count neither for the ratio nor for picks.
        """
        usable = used.sum(axis=1) >= MIN_CLASSES
        power, flatness, picked = np.zeros(len(RATIOS)), [], [np.empty((0, 4))]
        for column, (gather, window) in enumerate(zip(values, windows, strict=True)):
            chosen = used[column] if usable[column] else np.ones_like(used[column])
            of_stack, of_column = semblance(gather[chosen], z, depths[:, chosen], window)
            flatness.append(of_column)
            if usable[column]:
                power += of_stack.sum(axis=1)
                found = picks(of_stack, of_column, window)
                picked.append(np.insert(found, 0, column, axis=1))
        ratio = float(RATIOS[power.argmax()]) if power.any() else None
        return cls(axis, classes, values, np.stack(flatness), ratio, np.concatenate(picked))


@dataclass(frozen=True)
class Quality:
    """The result of `examine`; the same on every rank."""

    columns: np.ndarray  # numbers of the columns with gathers among all columns of the image
    x: np.ndarray  # their positions along the line in metres
    y: np.ndarray | None  # the same across the line; None in 2-D
    z: np.ndarray  # depth of the rows in metres
    offsets: Gathers
    angles: Gathers
    radius: float  # of the Fresnel zone that midpoints must surround, in metres
    window: int  # half a wavelength in rows, in the median of the columns
    frequencies: np.ndarray  # in hertz
    spectra: dict[str, np.ndarray]  # amplitude spectra of the data, the modelled data and the residual
    wavenumbers: np.ndarray  # of depth, in cycles per metre
    image_spectra: dict[str, np.ndarray]  # amplitude spectra of the adjoint image and of the image

    @property
    def doubt(self) -> str | None:
        """A sentence why gathers say nothing about the velocity, or None if they do."""
        if self.offsets.ratio is not None and self.angles.ratio is not None:
            return None
        return (
            f"no velocity ratio: nowhere do midpoints of {MIN_CLASSES} classes of offsets surround a position by the "
            f"radius of a Fresnel zone, {self.radius:.0f} m; more shots or fewer classes are needed"
        )

    @property
    def summary(self) -> str:
        """The velocity ratios in a sentence, or why there are none."""
        ratios = [
            f"{ratio:.2f}" + " (the end of the tried range)" * (ratio in (RATIOS[0], RATIOS[-1]))
            for ratio in (self.offsets.ratio, self.angles.ratio)
            if ratio is not None
        ]
        return self.doubt or "flattest at a velocity divided by {} by their offsets, by {} by their angles".format(
            *ratios
        )

    def fields(self) -> dict[str, Field]:
        """Return the arrays of ``result.zarr``."""
        fields = {
            "gather_x": Field(self.x, ("column",), "m"),
            **({} if self.y is None else {"gather_y": Field(self.y, ("column",), "m")}),
            "velocity_ratio": Field(RATIOS, ("velocity_ratio",), "1"),
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
            drawn = np.unique(np.linspace(0, len(self.x) - 1, min(_COLUMNS, len(self.x))).round().astype(int))
            shown, flatness = np.stack([balanced(gathers.values[one]) for one in drawn]), gathers.semblance[drawn]
            limit = symmetric_limit(shown)
            parts = ((shown, "gray", -limit, limit), (flatness, "viridis", 0.0, 1.0))
            for ax, (panels, colors, low, high) in zip(axes, parts, strict=False):
                columns, width, rows = panels.shape
                separator = np.full((columns, 1 + width // 20, rows), np.nan)
                mosaic = np.concatenate([panels, separator], axis=1)
                step = mosaic.shape[1]
                mosaic = mosaic.reshape(-1, rows)[: -separator.shape[1]].T
                extent = (-0.5, len(mosaic[0]) - 0.5, self.z[-1], self.z[0])
                ax.imshow(mosaic, cmap=colors, vmin=low, vmax=high, extent=extent, aspect="auto")
                middles = step * np.arange(columns) + (width - 1) / 2
                ax.set_xticks(middles, positions_in_words(self.x[drawn], None if self.y is None else self.y[drawn]))
                if panels is flatness:
                    for first in step * np.arange(columns):
                        ax.axvline(first + np.interp(1, RATIOS, np.arange(width)), color="white", lw=0.7, ls=":")
            quantity, _, unit = gathers.axis.partition(", ")
            axes[0].set(title="common-image gathers, amplitudes balanced", ylabel="depth (m)")
            axes[0].set_xlabel(
                f"position; in each, {quantity} of {gathers.classes[0]:.0f} to {gathers.classes[-1]:.0f} {unit}"
            )
            best = "too few shots for a velocity ratio" if gathers.ratio is None else f"best at {gathers.ratio:.2f}"
            axes[1].set(title=f"flatness by velocity ratio, {best}")
            axes[1].set_xlabel(f"position; in each, velocity ratios of {RATIOS[0]:g} to {RATIOS[-1]:g}, dotted 1")
            first = next(iter(spectra)) if gathers is self.offsets else None
            for name, spectrum in spectra.items():
                axes[2].semilogy(
                    positions, spectrum / (spectra[first or name].max() or 1.0), label=name.replace("_", " ")
                )
            axes[2].set(title=words[0], xlabel=words[1], ylim=(1e-4, 2))
            axes[2].legend()
        return path


def positions_in_words(x: np.ndarray, y: np.ndarray | None) -> list[str]:
    """Return positions of columns for pictures: along the line, and in 3-D across it."""
    return (
        [f"{along:.0f} m" for along in x] if y is None else [f"{a:.0f}, {b:.0f} m" for a, b in zip(x, y, strict=True)]
    )


def columns_of(problem: Problem, count: int | None, lines: int | None = None) -> np.ndarray:
    """Return the numbers of the columns with gathers among all columns of the image, by y and x.

    `count` columns (5) on each of `lines` lines across y (1), in 3-D, are evenly spaced without the ends of the axes;
    all of an axis, if it has no more.
    """
    grid = problem.image_grid
    along = _spaced(grid.nx, _COLUMNS if count is None else count)
    across = np.zeros(1, int) if grid.ny is None else _spaced(grid.ny, lines or 1)
    return (across[:, None] * grid.nx + along).ravel()


def _spaced(extent: int, count: int) -> np.ndarray:
    """Return evenly spaced indices of an axis without its ends, or all indices."""
    if count >= extent:
        return np.arange(extent)
    if count == 1:
        return np.array([extent // 2])
    return np.unique(np.linspace(0, extent - 1, count + 2).round().astype(int)[1:-1])


def field_bytes(problem: Problem, classes: int | None, count: int | None = None, lines: int | None = None) -> int:
    """Return the bytes of `Quality.fields` and of the illumination, without spectra; 0 without classes."""
    grid = problem.image_grid
    columns = len(columns_of(problem, count, lines))
    return 8 * (2 * columns * (classes + len(RATIOS)) * grid.nz + grid.points) if classes else 0


def examine(
    problem: Problem,
    operator: LinearOperator,
    weighted: list[np.ndarray],
    explained: list[np.ndarray],
    images: dict[str, np.ndarray],
    classes: int,
    counts: tuple[int | None, int | None],
    engine: Engine,
) -> Quality:
    """Image classes of offset and angle, measure their residual moveout, and compare spectra. Collective.

    `operator` is the operator of the survey, `weighted` are the traces of this rank's shots times the squares of their
    weights, and `explained` the traces modelled from the image. `counts` are the arguments of `columns_of`.
    """
    survey, grid, z = problem.survey, problem.image_grid, problem.image_grid.z
    chosen = columns_of(problem, *counts)
    with local_stage(survey.comm):
        needed = _COPIES * field_bytes(problem, classes, *counts)
        check_memory(needed, f"gathers at {len(chosen)} positions", "choose fewer (--gather-columns, --gather-lines)")
    speeds = np.median(problem.at_image(problem.velocity).reshape(-1, grid.nz)[chosen], axis=1)
    windows = [max(3, round(float(speed) / problem.frequency / 2 / grid.dz)) for speed in speeds]
    radius, used = _usable(problem, chosen, classes)
    offsets, migrated = survey.by_offset(operator, classes, traces=weighted, engine=engine)
    values = np.stack([image.reshape(-1, grid.nz)[chosen] for image in migrated], axis=1)
    square = RATIOS[:, None, None] ** 2 - 1
    depths = np.sqrt(np.maximum(z**2 + square * offsets[:, None] ** 2 / 4, 0))
    by_offset = Gathers.examined("offsets, m", offsets, values, z, depths, windows, used)
    angles, values = by_angle(problem, weighted, chosen, classes)
    depths = z / np.sqrt(np.maximum(1 - square * np.tan(np.deg2rad(angles[:, None])) ** 2, 1e-6))
    used = np.repeat(used.sum(axis=1, keepdims=True) >= MIN_CLASSES, classes, axis=1)
    by_angles = Gathers.examined("angles of reflection, degrees", angles, values, z, depths, windows, used)
    samples = survey.geometry.samples
    kinds = {
        "data": survey.traces,
        "explained": explained,
        "residual": [measured - modelled for measured, modelled in zip(survey.traces, explained, strict=False)],
    }
    return Quality(
        chosen,
        grid.x[chosen % grid.nx],
        None if grid.ny is None else grid.axes["y"][chosen // grid.nx],
        z,
        by_offset,
        by_angles,
        radius,
        int(np.median(windows)),
        np.fft.rfftfreq(samples, survey.geometry.interval),
        {name: np.sqrt(survey.comm.allreduce(power_spectrum(traces, samples))) for name, traces in kinds.items()},
        np.fft.rfftfreq(grid.nz, grid.dz),
        {name: np.sqrt(power_spectrum([traces.reshape(-1, grid.nz)], grid.nz)) for name, traces in images.items()},
    )


def _usable(problem: Problem, columns: np.ndarray, classes: int) -> tuple[float, np.ndarray]:
    """Return the radius of a Fresnel zone in the middle of the image, and the usable offset classes of each column."""
    grid, geometry = problem.image_grid, problem.survey.geometry
    wavelength = float(np.median(problem.at_image(problem.velocity))) / problem.frequency
    radius = float(np.sqrt(wavelength * np.median(grid.z) / 2))
    points = grid.x[columns % grid.nx, None]
    if grid.ny is not None:
        points = np.insert(points, 0, grid.axes["y"][columns // grid.nx], axis=1)
    _, number = offset_classes(geometry, classes)
    return radius, surrounding(geometry, number, points, radius)
