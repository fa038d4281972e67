"""Dense layers with the initializations of Unity's networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

Initializer = Callable[[torch.Tensor], torch.Tensor]


def kaiming(gain: float = 1.0) -> Initializer:
    """Return an initializer of normal weights with standard deviation gain / sqrt(fan-in)."""

    def fill(weight: torch.Tensor) -> torch.Tensor:
        return nn.init.kaiming_normal_(weight, nonlinearity="linear").mul_(gain)

    return fill


def normal(std: float) -> Initializer:
    """Return an initializer of normal weights with this standard deviation."""
    return lambda weight: nn.init.normal_(weight, std=std)


def xavier_rows(weight: torch.Tensor) -> torch.Tensor:
    """Initialize each row as the weights of a layer with one output."""
    for row in weight:
        nn.init.xavier_uniform_(row.unsqueeze(0))
    return weight


def linear(inputs: int, outputs: int, weight: Initializer = nn.init.xavier_uniform_) -> nn.Linear:
    """Return a dense layer with weights initialized by `weight` and zero biases."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        weight(layer.weight)
        layer.bias.zero_()
    return layer


def value_layer(features: int, signals: int) -> nn.Linear:
    """Return the value heads of reward signals, each initialized independently as a layer with one output."""
    return linear(features, signals, xavier_rows)


def dense_layers(
    inputs: int, widths: Sequence[int], activation: Callable[[], nn.Module] = nn.SiLU, weight: Initializer | None = None
) -> nn.Sequential:
    """Return dense layers of these widths, each followed by the activation; the identity for no widths."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [linear(inputs, width, weight or kaiming()), activation()]
        inputs = width
    return nn.Sequential(*layers)


def swish_layers(inputs: int, width: int, count: int, weight: Initializer | None = None) -> nn.Sequential:
    """Return `count` dense layers, each followed by swish (x · sigmoid x), from `inputs` to `width` features."""
    return dense_layers(inputs, [width] * count, weight=weight)
