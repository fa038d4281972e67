"""Encoders of one visual sensor (C, H, W) as a vector, with the layers and sizes of Unity's encoders."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sb3_ext.networks.layers import kaiming, linear
from sb3_ext.plugins import ENCODERS, load_plugin, plugin_names
from unity_gym.errors import InvalidValueError, UnityGymError

Convolution = tuple[int, int, int]  # channels, kernel side, stride

_CONVOLUTIONS: dict[str, Sequence[Convolution]] = {
    "fully_connected": (),
    "match3": ((35, 3, 1), (144, 3, 1)),
    "simple": ((16, 8, 4), (32, 4, 2)),
    "nature_cnn": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}
_SMALLEST_SIDE = {"fully_connected": 1, "match3": 5, "resnet": 15, "simple": 20, "nature_cnn": 36}


def visual_encoder(kind: str, shape: tuple[int, int, int], features: int) -> nn.Module:
    """Return an encoder of images (n, C, H, W) in `[0, 1]` with output (n, features).

    :param kind: "simple", "nature_cnn" (Mnih et al. 2015), "resnet" (Espeholt et al. 2018), "match3" or
        "fully_connected"; or the name of a plugin.
    :param shape: Shape (C, H, W) of the images.
    :param features: Number of output features.
    :raises InvalidValueError: If the kind does not exist.
    :raises UnityGymError: If the image is too small for the encoder, or a plugin returns no suitable module.
    """
    if kind in plugin_names(ENCODERS):
        return _plugged(kind, shape, features)
    if kind not in _SMALLEST_SIDE:
        raise InvalidValueError(f"no visual encoder {kind!r}; there are {sorted(_SMALLEST_SIDE)}")
    if min(shape[1:]) < _SMALLEST_SIDE[kind]:
        fitting = [name for name, side in _SMALLEST_SIDE.items() if side <= min(shape[1:])]
        raise UnityGymError(
            f"the visual encoder {kind!r} needs images of at least {_SMALLEST_SIDE[kind]}×{_SMALLEST_SIDE[kind]}; a "
            f"sensor sends {shape[1]}×{shape[2]}: make them larger, or set vis_encode_type to one of {fitting}"
        )
    body = _resnet(shape[0]) if kind == "resnet" else _convolutions(shape[0], _CONVOLUTIONS[kind])
    body.append(nn.Flatten())
    with torch.no_grad():
        flat = body(torch.zeros(1, *shape)).shape[1]
    return body.extend([linear(flat, features, kaiming(1.41)), nn.ReLU() if kind == "resnet" else nn.LeakyReLU()])


def _plugged(kind: str, shape: tuple[int, int, int], features: int) -> nn.Module:
    """Return the encoder of a plugin.

    :raises UnityGymError: If the plugin returns no suitable module.
    """
    encoder = load_plugin(ENCODERS, kind)(shape, features)
    if isinstance(encoder, nn.Module):
        with torch.no_grad():
            size = tuple(encoder(torch.zeros(2, *shape)).shape)
        if size == (2, features):
            return encoder
        returned = f"{size} numbers"
    else:
        returned = f"a {type(encoder).__name__}"
    raise UnityGymError(
        f"the visual encoder {kind!r} must return a torch.nn.Module that maps (2, {', '.join(map(str, shape))}) to "
        f"(2, {features}), got {returned}"
    )


def _convolutions(channels: int, layers: Sequence[Convolution]) -> nn.Sequential:
    body = nn.Sequential()
    for width, side, stride in layers:
        body.extend([_Convolution(channels, width, side, stride), nn.LeakyReLU()])
        channels = width
    return body


class _Convolution(nn.Conv2d):
    """Convolution that is computed as a dense layer where its kernel covers the image, in a third of the time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2:] != self.weight.shape[2:] or torch.onnx.is_in_onnx_export():
            return super().forward(x)
        return nn.functional.linear(x.flatten(1), self.weight.flatten(1), self.bias)[..., None, None]


def _resnet(channels: int) -> nn.Sequential:
    body = nn.Sequential()
    for width in (16, 32, 32):
        body.extend([nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, 2), _Residual(width), _Residual(width)])
        channels = width
    return body.append(nn.SiLU())


class _Residual(nn.Module):
    """Residual block: x plus two convolutions that keep its shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.layers = nn.Sequential(nn.SiLU(), first, nn.SiLU(), second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)  # type: ignore[no-any-return]
