"""Actions as the input of a network."""

from __future__ import annotations

import torch

from unity_gym.specs import ActionSpec


def action_features_size(spec: ActionSpec) -> int:
    """Return the width of `action_features`."""
    return spec.continuous_size + sum(spec.discrete_branches)


def action_features(actions: torch.Tensor, spec: ActionSpec) -> torch.Tensor:
    """Return action features, float (m, continuous size + sum of branches).

    They are the continuous actions, then each branch index as a one-hot vector.

    :param actions: Actions (m, act_dim): the continuous ones, then the index of each branch.
    :param spec: Action spec of the behavior.
    """
    continuous, chosen = actions.tensor_split([spec.continuous_size], dim=1)
    sizes = torch.tensor(spec.discrete_branches, dtype=torch.int64, device=actions.device)
    one_hot = actions.new_zeros((len(actions), sum(spec.discrete_branches)))
    one_hot.scatter_(1, chosen.to(torch.int64) + sizes.cumsum(0) - sizes, 1)
    return torch.cat([continuous, one_hot], 1)
