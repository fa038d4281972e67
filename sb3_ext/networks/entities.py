"""Attention over entities: sensors with a varying number of entities, each with the same features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sb3_ext.networks.layers import linear, normal, swish_layers

WIDTH = 128
HEADS = 4
ABSENT = -1e6  # score of absent entities


class EntityAttention(nn.Module):
    """Attention from any number of entities and the agent's own features to one vector of `WIDTH` features.

    Each entity is embedded together with the agent's own features. Residual self-attention (Vaswani et al. 2017,
    4 heads) relates the entities, and the result is the mean over those present. A row of zeros is an absent entity.

    :param self_size: Number of the agent's own features.
    :param entity_sizes: Number of features of an entity, per sensor.
    """

    def __init__(self, self_size: int, entity_sizes: Sequence[int]) -> None:
        super().__init__()
        weight = normal((0.125 / WIDTH) ** 0.5)
        self.embed_self = swish_layers(self_size, WIDTH, 1, weight) if self_size else None
        self_width = WIDTH if self_size else 0
        self.embed = nn.ModuleList(swish_layers(self_width + size, WIDTH, 1, weight) for size in entity_sizes)
        self.embedding_norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.query, self.key, self.value, self.out = (linear(WIDTH, WIDTH, weight) for _ in range(4))
        self.residual_norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, own: torch.Tensor, entities: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return features (n, WIDTH) from own features (n, self size) and (n, entities, features) per sensor."""
        if own.device.type == "cpu" and not torch.onnx.is_in_onnx_export():
            # Entities absent in all rows have no effect. A GPU computes them in less time than it takes to find them.
            entities = [x[:, (x != 0).any(2).any(0)] for x in entities]
        present = torch.cat([x.abs().amax(-1) > 0 for x in entities], 1)  # `!=` of floats is not in ONNX's opset 9
        if self.embed_self is not None:
            embedded_self = self.embed_self(own).unsqueeze(1)
            entities = [torch.cat([embedded_self.expand(-1, x.shape[1], -1), x], -1) for x in entities]
        x = torch.cat([embed(part) for embed, part in zip(self.embed, entities, strict=True)], 1)
        x = self.embedding_norm(x)
        x = self.residual_norm(x + self.out(self._attend(x, present)))
        weight = present.to(x.dtype).unsqueeze(-1)
        mean: torch.Tensor = (x * weight).sum(1) / weight.sum(1).clamp(min=1)
        return mean

    def _attend(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        n, count, _ = x.shape
        query, key, value = (
            layer(x).reshape(n, count, HEADS, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        scores = scores + (~present).to(x.dtype)[:, None, None, :] * ABSENT
        heads: torch.Tensor = (scores.softmax(-1) @ value).transpose(1, 2)
        return heads.reshape(n, count, WIDTH)
