"""A synthetic earth: dipping and undulating layers, a fault, an unconformity and a channel."""

from __future__ import annotations

import numpy as np

# Bases of the layers below the unconformity, in layering coordinates (fractions of the record), and impedances of the
# layers in 10^6 kg/(m^2 s): thick and thin layers, strong and weak contrasts.
_BASES = (0.10, 0.16, 0.23, 0.27, 0.35, 0.385, 0.46, 0.53, 0.56, 0.64, 0.70, 0.735, 0.82, 0.90, 0.96, 1.05)
_IMPEDANCES = (4.6, 5.3, 4.9, 6.0, 5.2, 6.4, 5.7, 6.2, 5.1, 6.6, 7.2, 6.3, 7.0, 7.9, 7.1, 8.0, 7.4)
# The cover: flat layers above the unconformity.
_COVER_BASES = (0.06, 0.12, 0.17)
_COVER_IMPEDANCES = (3.4, 3.9, 3.6, 4.2)
_CHANNEL_DEPTH, _CHANNEL_THICKNESS, _CHANNEL_IMPEDANCE = 0.235, 0.035, 4.0


def impedance(shape: tuple[int, ...], rows: slice = slice(None)) -> np.ndarray:
    """Return acoustic impedances in 10^6 kg/(m^2 s), constant within each layer.

    float64, of `shape`, traces along one or two lateral axes and samples, or some rows of it along the first axis.
    """
    lateral = [(np.arange(extent) + 0.5) / extent for extent in shape[:-1]]
    x = lateral[0][rows].reshape(-1, 1, 1)
    y = lateral[1].reshape(1, -1, 1) if len(lateral) == 2 else np.full((1, 1, 1), 0.4)
    t = ((np.arange(shape[-1]) + 0.5) / shape[-1]).reshape(1, 1, -1)

    unconformity = 0.20 + 0.02 * np.sin(2 * np.pi * (x + 0.4 * y)) + 0.01 * np.cos(5 * np.pi * y)
    dome = 0.07 * np.exp(-(((x - 0.35) / 0.25) ** 2) - ((y - 0.5) / 0.35) ** 2)
    # Beyond the fault, an inclined and curved plane, the layers are deeper.
    thrown = 0.06 * (x > 0.68 + 0.10 * (y - 0.5) - 0.12 * (t - 0.5))
    layering = t - 0.12 * (x - 0.5) - 0.05 * (y - 0.5) + dome - thrown
    model = np.asarray(_IMPEDANCES)[np.searchsorted(_BASES, layering)]
    cover = np.asarray(_COVER_IMPEDANCES)[np.searchsorted(_COVER_BASES, t - 0.5 * (unconformity - 0.20))]
    model = np.where(t < unconformity, cover, model)

    # A meandering channel along y below the unconformity.
    axis = 0.42 + 0.16 * np.sin(2 * np.pi * (y + 0.1)) + 0.05 * np.sin(5 * np.pi * y)
    bed = _CHANNEL_DEPTH + 0.02 * np.sin(2 * np.pi * (x + 0.4 * y)) + 0.01 * np.cos(5 * np.pi * y)
    width = 0.055
    thickness = _CHANNEL_THICKNESS * np.maximum(0, 1 - ((x - axis) / width) ** 2)
    model = np.where((t >= bed) & (t < bed + thickness), _CHANNEL_IMPEDANCE, model)
    return model.reshape(model.shape[0], *shape[1:])
