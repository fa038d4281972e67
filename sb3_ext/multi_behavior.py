"""`MultiBehaviorTraining`: train several behaviors of a scene together, in a script."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import Unpack

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.bc import BC
from sb3_ext.fixed import FixedModel
from sb3_ext.model_training import ModelTraining
from sb3_ext.placement import LocalSampler
from sb3_ext.player_copies import PlayerCopies
from sb3_ext.sampler import Sampler, plain_name
from sb3_ext.self_play import SelfPlay
from sb3_ext.workers import Workers
from unity_gym.errors import InvalidValueError
from unity_gym.options import PlayerKeywords, PlayerOptions, takes_player_options
from unity_gym.pool import PlayerPool
from unity_gym.registration import registered_options
from unity_gym.specs import BehaviorSpec


class MultiBehaviorTraining:
    """Players of a scene, and the training of all its behaviors with one model each.

        training = MultiBehaviorTraining("Unity-StrikersVsGoalie-v0", num_areas=8)
        models = {name: POCA.from_spec("UnityPolicy", spec) for name, spec in training.behavior_specs.items()}
        training.learn(models, 1_000_000, self_play={name: SelfPlay() for name in models})
        training.close()

    Behaviors without self-play learn at the same time. Of those with self-play, one team learns at a time, and
    opponents play for the others. The logger of a model receives `rollout/ep_rew_mean`, `rollout/ep_len_mean`,
    `time/total_timesteps`, `Self-play/ELO` and the records of the model, once per update.

    :param env_id: Registered id, such as "Unity-StrikersVsGoalie-v0" or, with `file_name`, "Unity-v0".
    :param n_instances: Number of players to launch.
    :param options: Options of `unity_gym.options.PlayerOptions`.
    :raises InvalidValueError: If the id or a value is invalid.
    :raises UnityGymError: If a player cannot be launched.
    """

    @takes_player_options
    def __init__(self, env_id: str = "Unity-v0", n_instances: int = 1, **options: Unpack[PlayerKeywords]) -> None:
        self._options, self._n_instances = PlayerOptions(**{**registered_options(env_id), **options}), n_instances
        self._pool = PlayerPool(self._options, n_instances)
        try:
            self._pool.reset()
        except BaseException:
            self._pool.close()
            raise

    @property
    def behavior_specs(self) -> dict[str, BehaviorSpec]:
        """Specification of each behavior that has appeared, by its name without a team."""
        return {plain_name(name): table.spec for name, table in self._pool.tables.items()}

    def learn(
        self,
        models: Mapping[str, UnityAlgorithm],
        total_timesteps: int,
        self_play: Mapping[str, SelfPlay] | None = None,
        reset_num_timesteps: bool = True,
        workers: Workers | None = None,
        teachers: Mapping[str, str] | None = None,
    ) -> None:
        """Train until each behavior has completed its timesteps. The scene is reset first.

        :param models: Models by name of the behavior, without a team. They keep their loggers.
        :param total_timesteps: Timesteps of each behavior.
        :param self_play: Opponents by behavior, only for behaviors with self-play.
        :param reset_num_timesteps: Count from 0, instead of continuing from the timesteps of each model.
        :param workers: Processes in which the agents act, with separate players; None for the players of this object.
        :param teachers: By behavior with a `BC` model, the behavior whose decisions it learns from. A `FixedModel` as
            the teacher acts without learning.
        :raises InvalidValueError: If a behavior has no model, a behavior in `self_play` or `teachers` does not exist, a
            student has no `BC` model, or a `BC` model has neither demonstrations nor a teacher.
        :raises UnityGymError: If a model is incompatible with the behavior spec, or a player fails.
        """
        self_play, teachers = self_play or {}, teachers or {}
        for option, names in (("self_play", {*self_play}), ("teachers", {*teachers, *teachers.values()})):
            for unknown in names - models.keys():
                raise InvalidValueError(f"{option} must have names of models, {sorted(models)}, got {unknown!r}")
        _require_sources(models, teachers)
        limits = {}
        for name, model in models.items():
            if reset_num_timesteps:
                model.num_timesteps = 0
            limits[name] = 0
            if not isinstance(model, FixedModel):
                limits[name] = model.num_timesteps + total_timesteps
                model.warn_of_schedule(total_timesteps, continues=not reset_num_timesteps)
        is_asynchronous = any(model.threaded for model in models.values())
        if workers is not None:
            copies = PlayerCopies(self._options, self._n_instances)
            with workers.samplers(copies, is_asynchronous) as samplers:
                ModelTraining(samplers, models, limits, self_play, teachers).run()
            return
        self._pool.start_episodes()
        sampler = Sampler(self._pool, is_asynchronous=is_asynchronous)
        ModelTraining([LocalSampler(sampler)], models, limits, self_play, teachers).run()

    def close(self) -> None:
        """End the players."""
        self._pool.close()

    def __enter__(self) -> MultiBehaviorTraining:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the players."""
        self.close()


def _require_sources(models: Mapping[str, UnityAlgorithm], teachers: Mapping[str, str]) -> None:
    """Check that students have `BC` models, and that each `BC` model has demonstrations or another behavior as teacher.

    :raises InvalidValueError: If not.
    """
    for student, teacher in teachers.items():
        if student == teacher or not isinstance(models[student], BC):
            raise InvalidValueError(
                f"teachers must map behaviors with a BC model to other behaviors, got {student!r}: {teacher!r}"
            )
    for name, model in models.items():
        if isinstance(model, BC) and (model.demonstrations is None) != (name in teachers):
            raise InvalidValueError(
                f"the BC model of {name!r} must have demonstrations or a behavior in teachers, got "
                f"{'both' if name in teachers else 'neither'}"
            )
