"""Running normalization of vector observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from typing_extensions import Self

_WITHOUT_FLOAT64 = ("mps",)
"""Device types without float64."""


class RunningNormalization(nn.Module):
    """Normalization by the mean and standard deviation of all observations so far, clipped to `[-5, 5]`.

    The statistics are exact sums over batches (Chan et al. 1979, the batch form of Welford's recursion) in float64
    and are saved with the network. As in Unity, they start as one observation of mean 0 and variance 1.

    :param size: Number of features.
    """

    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor
    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.ones(size, dtype=torch.float64))
        # Derived values in float32 for `forward`, which runs far more often than the statistics change.
        self.register_buffer("shift", torch.zeros(size), persistent=False)
        self.register_buffer("scale", torch.ones(size), persistent=False)
        self.fresh = True
        """Whether there was no update yet; not read from `count`, which may be on a GPU."""
        self.register_load_state_dict_post_hook(_note_loaded)  # type: ignore[no-untyped-call]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        if fn(self.scale).device.type in _WITHOUT_FLOAT64:
            for name in ("count", "mean", "squares"):
                setattr(self, name, getattr(self, name).to(torch.float32))
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize (n, size) in the dtype of `x`."""
        shift, scale = self.shift, self.scale
        if x.dtype != scale.dtype:
            shift, scale = self.mean.to(x.dtype), self._exact_scale().to(x.dtype)
        return ((x - shift) * scale).clamp(-5, 5)

    def _exact_scale(self) -> torch.Tensor:
        return torch.rsqrt(self.squares / self.count)

    def _note(self) -> None:
        self.shift.copy_(self.mean)
        self.scale.copy_(self._exact_scale())

    @torch.no_grad()
    def update(self, x: torch.Tensor) -> None:
        """Add the rows of (n, size) to the statistics."""
        if not len(x):
            return
        x = x.to(self.mean.dtype)
        mean = x.mean(0)
        count = self.count + len(x)
        shift = mean - self.mean
        self.squares += (x - mean).square().sum(0) + shift.square() * (self.count * len(x) / count)
        self.mean += shift * (len(x) / count)
        self.count.copy_(count)
        self.fresh = False
        self._note()


def _note_loaded(module: RunningNormalization, _: object) -> None:
    module.fresh = bool(module.count == 1)
    module._note()
