"""`SelfPlayVecEnv` and `SelfPlayCallback`: self-play in a script."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.player_copies import PlayerCopies
from sb3_ext.self_play import FixedOpponents, Matchmaker, SelfPlay, number_and_name
from sb3_ext.vec_env import UnityVecEnv
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.slots import AgentTable
from unity_gym.specs import ActionTuple, Array


class SelfPlayVecEnv(UnityVecEnv):
    """`UnityVecEnv` of the learning team, with opponents for the other teams: past policies of the model, or files.

    The learning team changes every `team_change` steps. The model is an algorithm of this package and learns with a
    `SelfPlayCallback`:

        env = SelfPlayVecEnv("Unity-SoccerTwos-v0", SelfPlay(save_steps=50_000, window=10))
        POCA("UnityPolicy", env).learn(5_000_000, callback=SelfPlayCallback())

    Before `learn`, no policy acts for the other teams, and a step raises an error.

    :param env_id: Registered id.
    :param self_play: Opponents and their parameters (default: `SelfPlay()`).
    :param n_instances: Number of players to launch.
    :param behavior: Name of the learning behavior, if the scene has several.
    :param opponents: Paths of the `.onnx` files that act for each other behavior of the scene, by its name.
    :param options: Options of `UnityVecEnv`.
    :raises InvalidValueError: If the behavior does not exist.
    :raises UnityGymError: If `UnityVecEnv` raises, the behavior has no opponents, or another one has no policy.
    """

    _sees_all_behaviors: ClassVar[bool] = True

    def __init__(
        self,
        env_id: str = "Unity-v0",
        self_play: SelfPlay | None = None,
        n_instances: int = 1,
        *,
        behavior: str | None = None,
        opponents: Mapping[str, Sequence[str | os.PathLike[str]]] | None = None,
        **options: Any,
    ) -> None:
        self.self_play = SelfPlay() if self_play is None else self_play
        self.matchmaker = Matchmaker()
        self._opponents = dict(opponents or {})
        super().__init__(env_id, n_instances, behavior=behavior, **options)

    def _choose(self, behavior: str | Sequence[str] | None) -> tuple[str, AgentTable]:
        tables = self._pool.tables
        behaviors = sorted({name.partition("?")[0] for name in tables})
        if behavior is None and len(behaviors) == 1:
            (behavior,) = behaviors
        if behavior not in behaviors:
            raise InvalidValueError(f"behavior must be one of {behaviors}, the one that learns, got {behavior!r}")
        others = {name: name.partition("?")[0] for name in tables if name.partition("?")[0] != behavior}
        self._teams = sorted((name for name in tables if name not in others), key=number_and_name)
        if self._opponents.keys() != set(others.values()):
            raise UnityGymError(
                f"opponents has files for {sorted(self._opponents)}, and the other behaviors of the scene are "
                f"{sorted(set(others.values()))}: name the .onnx files that play for each of them"
            )
        if len(tables) < 2:
            raise UnityGymError(
                f"{behavior} has no opponents: {self._teams[0]} is the only team of the scene. Use UnityVecEnv, or "
                "give the agents team ids in Unity"
            )
        swap_steps, seed = self.self_play.swap_steps, self.self_play.seed
        self._plays = {
            name: FixedOpponents(
                self._opponents[plain], tables[name].spec, swap_steps, None if seed is None else seed + number
            )
            for number, (name, plain) in enumerate(sorted(others.items()), 1)
        }
        for name in self._teams:
            tables[name].reserve(max(len(tables[team]) for team in self._teams))
            tables[name].is_fixed = True
        return self._teams[0], tables[self._teams[0]]

    def start(self, model: UnityAlgorithm) -> None:
        """Start self-play with the past policies of a model; the callback calls this method."""
        self.self_play.setup(model)
        self.matchmaker = Matchmaker()
        for name, table in self._pool.tables.items():
            self.matchmaker.enter(name, table, self._plays.get(name, self.self_play))
        self.matchmaker.learn(self.behavior)
        self.matchmaker.store_outcomes()

    def copies(self) -> PlayerCopies:
        """Raise an error, as the opponents of this environment act in the process of the script.

        :raises UnityGymError: Always.
        """
        raise UnityGymError(
            "the opponents of a SelfPlayVecEnv act in the process of the script: with workers, pass the model and "
            "self_play to MultiBehaviorTraining.learn"
        )

    def reset(self) -> VecEnvObs:
        """Reset the environment; see `UnityVecEnv.reset`."""
        observations = super().reset()
        self.matchmaker.store_outcomes()
        return observations

    def _advance(
        self, advance: Callable[[Mapping[str, ActionTuple]], None], actions: ActionTuple
    ) -> tuple[Array, Array, list[dict[str, Any]]]:
        if not self.matchmaker.learning:
            raise UnityGymError(
                "no policy acts for the other teams yet: let a model learn with callback=SelfPlayCallback() first"
            )
        others = self.matchmaker.select_actions(without=[self.behavior])
        results = super()._advance(lambda actions: advance({**actions, **others}), actions)
        self.matchmaker.store_outcomes()
        return results

    def change_team(self, model: UnityAlgorithm) -> None:
        """Let the next team of the behavior learn, if there is one; the running matches of all teams are cut."""
        team = self.matchmaker.following(self._teams)
        if team is None:
            return
        self._pool.reset()
        self._pool.require_rows(self.behavior, self.num_envs)
        model.store_outcomes(self._table)
        self.behavior, self._table = team, self._pool.tables[team]
        self._pool.require_rows(self.behavior, self.num_envs)
        self._returns.fill(0)
        self._lengths.fill(0)
        self.matchmaker.learn(team)
        self.matchmaker.store_outcomes()


class SelfPlayCallback(BaseCallback):
    """Callback with which a model of this package learns on a `SelfPlayVecEnv`; it logs `Self-play/ELO`.

    :raises UnityGymError: If the environment is not an unwrapped `SelfPlayVecEnv`, or the model is of another package.
    """

    _env: SelfPlayVecEnv

    def _on_training_start(self) -> None:
        if not isinstance(self.training_env, SelfPlayVecEnv) or not isinstance(self.model, UnityAlgorithm):
            raise UnityGymError(
                "SelfPlayCallback needs PPO, POCA or SAC of sb3_ext on a SelfPlayVecEnv without wrappers, got "
                f"{type(self.model).__name__} on {type(self.training_env).__name__}"
            )
        self._env = self.training_env
        self._env.start(self.model)

    def _on_step(self) -> bool:
        assert isinstance(self.model, UnityAlgorithm)
        self._env.self_play.save_if_due()
        if self._env.self_play.poll_team_change():
            self._env.change_team(self.model)
        self.logger.record("Self-play/ELO", self._env.self_play.elo)
        return True
