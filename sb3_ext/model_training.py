"""`ModelTraining`: the joint training of models that a script has built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.utils import safe_mean

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.joint import JointTraining
from sb3_ext.learner import Learner
from sb3_ext.placement import PlacedSampler
from sb3_ext.sampler import Samples
from sb3_ext.self_play import SelfPlay
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import BehaviorSpec


class ModelTraining(JointTraining):
    """Joint training of models, whose loggers receive the records that `MultiBehaviorTraining` describes.

    :param samplers: Samplers of the agents.
    :param models: Models by behavior.
    :param limits: Timesteps to train for, by behavior.
    :param self_play: Opponents by behavior, only for behaviors with self-play.
    :param teachers: By behavior, the behavior whose decisions it learns from.
    :raises InvalidValueError: If a behavior has no model.
    :raises UnityGymError: If a model is incompatible with the behavior spec.
    """

    def __init__(
        self,
        samplers: Sequence[PlacedSampler],
        models: Mapping[str, UnityAlgorithm],
        limits: Mapping[str, int],
        self_play: Mapping[str, SelfPlay],
        teachers: Mapping[str, str],
    ) -> None:
        super().__init__(samplers)
        self._models, self._limits, self._self_play, self._teachers = models, limits, self_play, teachers
        self._episodes: dict[str, dict[str, list[Any]]] = {name: {"return": [], "length": []} for name in models}
        self._is_stopped = False
        self._start()
        for sampler in samplers:
            sampler.start_matches()

    def run(self) -> None:
        """Train until each behavior has completed its timesteps, or an error or Ctrl-C ends the training."""
        try:
            while self._learns and not self._is_stopped:
                self._step()
                self._change_team()
            if not self._is_stopped:
                self._learn_the_last()
        finally:
            for model in self._models.values():
                model.end_learning()

    def _build_learner(self, name: str, spec: BehaviorSpec) -> Learner:
        if name not in self._models:
            raise InvalidValueError(f"the behavior {name!r} has no model; there are models of {sorted(self._models)}")
        try:
            model, limit, self_play = self._models[name], self._limits[name], self._self_play.get(name)
            return Learner(name, spec, model, limit, self_play, teacher=self._teachers.get(name))
        except UnityGymError as error:
            raise UnityGymError(f"the model of behavior {name!r}: {error}") from error

    def _take_statistics(self, samples: Samples) -> None:
        for name, episodes in samples.episodes.items():
            whole = episodes["is_whole"]
            self._episodes[name]["return"] += (episodes["reward"] + episodes["group_reward"])[whole].tolist()
            self._episodes[name]["length"] += episodes["length"][whole].tolist()

    def _take_update(self, learner: Learner) -> None:
        logger, episodes = learner.model.logger, self._episodes[learner.name]
        if episodes["return"]:
            logger.record("rollout/ep_rew_mean", safe_mean(episodes["return"]))
            logger.record("rollout/ep_len_mean", float(np.mean(episodes["length"])))
        if learner.self_play is not None:
            logger.record("Self-play/ELO", learner.self_play.elo)
        logger.record("time/total_timesteps", learner.model.num_timesteps)
        self._episodes[learner.name] = {"return": [], "length": []}
        learner.pop_records()
