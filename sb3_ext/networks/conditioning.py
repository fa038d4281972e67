"""Goal conditioning: the goal writes the weights of a layer."""

from __future__ import annotations

import torch
from torch import nn

from sb3_ext.networks.layers import linear, swish_layers

_AGENTS_A_GOAL = 2  # so many or more: to write the weights once a goal is faster than once an agent


class GoalConditionedLayer(nn.Module):
    """A dense layer whose weights are the output of a hypernetwork that reads the goal (Ha et al. 2016), then swish.

    :param inputs: features in
    :param outputs: features out; also the width of the hypernetwork
    :param goal_size: features of the goal
    """

    def __init__(self, inputs: int, outputs: int, goal_size: int) -> None:
        super().__init__()
        self._shape = (inputs, outputs)
        bound = (1 / (inputs * outputs)) ** 0.5
        self.weights = nn.Sequential(
            swish_layers(goal_size, outputs, 2),
            nn.LayerNorm(outputs, elementwise_affine=False),
            linear(outputs, inputs * outputs, lambda weight: nn.init.uniform_(weight, -bound, bound)),
        )
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        """(n, inputs) and (n, goal size) → (n, outputs)."""
        if not goal.requires_grad and not torch.onnx.is_in_onnx_export():
            goals, which = torch.unique(goal, dim=0, return_inverse=True)
            if len(goals) * _AGENTS_A_GOAL <= len(goal):
                everyone_for_each = x @ self._weights_for(goals)
                return nn.functional.silu(everyone_for_each[which, torch.arange(len(x))] + self.bias)
        return nn.functional.silu(torch.bmm(x.unsqueeze(1), self._weights_for(goal)).squeeze(1) + self.bias)

    def _weights_for(self, goals: torch.Tensor) -> torch.Tensor:
        return self.weights(goals).reshape(-1, *self._shape)  # type: ignore[no-any-return]
