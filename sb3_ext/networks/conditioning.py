"""Goal conditioning: the weights of a layer as a function of the goal."""

from __future__ import annotations

import torch
from torch import nn

from sb3_ext.networks.layers import linear, swish_layers

_AGENTS_PER_GOAL = 2  # from this number, computing the weights once per goal is faster than once per agent


class GoalConditionedLayer(nn.Module):
    """Dense layer with swish, whose weights are the output of a hypernetwork of the goal (Ha et al. 2016).

    :param inputs: Number of input features.
    :param outputs: Number of output features, and width of the hypernetwork.
    :param goal_size: Number of features of the goal.
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
        """Return features (n, outputs) from features (n, inputs) and goals (n, goal size)."""
        if not goal.requires_grad and not torch.onnx.is_in_onnx_export():
            goals, goal_index = torch.unique(goal, dim=0, return_inverse=True)
            if len(goals) * _AGENTS_PER_GOAL <= len(goal):
                outputs_per_goal = x @ self._weights_for(goals)
                return nn.functional.silu(outputs_per_goal[goal_index, torch.arange(len(x))] + self.bias)
        return nn.functional.silu(torch.bmm(x.unsqueeze(1), self._weights_for(goal)).squeeze(1) + self.bias)

    def _weights_for(self, goals: torch.Tensor) -> torch.Tensor:
        return self.weights(goals).reshape(-1, *self._shape)  # type: ignore[no-any-return]
