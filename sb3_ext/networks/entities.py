"""Attention over entities: sensors that show a varying number of things, each by the same features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sb3_ext.networks.layers import Initialiser, linear, normal, swish_layers

WIDTH = 128
HEADS = 4
_ABSENT = -1e6  # added to the scores of entities that are not there


def small(width: int) -> Initialiser:
    """The first weights of layers around an attention of this width."""
    return normal((0.125 / width) ** 0.5)


class ResidualSelfAttention(nn.Module):
    """A set of any size → one vector: what its members are, and what each makes of the others.

    Self-attention (Vaswani et al. 2017) of `HEADS` heads with a residual, each side of it normalised (Ba et al. 2016),
    then the mean over the members present. The order of the members changes nothing.

    :param width: features of a member, a multiple of `HEADS`
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.embedding_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.query, self.key, self.value, self.out = (linear(width, width, small(width)) for _ in range(4))
        self.residual_norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """(n, count, width), and bool (n, count), False where there is no member → (n, width)."""
        return self.relate(self.project(x), present)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(…, width) → the same normalised, its query, key and value, each (…, width): all that needs no set."""
        x = self.embedding_norm(x)
        return x, self.query(x), self.key(x), self.value(x)

    def relate(self, projected: tuple[torch.Tensor, ...], present: torch.Tensor) -> torch.Tensor:
        """What `project` made of n sets (n, count, width), and bool (n, count) → (n, width)."""
        x, query, key, value = projected
        n, count, _ = x.shape
        size = self.width // HEADS
        query, key, value = (part.reshape(n, count, HEADS, size).transpose(1, 2) for part in (query, key, value))
        scores = query @ key.transpose(2, 3) / size**0.5
        scores = scores + (~present).to(x.dtype)[:, None, None, :] * _ABSENT
        heads = (scores.softmax(-1) @ value).transpose(1, 2).reshape(n, count, self.width)
        x = self.residual_norm(x + self.out(heads))
        weight = present.to(x.dtype).unsqueeze(-1)
        mean: torch.Tensor = (x * weight).sum(1) / weight.sum(1).clamp(min=1)
        return mean


class EntityAttention(nn.Module):
    """Any number of entities, and what the agent knows of itself → one vector of `WIDTH` features.

    Every entity is embedded together with the agent's own features; self-attention relates the entities. A row of zeros
    is an absent entity.

    :param self_size: features of the agent itself
    :param entity_sizes: features of an entity, for each sensor
    """

    def __init__(self, self_size: int, entity_sizes: Sequence[int]) -> None:
        super().__init__()
        weight = small(WIDTH)
        self.embed_self = swish_layers(self_size, WIDTH, 1, weight) if self_size else None
        known = WIDTH if self_size else 0
        self.embed = nn.ModuleList(swish_layers(known + size, WIDTH, 1, weight) for size in entity_sizes)
        self.relation = ResidualSelfAttention(WIDTH)

    def forward(self, own: torch.Tensor, entities: Sequence[torch.Tensor]) -> torch.Tensor:
        """Own features (n, self size) and one (n, entities, features) a sensor → (n, WIDTH)."""
        present = torch.cat([x.abs().amax(-1) > 0 for x in entities], 1)  # `!=` of floats is not in ONNX's opset 9
        if self.embed_self is not None:
            known = self.embed_self(own).unsqueeze(1)
            entities = [torch.cat([known.expand(-1, x.shape[1], -1), x], -1) for x in entities]
        x = torch.cat([embed(part) for embed, part in zip(self.embed, entities, strict=True)], 1)
        attended: torch.Tensor = self.relation(x, present)
        return attended
