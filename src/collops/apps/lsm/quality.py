"""Quality control of a migration: common-image gathers in offset, their residual moveout, and spectra of the data.

References
----------
Al-Yahya, K., *Velocity analysis by iterative profile migration*, Geophysics 54 (1989), 718-729.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.files import Field
from collops.apps.pictures import figure, symmetric_limit
from collops.apps.signals import power_spectrum

if TYPE_CHECKING:
    from collops.apps.lsm.problem import Problem
    from collops.backend import Engine

__all__ = ["Quality", "examine", "field_bytes", "semblance"]

_COLUMNS = 5
_RATIOS = np.linspace(0.8, 1.2, 41)  # of the migration velocity to one that makes gathers flat


@dataclass(frozen=True)
class Quality:
    """What `examine` finds; the same on every rank."""

    x: np.ndarray  # position of the columns with gathers along the line, in metres
    z: np.ndarray  # depth of the rows in metres
    offsets: np.ndarray  # mean offset of each class in metres
    gathers: np.ndarray  # shape ``(columns, classes, rows)``
    semblance: np.ndarray  # shape ``(columns, ratios, rows)``, 0 to 1
    ratio: float  # of the migration velocity to that for which all gathers together are flattest
    frequencies: np.ndarray  # in hertz
    spectra: dict[str, np.ndarray]  # amplitude spectra of the data, those modelled and the residual

    def fields(self) -> dict[str, Field]:
        """Return the arrays of ``result.zarr``."""
        fields = {
            "gather_x": Field(self.x, ("column",), "m"),
            "gather_offset": Field(self.offsets, ("class",), "m"),
            "common_image_gathers": Field(self.gathers, ("column", "class", "z"), "1"),
            "velocity_ratio": Field(_RATIOS, ("velocity_ratio",), "1"),
            "semblance": Field(self.semblance, ("column", "velocity_ratio", "z"), "1"),
            "frequency": Field(self.frequencies, ("frequency",), "Hz"),
        }
        return fields | {f"{name}_spectrum": Field(each, ("frequency",), "1") for name, each in self.spectra.items()}

    def draw(self, path: Path) -> Path:
        """Draw the gathers, their semblance and the spectra; return the picture."""
        with figure(path, 3, (17, 5.5)) as (_, axes):
            limit = symmetric_limit(self.gathers)
            parts = ((self.gathers, "gray", -limit, limit), (self.semblance, "viridis", 0.0, 1.0))
            for ax, (panels, colors, low, high) in zip(axes, parts, strict=False):
                columns, width, rows = panels.shape
                apart = np.full((columns, 1 + width // 20, rows), np.nan)
                shown = np.concatenate([panels, apart], axis=1)
                step = shown.shape[1]
                shown = shown.reshape(-1, rows)[: -apart.shape[1]].T
                extent = (-0.5, len(shown[0]) - 0.5, self.z[-1], self.z[0])
                ax.imshow(shown, cmap=colors, vmin=low, vmax=high, extent=extent, aspect="auto")
                middles = step * np.arange(columns) + (width - 1) / 2
                ax.set_xticks(middles, [f"{x:.0f} m" for x in self.x])
                if panels is self.semblance:
                    for first in step * np.arange(columns):
                        ax.axvline(first + np.interp(1, _RATIOS, np.arange(width)), color="white", lw=0.7, ls=":")
            axes[0].set(title="common-image gathers", ylabel="depth (m)")
            axes[0].set_xlabel(f"position; in each, offsets of {self.offsets[0]:.0f} to {self.offsets[-1]:.0f} m")
            axes[1].set(title=f"flatness, best at a velocity ratio of {self.ratio:.2f}")
            axes[1].set_xlabel(f"position; in each, velocity ratios of {_RATIOS[0]:g} to {_RATIOS[-1]:g}, dotted 1")
            for name, each in self.spectra.items():
                axes[2].semilogy(self.frequencies, each / (self.spectra["data"].max() or 1.0), label=name)
            axes[2].set(title="amplitude spectra", xlabel="frequency (Hz)", ylim=(1e-4, 2))
            axes[2].legend()
        return path


def field_bytes(problem: Problem, classes: int | None) -> int:
    """Return the bytes of `Quality.fields`, without those of spectra; 0 without classes."""
    return 8 * _COLUMNS * (classes + len(_RATIOS)) * problem.grid.nz if classes else 0


def examine(
    problem: Problem,
    operator: Any,
    believed: list[np.ndarray],
    explained: list[np.ndarray],
    classes: int,
    engine: Engine,
) -> Quality:
    """Image so many classes of offset, look for the moveout that is left, and compare spectra. Collective.

    `operator` is that of the survey, `believed` are the traces of this rank's shots without those left out, and
    `explained` those modelled from the image. Gathers are columns along the line, in 3-D in the middle of
    the axis y.
    """
    survey, grid = problem.survey, problem.grid
    offsets, images = survey.by_offset(operator, classes, traces=believed, engine=engine)
    chosen = np.unique(np.linspace(0, grid.nx - 1, _COLUMNS + 2).round().astype(int)[1:-1])
    middle = () if grid.ny is None else (grid.ny // 2,)
    gathers = np.stack([image[(*middle, chosen)] for image in images], axis=1)
    velocity = problem.velocity[middle][chosen]
    powers = []
    for gather, column in zip(gathers, velocity, strict=True):
        wavelength = float(np.median(column)) / problem.frequency / 2 / grid.dz
        powers.append(semblance(gather, grid.z, offsets / 2, max(3, round(wavelength))))
    stacked, flatness = (np.stack(each) for each in zip(*powers, strict=True))
    samples = survey.geometry.samples
    kinds = {
        "data": survey.traces,
        "explained": explained,
        "residual": [measured - modelled for measured, modelled in zip(survey.traces, explained, strict=False)],
    }
    spectra = {name: np.sqrt(survey.comm.allreduce(power_spectrum(each, samples))) for name, each in kinds.items()}
    return Quality(
        grid.x[chosen],
        grid.z,
        offsets,
        gathers,
        flatness,
        float(_RATIOS[stacked.sum(axis=(0, 2)).argmax()]),
        np.fft.rfftfreq(samples, survey.geometry.interval),
        spectra,
    )


def semblance(gather: np.ndarray, z: np.ndarray, half: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the power of the stack of a gather and its semblance, for each velocity ratio and depth.

    `gather` has the shape ``(classes, rows)``, `half` is half the offset of each class in metres, and the window is in
    rows. With a migration velocity of r times the true one, a flat reflector of depth z at offset zero is imaged at the
    depth sqrt(z^2 + (r^2 - 1) h^2) at half offset h, exactly if velocities are constant. Both results have the shape
    ``(ratios, rows)``.
    """
    from scipy.ndimage import uniform_filter1d

    at = np.sqrt(np.maximum(z**2 + (_RATIOS[:, None, None] ** 2 - 1) * half[:, None] ** 2, 0))
    flat = np.stack([np.interp(at[:, number], z, row) for number, row in enumerate(gather)])
    power = uniform_filter1d(flat.sum(axis=0) ** 2, window, axis=-1)
    energy = len(gather) * uniform_filter1d((flat**2).sum(axis=0), window, axis=-1)
    return power, power / (energy + 1e-6 * energy.max() + np.finfo(float).tiny)
