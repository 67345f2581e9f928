"""How fast training goes: tokens a second, how much of the GPU that uses, and how long it will take."""

from collections import deque
from typing import Any, Final, NamedTuple

import torch

_PEAKS: Final = {"H100": 989e12, "H200": 989e12, "H800": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}
"""bfloat16 operations a second without sparsity, as the makers state them, by a part of the device's name."""
_RECENT: Final = 20
"""Steps that the rate is taken over; the very first, in which kernels are compiled, is soon forgotten."""


class Pace(NamedTuple):
    """The rate at some moment."""

    tokens_per_second: float
    utilisation: float | None
    """Part of what the GPUs could compute at most; unknown for a device without a stated figure."""
    seconds_left: float


class Stopwatch:
    """Keeps the last steps' times."""

    def __init__(self, model: Any, *, steps: int, ranks: int) -> None:
        self._steps = steps
        self._operations = operations_a_token(model)
        peak = peak_of(next(model.parameters()).device)
        self._peak = None if peak is None else peak * ranks
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def after(self, step: int, *, tokens: int, seconds: float) -> Pace:
        """Note a step, counted from 0."""
        self._recent.append((tokens, seconds))
        taken = sum(seconds for _, seconds in self._recent)
        rate = sum(tokens for tokens, _ in self._recent) / max(taken, 1e-9)
        return Pace(
            tokens_per_second=rate,
            utilisation=None if self._peak is None else self._operations * rate / self._peak,
            seconds_left=(self._steps - step - 1) * taken / len(self._recent),
        )


def operations_a_token(model: Any) -> int:
    """Two for each weight forward, two backward, and two more for the gradient of each weight that is trained."""
    return sum((6 if parameter.requires_grad else 4) * parameter.numel() for parameter in model.parameters())


def peak_of(device: torch.device) -> float | None:
    """What a device can do at most, if that is known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)
