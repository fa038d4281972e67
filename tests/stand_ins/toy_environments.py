"""Small environments for algorithms, with every type of action."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

HYBRID = spaces.Dict({"continuous": spaces.Box(-1, 1, (2,), np.float32), "discrete": spaces.MultiDiscrete([3, 2])})
SPACES = {
    "numbers": (spaces.Box(-2, 6, (3,), np.float32), None),
    "choice": (spaces.Discrete(4), spaces.Discrete(5)),
    "branches": (spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([4, 3])),
    "branches from a start": (spaces.MultiDiscrete([3, 2], start=[1, 5]), spaces.MultiDiscrete([4, 3], start=[2, -1])),
    "both": (HYBRID, None),
    "bits": (spaces.MultiBinary(3), spaces.MultiBinary(4)),
    "image": (
        spaces.Discrete(2),
        spaces.Dict({"eye": spaces.Box(0, 255, (3, 36, 36), np.uint8), "more": spaces.Box(-1, 1, (2, 3), np.float64)}),
    ),
}


class Toy(gym.Env[Any, Any]):
    """Episodes of random length with masks; every third is truncated."""

    def __init__(self, action_space: spaces.Space[Any], observation_space: spaces.Space[Any] | None = None) -> None:
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(-5, 5, (4,), np.float32)
        self.observation_space.seed(0)
        self.rng = np.random.default_rng(0)
        self.episode = self.left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.episode += 1
        self.left = int(self.rng.integers(3, 12))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action) or isinstance(self.action_space, spaces.Dict)
        self.left -= 1
        over = self.left == 0
        late = self.episode % 3 == 0
        return self.observation_space.sample(), float(self.rng.normal()), over and not late, over and late, {}

    def action_masks(self) -> np.ndarray:
        space = self.action_space["discrete"] if isinstance(self.action_space, spaces.Dict) else self.action_space
        if isinstance(space, spaces.Discrete):
            sizes = [int(space.n)]
        else:
            assert isinstance(space, spaces.MultiDiscrete)
            sizes = space.nvec.tolist()
        masks: np.ndarray = self.rng.random(sum(sizes)) < 0.6
        masks[np.cumsum([0, *sizes])[:-1]] = True
        return masks


class Bits(Toy):
    """Two actions per bit, without masks."""

    def action_masks(self) -> np.ndarray:
        assert isinstance(self.action_space, spaces.MultiBinary)
        return np.ones(2 * self.action_space.n, bool)


class HybridVecEnv(DummyVecEnv):
    """A vector environment with dict actions, which SB3's `DummyVecEnv` does not support."""

    def step_async(self, actions: Any) -> None:
        rows = [{key: part[row] for key, part in actions.items()} for row in range(self.num_envs)]
        self.actions = rows  # type: ignore[assignment]


def make_toys(actions: spaces.Space[Any], observations: spaces.Space[Any] | None = None, n: int = 3) -> DummyVecEnv:
    class Unmasked(Toy):
        action_masks: ClassVar[None] = None  # type: ignore[assignment]

    kind = Unmasked if isinstance(actions, spaces.Box) else Toy
    vec = HybridVecEnv if isinstance(actions, spaces.Dict) else DummyVecEnv
    env = vec([lambda: kind(actions, observations)] * n)
    if kind is Unmasked:
        env.has_attr = lambda attr_name: attr_name != "action_masks"  # type: ignore[method-assign]
    return env


def assert_the_same_predictions(model: Any, loaded: Any, actions: spaces.Space[Any], memory: int) -> None:
    """Check that two models return equal actions within the space, and equal recurrent states if they have any."""
    space, state, other_state = model.observation_space, None, None
    for step in range(5):
        batch = [space.sample() for _ in range(3)]
        joined = (
            {k: np.stack([b[k] for b in batch]) for k in space.spaces}
            if isinstance(space, spaces.Dict)
            else np.stack(batch)
        )
        starts = np.array([step == 0, step in (0, 2), step == 0])
        torch.manual_seed(step)
        first, state = model.predict(joined, state, starts, deterministic=bool(step % 2))
        torch.manual_seed(step)
        second, other_state = loaded.predict(joined, other_state, starts, deterministic=bool(step % 2))
        for key in first if isinstance(first, dict) else [...]:
            np.testing.assert_array_equal(first[key], second[key])
        assert (state is None) == (memory == 0)
        single, _ = model.predict(batch[0])
        assert actions.contains(single) or isinstance(actions, (spaces.Dict, spaces.Discrete))
