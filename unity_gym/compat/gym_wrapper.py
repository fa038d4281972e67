"""`UnityToGymWrapper`: one agent with the four-value `step` of Gym before version 0.26."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from unity_gym.compat.environment import BaseEnv, channel_last
from unity_gym.errors import UnityGymError
from unity_gym.spaces import action_space
from unity_gym.specs import ActionTuple, Array, DecisionSteps, TerminalSteps

_logger = logging.getLogger(__name__)


class UnityGymException(UnityGymError):  # noqa: N818
    """Environment that does not fit the wrapper, or a call of `step` after the end of an episode."""


class ActionFlattener:
    """One `Discrete` action for each combination of branch indices.

    :param branched_action_space: Sizes of the branches.
    """

    def __init__(self, branched_action_space: Sequence[int]) -> None:
        self.action_lookup = dict(enumerate(map(list, itertools.product(*map(range, branched_action_space)))))
        self.action_space = spaces.Discrete(len(self.action_lookup))

    def lookup_action(self, action: SupportsFloat) -> list[int]:
        """Return the branch indices of a flat action."""
        return self.action_lookup[int(action)]  # type: ignore[call-overload]


class UnityToGymWrapper(gym.Env[Any, Any]):
    """Gym environment, as of versions before 0.26, of a scene with one agent.

    `reset()` returns an observation and `step()` returns (observation, reward, done, {"step": steps}). Truncations and
    terminations are both `done`; `info["step"].interrupted` distinguishes them. `gymnasium.make("Unity-v0",
    file_name=...)` returns five values and action masks instead.

    :param unity_env: Environment to wrap; it is closed with the wrapper.
    :param uint8_visual: Whether to return images as uint8 in [0, 255] instead of float32 in [0, 1].
    :param flatten_branched: Whether to merge several discrete branches into one `Discrete` space.
    :param allow_multiple_obs: Whether to return a list of all images, followed by the concatenated vectors. False
        returns the first image, or the concatenated vectors if there is none.
    :param action_space_seed: Seed of the action space's sampling.
    :raises UnityGymException: If there is not exactly one behavior with one agent, or its actions are hybrid.
    """

    metadata = {"render_modes": ["rgb_array"], "render.modes": ["rgb_array"]}  # noqa: RUF012
    reward_range = (-float("inf"), float("inf"))
    _channel_last = False

    def __init__(
        self,
        unity_env: BaseEnv,
        uint8_visual: bool = False,
        flatten_branched: bool = False,
        allow_multiple_obs: bool = False,
        action_space_seed: int | None = None,
    ) -> None:
        self._env = unity_env
        if not unity_env.behavior_specs:
            unity_env.step()  # Unity's wrapper also resets a new environment twice, which decides its random numbers
        unity_env.reset()
        if len(unity_env.behavior_specs) != 1:
            raise UnityGymException(
                f"the scene must have one behavior, got {sorted(unity_env.behavior_specs)}: use UnityParallelEnv"
            )
        self.name = next(iter(unity_env.behavior_specs))
        self.group_spec = unity_env.behavior_specs[self.name]
        self.uint8_visual = uint8_visual
        self.visual_obs: Array | None = None
        self.game_over = False
        self._allow_multiple_obs = allow_multiple_obs
        self._flattener: ActionFlattener | None = None
        self._require_one_agent(unity_env.get_steps(self.name)[0])
        self.action_space = self._action_space(flatten_branched)
        if action_space_seed is not None:
            self.action_space.seed(action_space_seed)
        self.observation_space = self._observation_space()

    def _action_space(self, flatten_branched: bool) -> spaces.Space[Any]:
        actions = self.group_spec.action_spec
        if actions.continuous_size and actions.discrete_size:
            raise UnityGymException(
                f"the actions of {self.name} are continuous and discrete: use gymnasium.make('Unity-v0', ...)"
            )
        self.action_size = actions.continuous_size or actions.discrete_size
        if flatten_branched and actions.discrete_size > 1:
            self._flattener = ActionFlattener(actions.discrete_branches)
            return self._flattener.action_space
        return action_space(actions)

    def _observation_space(self) -> spaces.Space[Any]:
        parts: list[spaces.Space[Any]] = []
        for part in self._parts(self._env.get_steps(self.name)[0]):
            if part.ndim == 3:
                high, dtype = (255, np.uint8) if self.uint8_visual else (1, np.float32)
                parts.append(spaces.Box(0, high, part.shape, dtype))
            else:
                parts.append(spaces.Box(-np.inf, np.inf, part.shape, np.float32))
        if self._allow_multiple_obs:
            return spaces.Tuple(parts)
        if len(parts) > 1:
            _logger.warning("%s has several observations; pass allow_multiple_obs=True to get all of them", self.name)
        return parts[0]

    def reset(self, **keywords: Any) -> Any:
        """Start a new episode and return its first observation.

        :param keywords: None are accepted; libraries for Gymnasium pass `seed`.
        :raises UnityGymException: If the agent has another behavior now, there are several, or keywords are passed.
        """
        if keywords:
            raise UnityGymException(
                f"reset() must be called without arguments, got {', '.join(keywords)}: UnityToGymWrapper has the "
                "interface of Gym before version 0.26, and the caller needs Gymnasium's, as Stable-Baselines3 from "
                "version 2 on. Replace the wrapper by gymnasium.make('Unity-v0', file_name=...), or "
                "gymnasium.make('Unity-3DBall-v0') for an embedded scene"
            )
        self._env.reset()
        decisions = self._env.get_steps(self.name)[0]
        self._require_one_agent(decisions)
        if not len(decisions):
            raise UnityGymException(
                f"the scene must keep the behavior {self.name}, got {sorted(self._env.behavior_specs)}: use "
                "gymnasium.make('Unity-v0', ...), which follows an agent from one behavior to another"
            )
        self.game_over = False
        return self._result(decisions)[0]

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:  # type: ignore[override]
        """Act, and return observation, reward, done and info.

        :raises UnityGymException: If the episode has ended.
        """
        if self.game_over:
            raise UnityGymException("step() was called after done=True: call reset() first")
        if self._flattener is not None:
            action = self._flattener.lookup_action(action)
        row = np.asarray(action).reshape(1, self.action_size)
        continuous = self.group_spec.action_spec.is_continuous()
        self._env.set_actions(self.name, ActionTuple(row, None) if continuous else ActionTuple(None, row))
        self._env.step()
        decisions, terminals = self._env.get_steps(self.name)
        while not len(decisions) and not len(terminals):  # a message may contain only side channels
            self._env.step()
            decisions, terminals = self._env.get_steps(self.name)
        self._require_one_agent(decisions)
        self._require_one_agent(terminals)
        self.game_over = bool(len(terminals))
        return self._result(terminals if self.game_over else decisions)

    def _result(self, steps: DecisionSteps | TerminalSteps) -> tuple[Any, float, bool, dict[str, Any]]:
        parts = self._parts(steps)
        self.visual_obs = parts[0] if parts[0].ndim == 3 else None
        observation = parts if self._allow_multiple_obs else parts[0]
        return observation, steps.reward[0], isinstance(steps, TerminalSteps), {"step": steps}

    def _parts(self, steps: DecisionSteps | TerminalSteps) -> list[Array]:
        """Return the images of the first agent, then its vectors in one array."""
        images = [self._image(array) for array in steps.obs if array.ndim == 4]
        vectors = [array[0] for array in steps.obs if array.ndim == 2]
        return images + ([np.concatenate(vectors)] if vectors else [])

    def _image(self, images: Array) -> Array:
        image: Array = (channel_last(images) if self._channel_last else images)[0]
        return (255 * image).astype(np.uint8) if self.uint8_visual else image

    def render(self, mode: str = "rgb_array") -> Array | None:  # noqa: ARG002
        """Return the newest image observation; None if there is none."""
        return self.visual_obs

    def seed(self, seed: Any = None) -> None:  # noqa: ARG002
        """Warn that a running environment accepts no seed; pass it to `UnityEnvironment`."""
        _logger.warning("seed() has no effect on %s: pass seed=... to UnityEnvironment", self.name)

    def close(self) -> None:
        """Close the wrapped environment."""
        self._env.close()

    def _require_one_agent(self, steps: DecisionSteps | TerminalSteps) -> None:
        if len(steps) > 1:
            raise UnityGymException(
                f"the scene must have one agent, got {len(steps)}: use UnityParallelEnv, or run "
                "an embedded scene with python -m unity_gym.compat --areas 1"
            )


class ChannelLastGymWrapper(UnityToGymWrapper):
    """`UnityToGymWrapper` of the package `gym_unity`, whose images are height x width x channels."""

    _channel_last = True
