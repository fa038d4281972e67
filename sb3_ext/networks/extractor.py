"""`SensorExtractor`: a features extractor of Stable-Baselines3 over the sensors of a behavior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

SensorTensors = Sequence[torch.Tensor]


class SensorExtractor(nn.Module):
    """Features extractor of Stable-Baselines3, which reads observations in the form of their space.

    `size` is the width of the features.

    :param extractor: Extractor of a tensor, or of a dictionary of tensors.
    :param form: Function from one tensor per sensor to the input of the extractor.
    """

    def __init__(self, extractor: BaseFeaturesExtractor, form: Callable[[SensorTensors], Any]) -> None:
        super().__init__()
        self.extractor, self._form, self.size = extractor, form, extractor.features_dim

    def forward(self, observations: SensorTensors) -> torch.Tensor:
        """Return the features (n, size) of one tensor (n, *shape) per sensor."""
        return self.extractor(self._form(observations))  # type: ignore[no-any-return]
