"""The only agent of a scene as a `gymnasium.Env`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
from typing_extensions import Unpack

from unity_gym.envs.rendering import open_window, render_frames, rendering_metadata, returns_image
from unity_gym.errors import NotReadyError, UnityGymError
from unity_gym.options import PlayerKeywords, PlayerOptions, takes_player_options
from unity_gym.pool import PlayerPool
from unity_gym.slots import AgentTable
from unity_gym.spaces import ObservationLayout, action_space, require_form, single_action_tuple
from unity_gym.specs import ActionTuple, Array


class UnitySingleAgentEnv(gym.Env[Any, Any]):
    """Gymnasium environment of one agent of one player, from decision to decision.

    `step` returns the observation of the next decision, or the last state of the episode when it ended. A step limit of
    the scene is a truncation, any other end a termination. After an end Unity has already started the next episode, and
    `reset()` continues with it. In mid-episode, with a seed or options, or with messages that are queued on side
    channels, `reset` sends RESET. An agent may change its behavior between episodes, as in WallJump, if both behaviors
    have the same observations and actions.

    - `info["action_mask"]`: bool (sum of the branch sizes,), True = allowed; with discrete actions
    - `info["group_reward"]`: the group's reward; for agents in groups
    - `info["stats"]`: the statistics that the scene sent with this step, by name, see `PlayerPool.pop_stats`

    :param observations: Form of the observations: "split" (rank-1 sensors concatenated) or "sensors" (one key per
        sensor); see `ObservationLayout`.
    :param behavior: Names of the behaviors that the agent may have, one or several, each with or without its "?team=…".
        By default all, which must have the same observations and actions.
    :param render_mode: Mode of `render()`. "rgb_array": an image of the present state, uint8 (height, width, 3), drawn
        by the embedded player; of a build, the image of the agent's first camera. "human": a window shows it.
    :param options: Player options, see `PlayerOptions`; `num_areas` is 1 by default.
    :raises UnityGymError: If the scene has more than one agent or behavior.
    """

    metadata = rendering_metadata()

    @takes_player_options
    def __init__(
        self,
        *,
        observations: str = "split",
        behavior: str | Sequence[str] | None = None,
        render_mode: str | None = None,
        **options: Unpack[PlayerKeywords],
    ) -> None:
        require_form(observations)
        settings = PlayerOptions(**{"num_areas": 1, **options})  # type: ignore[arg-type]
        self.metadata = rendering_metadata()  # not shared between environments
        self.render_mode = render_mode
        with ExitStack() as on_error:
            self._window = open_window(render_mode, str(settings.file_name or "Unity"))
            if self._window is not None:
                on_error.callback(self._window.close)
            self._pool = PlayerPool(
                settings, behavior=behavior, areas_to_draw=int(render_mode is not None), share_table=True
            )
            on_error.callback(self._pool.close)
            self._pool.reset()
            self._require_one_agent()
            self._name, self._table = self._pool.only_table()
            self._behavior = self._name
            spec = self._table.spec
            self._layout = ObservationLayout(spec, observations, settings.visual_dtype)
            self.observation_space = self._layout.space
            self.action_space = action_space(spec.action_spec)
            self._actions = spec.action_spec.empty_action(1)
            self._in_episode = False
            if render_mode is not None:
                self._image()  # raises if there is none
            on_error.pop_all()

    def _require_one_agent(self) -> None:
        agents = sum(len(table) for table in self._pool.tables.values())
        if agents != 1 or self._pool.other_behaviors:
            raise UnityGymError(
                f"a gymnasium.Env has one agent; this scene shows {agents} of {self._pool.controlled_behaviors}"
                + "".join(f" and those of {name}" for name in self._pool.other_behaviors)
                + ". Use gymnasium.make_vec or sb3_ext.UnityVecEnv for all agents of one behavior, "
                "unity_gym.parallel_env for all agents, name a behavior with one agent in behavior=..., or build a "
                "scene with one area"
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the class docstring defines when RESET is sent.

        :param seed: Seed with which the scene starts from scratch.
        :param options: Environment parameters by name, sent before the reset.
        """
        super().reset(seed=seed)
        self._pool.start_episodes(seed, options, all_have_ended=not self._in_episode)
        self._in_episode = True
        self._show()
        return self._layout.select(self._table.observations, 0), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act, and advance to the agent's next decision or the end of its episode.

        :raises NotReadyError: If no episode is running.
        :raises ActionError: If the action does not fit the action space.
        """
        if not self._in_episode:
            raise NotReadyError("step() without a running episode: call reset() first")
        table = self._table
        self._actions = single_action_tuple(table.spec.action_spec, action)
        self._pool.step({self._name: self._actions}, autoreset=False)
        self._require_same_agent()
        terminated, truncated = bool(table.terminated[0]), bool(table.truncated[0])
        ended = terminated or truncated
        self._in_episode = not ended
        self._show()
        observation = self._layout.select(table.final_observations if ended else table.observations, 0)
        return observation, float(table.reward[0] + table.group_reward[0]), terminated, truncated, self._info()

    @property
    def behavior_name(self) -> str:
        """The name of the agent's behavior, which may differ between episodes."""
        self._behavior = self._pool.behavior_of(0) or self._behavior
        return self._behavior

    @property
    def table(self) -> AgentTable:
        """The agent's row as the last `reset` or `step` left it, with an array per sensor and its specification."""
        return self._table

    @property
    def last_actions(self) -> ActionTuple:
        """Action that the last step received, behind all wrappers; zero before the first step."""
        return self._actions

    @property
    def layout(self) -> ObservationLayout:
        """Form of the observations."""
        return self._layout

    def _require_same_agent(self) -> None:
        if len(self._table) != 1:
            raise UnityGymError(
                f"behavior {self._behavior!r} now shows {len(self._table)} agents; a gymnasium.Env has one: use "
                "sb3_ext.UnityVecEnv for a scene whose number of agents changes"
            )

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        if self._table.spec.action_spec.discrete_size:
            info["action_mask"] = self.action_masks()
        if self._table.group_id[0] or self._table.group_reward[0]:  # it may have left the group that gives the reward
            info["group_reward"] = float(self._table.group_reward[0])
        if stats := self._pool.pop_stats():
            info["stats"] = stats
        return info

    def action_masks(self) -> Array:
        """Return a bool array (sum of the branch sizes,), True = allowed.

        MaskablePPO of sb3-contrib calls this method.
        """
        mask: Array = self._table.action_mask[0].copy()
        return mask

    def render(self) -> Array | None:
        """Return the current frame, uint8 (height, width, 3), with `render_mode="rgb_array"`.

        None with any other mode, and a warning without one.

        After a step that ended the episode, the frame shows its last state. With "human", `reset` and `step` have shown
        it already.
        """
        return self._image() if returns_image(self.render_mode) else None

    def _image(self) -> Array:
        ended = not (self._in_episode or self._pool.is_at_start)
        return render_frames(self._pool, self._table, ended)[0]

    def _show(self) -> None:
        if self._window is not None:
            self._window.show(self._image())

    def close(self) -> None:
        """Close the player. Can be called any number of times."""
        self._pool.close()
        if self._window is not None:
            self._window.close()
