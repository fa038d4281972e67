"""Actions as the input of a network."""

from __future__ import annotations

from functools import lru_cache

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
    one_hot = actions.new_zeros((len(actions), sum(spec.discrete_branches)))
    one_hot.scatter_(1, chosen.to(torch.int64) + first_actions(spec.discrete_branches, actions.device), 1)
    return torch.cat([continuous, one_hot], 1)


@lru_cache
def first_actions(branches: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return the index of each branch's first action among those of all branches, int64 (branches,)."""
    sizes = torch.tensor(branches, dtype=torch.int64, device=device)
    return sizes.cumsum(0) - sizes
