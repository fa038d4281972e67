"""Value heads are initialized alike in all algorithms, and independently per reward signal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gymnasium import spaces

from sb3_ext import POCA, PPO, RND, SAC, Extrinsic
from sb3_ext.networks.layers import value_layer
from stand_ins.toy_environments import make_toys


def signals() -> list[Any]:
    return [Extrinsic(), RND()]


def rows(kind: str) -> list[torch.Tensor]:
    """Return the weights of the value heads of a new model, (signals, features) per critic."""
    env = make_toys(spaces.Discrete(2))
    options: dict[str, Any] = {"reward_signals": signals(), "seed": 3, "policy_kwargs": {"hidden_units": 512}}
    if kind == "POCA":
        return [POCA("UnityPOCAPolicy", env, **options).policy.value_head.weight]
    if kind == "SAC":
        model = SAC("UnitySACPolicy", env, **options)
        return [model.policy.critic.head.weight.mT[0], model.policy.critic.head.weight.mT[1]]
    second = {"PPO": None, "PPO with two critics": "min"}[kind]
    policy = PPO("UnityPolicy", env, second_critic=second, **options).policy
    heads = [policy.value_head, policy.second_value_head]
    return [head.weight for head in heads if head is not None]


@pytest.mark.parametrize("kind", ["PPO", "PPO with two critics", "POCA", "SAC"])
def test_value_heads_start_independently_and_with_the_same_variance_in_each_algorithm(kind: str) -> None:
    weights = [row for critic in rows(kind) for row in critic.detach()]
    for row in weights:
        bound = math.sqrt(6 / (len(row) + 1))
        assert row.abs().max() <= bound
        assert row.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
    correlations = torch.corrcoef(torch.stack(weights)) - torch.eye(len(weights))
    assert correlations.abs().max() < 0.25


def test_a_value_head_starts_as_a_layer_with_one_output_for_any_number_of_heads() -> None:
    weight = value_layer(4, 400).weight
    assert weight.std().item() == pytest.approx(math.sqrt(6 / 5) / math.sqrt(3), rel=0.1)  # of 400 outputs: 0.07
