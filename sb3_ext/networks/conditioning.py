"""Goal conditioning: the weights of a layer as a function of the goal."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sb3_ext.networks.layers import linear, swish_layers

_AGENTS_PER_GOAL = 2  # from this number, computing the weights once per goal is faster than once per agent
_WEIGHTS_AT_ONCE = 2**26  # up to this number, a GPU computes them per agent faster than it finds the goals
_FEW_GOALS = 4  # up to this number, `_ProductOfFewRows` is faster than torch's product


class _ProductOfFewRows(torch.autograd.Function):
    """`rows @ matrix.t()` for a few rows and a large matrix, in half the time of torch's own product on a CPU.

    The number of rows of the matrix is a multiple of its number of columns.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, matrix)
        return (matrix @ rows.t()).t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (gradient,), (rows, matrix) = gradients, ctx.saved_tensors
        of_matrix = torch.outer(gradient[0], rows[0])
        for of_output, row in zip(gradient[1:], rows[1:], strict=True):
            of_matrix.addcmul_(of_output.unsqueeze(1), row)
        # The sum over the many rows of the matrix, in square blocks
        blocks = matrix.view(-1, *rows.shape[1:] * 2)
        of_rows = torch.bmm(gradient.reshape(len(rows), len(blocks), -1).transpose(0, 1), blocks).sum(0)
        return of_rows, of_matrix


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
        finds_goals = x.device.type == "cpu" or len(x) * self.bias.numel() * x.shape[1] > _WEIGHTS_AT_ONCE
        if finds_goals and not goal.requires_grad and not torch.onnx.is_in_onnx_export():
            goals, goal_index = torch.unique(goal, dim=0, return_inverse=True)
            if len(goals) * _AGENTS_PER_GOAL <= len(goal):
                outputs_per_goal = x @ self._weights_for(goals)
                rows = torch.arange(len(x), device=x.device)
                return nn.functional.silu(outputs_per_goal[goal_index, rows] + self.bias)
        return nn.functional.silu(torch.bmm(x.unsqueeze(1), self._weights_for(goal)).squeeze(1) + self.bias)

    def _weights_for(self, goals: torch.Tensor) -> torch.Tensor:
        if len(goals) > _FEW_GOALS or goals.device.type != "cpu":
            return self.weights(goals).reshape(-1, *self._shape)  # type: ignore[no-any-return]
        last = self.weights[-1]
        weights = _ProductOfFewRows.apply(self.weights[:-1](goals), last.weight) + last.bias  # type: ignore[no-untyped-call]
        return weights.reshape(-1, *self._shape)  # type: ignore[no-any-return]
