"""The option ``--profile``: the time of an iteration, divided into modelling, communication and the rest."""

from __future__ import annotations

from collops import profile
from collops.array import Array
from collops.operators import LinearOperator

_MODELLING, _COMMUNICATION = "modelling", "communication"


class Modelling(LinearOperator):
    """An operator whose time ``--profile`` reports as modelling."""

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self._operator = operator
        self.clinear = operator.clinear

    def _forward(self, x: Array, out: Array | None) -> Array:
        with profile.mark(_MODELLING):
            return self._operator._forward(x, out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        with profile.mark(_MODELLING):
            return self._operator._adjoint(y, out)


def costs(recording: profile.Recording, seconds: float) -> tuple[dict[str, float], int]:
    """Divide the seconds of an iteration by the marks that this rank recorded, and count the messages per iteration."""
    count = modelling = communication = messages = 0.0
    for row in recording.report().rows:
        if row.label.endswith(" iteration"):
            count += row.calls[0]
        elif any(label.endswith(" iteration") for label in row.path):
            if row.label == _MODELLING:
                modelling += row.own[0]
            elif row.label.startswith(_COMMUNICATION) and _COMMUNICATION not in row.path[:-1]:
                communication += row.total[0]
                messages += row.calls[0] * (row.label == _COMMUNICATION)  # count the start of a message, not its end
    modelling, communication = (part / max(1, count) for part in (modelling, communication))
    remaining = max(0.0, seconds - modelling - communication)
    return {_MODELLING: modelling, _COMMUNICATION: communication, "rest": remaining}, round(messages / max(1, count))
