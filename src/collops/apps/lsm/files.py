"""Draw what a migration found, and how fast."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collops.apps.lsm.grid import Grid
from collops.apps.pictures import balanced, color_bar, convergence, figure, section, symmetric_limit

__all__ = ["write_pictures"]


def write_pictures(
    folder: Path,
    grid: Grid,
    *,
    truth: np.ndarray | None,
    velocity: np.ndarray,
    adjoint: np.ndarray,
    image: np.ndarray,
    residuals: np.ndarray,
    noise_norm: float | None,
    error: float | None,
) -> list[Path]:
    """Draw ``image.png`` and ``convergence.png``.

    Parameters
    ----------
    folder : pathlib.Path
        Where to write.
    grid : Grid
        The image grid; all images have its shape.
    truth : numpy.ndarray or None
        The model that was to be found; the velocity is shown instead where it is not known.
    velocity : numpy.ndarray
        In m/s.
    adjoint : numpy.ndarray
        The adjoint image, scaled to fit the data.
    image : numpy.ndarray
        The least-squares image.
    residuals : numpy.ndarray
        Norms of the residual.
    noise_norm : float or None
        Norm of the noise in the data.
    error : float or None
        Relative error of the image.

    Returns
    -------
    list of pathlib.Path
        What was written.
    """
    path = folder / "image.png"
    extent = (float(grid.x[0]), float(grid.x[-1]), float(grid.z[0]), float(grid.z[-1]))
    ratio = (extent[1] - extent[0]) / (extent[3] - extent[2])
    panel_width = 5.2
    height = 0.92 * panel_width / ratio + 0.8 if 0.5 < ratio < 4 else 3.2
    iterations = len(residuals) - 1
    with figure(path, 3, (3 * panel_width, height)) as (drawing, axes):
        if truth is None:
            drawn = section(
                axes[0],
                velocity,
                extent,
                "velocity",
                limits=(velocity.min(), velocity.max()),
                colors="viridis",
            )
            color_bar(drawing, axes[0], drawn, "m/s")
            adjoint, image = balanced(adjoint), balanced(image)
            limits = [symmetric_limit(adjoint), symmetric_limit(image)]
        else:
            # One scale for all three, so that what the adjoint lacks in amplitude shows.
            limits = [symmetric_limit(truth, 99.5)] * 2
            section(axes[0], truth, extent, "true reflectivity", limits=(-limits[0], limits[0]))
        suffix = ", amplitudes balanced" if truth is None else ""
        section(axes[1], adjoint, extent, f"adjoint image{suffix}", limits=(-limits[0], limits[0]), depth_label=False)
        title = f"least-squares image, {iterations} iterations"
        if error is not None:
            title += f", error {100 * error:.0f} %"
        section(axes[2], image, extent, title, limits=(-limits[1], limits[1]), depth_label=False)
    return [path, convergence(folder / "convergence.png", residuals, "CGLS", noise_norm)]
