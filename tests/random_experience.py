"""Models without an environment, and random experience for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.logger import Logger

from sb3_ext import PPO, SAC
from sb3_ext.experience import Trajectories
from unity_gym.specs import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

SPEC = BehaviorSpec(
    [ObservationSpec((5,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "body")], ActionSpec(2, (3,))
)


def trajectories(rng: np.random.Generator, lengths: list[int]) -> Trajectories:
    """Return random trajectories of the given lengths, one per agent."""

    def states(n: int) -> dict[str, np.ndarray]:
        shown = rng.normal(2, 3, (n, 5)).astype(np.float32)
        return {"observation_0": shown, "mask": np.ones((n, 3), bool), "memory": np.zeros((n, 0), np.float32)}

    n, ends = sum(lengths), len(lengths)
    decisions = states(n) | {
        "action": np.hstack([rng.normal(0, 0.3, (n, 2)), rng.integers(0, 3, (n, 1))]).astype(np.float32),
        "log_prob": rng.normal(-1, 0.1, (n, 3)).astype(np.float32),
        "reward": rng.normal(size=n).astype(np.float32),
        "group_reward": np.zeros(n, np.float32),
        "version": np.zeros(n, np.int64),
    }
    flags = {"terminated": rng.random(ends) < 0.5, "is_episode_end": np.ones(ends, bool), "row": np.arange(ends)}
    return Trajectories(decisions, states(ends) | flags, np.array(lengths))


def model_of(
    kind: type[PPO] | type[SAC], network: Mapping[str, Any] | None = None, device: str = "cpu", **options: Any
) -> Any:
    """Return a model without an environment, with a small network that `network` changes."""
    name = "UnitySACPolicy" if kind is SAC else "UnityPolicy"
    network = {"hidden_units": 8, "num_layers": 1, "normalize": True} | dict(network or {})
    model = kind.from_spec(name, SPEC, policy_kwargs=network, device=device, seed=0, **options)
    model.set_logger(Logger(None, []))
    model.start(SPEC)
    return model
