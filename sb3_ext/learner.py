"""`Learner`: the part of a training that updates one behavior. It has no player."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stable_baselines3.common.logger import Logger

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.bc import BC
from sb3_ext.curriculum import LessonProgress
from sb3_ext.experience import Trajectories
from sb3_ext.self_play import SelfPlay
from unity_gym.errors import UnityGymError
from unity_gym.specs import Array, BehaviorSpec


class Learner:
    """Learner of one behavior: its model, optimizer, reward signals, opponents and ratings, and lesson progress.

    Its input are the trajectories of samplers, and it publishes weights with a version number (`model.version`).

    :param name: Name of the behavior, without a team.
    :param spec: Specification of the behavior.
    :param model: Model to train.
    :param max_steps: Timesteps of the training.
    :param self_play: Opponents; None without self-play.
    :param deterministic: Whether agents select the most likely actions.
    :param teacher: Name of the behavior that is the teacher; None if there is none.
    """

    def __init__(
        self,
        name: str,
        spec: BehaviorSpec,
        model: UnityAlgorithm,
        max_steps: int,
        self_play: SelfPlay | None = None,
        deterministic: bool = False,
        teacher: str | None = None,
    ) -> None:
        self.spec, self.teacher = spec, teacher
        self.name, self.model, self.max_steps, self.self_play = name, model, max_steps, self_play
        self.deterministic = deterministic
        self.teams: list[str] = []
        """Teams of the behavior that have appeared."""
        self._returns_of_lesson: list[float] = []
        if not hasattr(model, "_logger"):
            model.set_logger(Logger(None, []))
        model.start(spec)
        if self_play is not None:
            self_play.setup(model)

    @property
    def learns(self) -> bool:
        """Whether it has timesteps left."""
        return self.model.num_timesteps < self.max_steps

    @property
    def steps_to_event(self) -> int:
        """Timesteps until the next event: the end, a snapshot or a change of the learning team."""
        steps = self.max_steps - self.model.num_timesteps
        return steps if self.self_play is None else min(steps, self.self_play.steps_to_event)

    def watch(self, trajectories: Trajectories, teacher: Learner) -> None:
        """Store trajectories of the teacher for training.

        :param trajectories: Trajectories of the teacher, with rows that are unique among all samplers.
        """
        assert isinstance(self.model, BC)
        self.model.watch(trajectories, teacher.model.policy)

    def require_teacher(self, teacher: Learner) -> None:
        """Check that the behaviors of teacher and student have the same observations and actions.

        :raises UnityGymError: If they differ.
        """
        try:
            self.model.require_spec(teacher.spec)
        except UnityGymError as error:
            raise UnityGymError(
                f"behaviors.{self.name}.teacher is {teacher.name!r}, which has other observations or actions: {error}. "
                "Give a teacher with the same sensors and actions"
            ) from error

    def take_episodes(self, episodes: Mapping[str, Array]) -> None:
        """Add finished episodes; see `sb3_ext.sampler.Samples`."""
        counts = episodes["is_whole"] & episodes["is_of_lesson"]
        self._returns_of_lesson += (episodes["reward"] + episodes["group_reward"])[counts].tolist()

    @property
    def is_update_due(self) -> bool:
        """Whether there is enough experience for an update."""
        return self.learns and self.model.is_update_due

    def update(self) -> None:
        """Update the model; with `threaded`, start to."""
        self.model._update_current_progress_remaining(self.model.num_timesteps, self.max_steps)
        self.model.train()

    def pop_records(self) -> dict[str, float]:
        """Return the records of updates since the last call."""
        logger = self.model.logger
        records = {name: float(value) for name, value in logger.name_to_value.items()}
        logger.dump(self.model.num_timesteps)
        return records

    def pop_lesson_progress(self) -> LessonProgress:
        """Return the progress for lessons since the last call."""
        returns, self._returns_of_lesson = self._returns_of_lesson, []
        elo = None if self.self_play is None else self.self_play.elo
        progress = self.model.num_timesteps / self.max_steps if self.max_steps else 1.0  # 0: no training
        return LessonProgress(returns, progress, elo)

    def start_lesson(self, reset: bool) -> None:
        """Note that lessons have changed.

        :param reset: Whether the scene was reset for them.
        """
        self._returns_of_lesson = []
        if reset:
            self.model.discard_experience()

    def rate(self, score: float, opponents: Sequence[tuple[Learner, int | None, int | None]]) -> None:
        """Update the ratings with the result of a match from a sampler.

        :param score: Score of the behavior: 1, ½ or 0.
        :param opponents: Learner of each rival, with step and file of the opponent; see `SelfPlay.opponent`.
        """
        assert self.self_play is not None
        found = [other.self_play.opponent(step, file) for other, step, file in opponents if other.self_play is not None]
        self.self_play.rate(score, [opponent for opponent in found if opponent is not None])
