"""Environment parameters in training: constants, samplers and curricula."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from sb3_ext.runs import Run
from sb3_ext.settings import (
    CompletionCriteria,
    Constant,
    Curriculum,
    Gaussian,
    Lesson,
    ParameterSampler,
    RunSettings,
    Uniform,
)
from unity_gym.errors import UnityGymError
from unity_gym.pool import PlayerPool
from unity_gym.side_channels import EnvironmentParametersChannel

_NEWEST = 0.75  # weight of the latest mean return in a smoothed one, as in Unity's trainer


class LessonProgress(NamedTuple):
    """Progress of the agents of a behavior, for completion criteria.

    - `returns`: returns of the episodes that ended since the last call and started in the running lessons, with group
      rewards; an episode in a group counts when the group ends, not when one of its members does
    - `progress`: fraction of the behavior's `max_steps` that is done
    - `elo`: rating of a behavior with self-play
    """

    returns: Sequence[float]
    progress: float
    elo: float | None = None


class ParameterValue(NamedTuple):
    """Value or sampler of an environment parameter; player i samples with `seed` + i."""

    name: str
    sampler: ParameterSampler
    seed: int


def send_parameter(channel: EnvironmentParametersChannel, value: ParameterValue, player: int) -> None:
    """Send a parameter to a player, with its next step.

    :param player: Number of the player among all players of the run.
    """
    name, sampler, seed = value.name, value.sampler, (value.seed + player) & 0x7FFFFFFF
    if isinstance(sampler, Constant):
        channel.set_float_parameter(name, sampler.sampler_parameters.value)
    elif isinstance(sampler, Uniform):
        low, high = sampler.sampler_parameters.min_value, sampler.sampler_parameters.max_value
        channel.set_uniform_sampler_parameters(name, low, high, seed)
    elif isinstance(sampler, Gaussian):
        mean, st_dev = sampler.sampler_parameters.mean, sampler.sampler_parameters.st_dev
        channel.set_gaussian_sampler_parameters(name, mean, st_dev, seed)
    else:
        intervals = [(low, high) for low, high in sampler.sampler_parameters.intervals]
        channel.set_multirangeuniform_sampler_parameters(name, intervals, seed)


class ParameterCurriculum:
    """One environment parameter with its lessons.

    A lesson is complete when at least `min_lesson_length` episodes have ended in it and its measure is above its
    threshold. The measure is the progress, the Elo rating, or the mean return of the latest episodes of the lesson: at
    most as many as the largest `min_lesson_length` of all lessons of the behavior, as in Unity's trainer, and at least
    one. With `signal_smoothing`, the measure m is updated once per episode from the mean return, m ← m/4 + 3/4 mean; it
    starts with the first mean of a lesson. The last lesson never ends.

    :param name: Name of the parameter.
    :param lessons: Lessons in order, at least one.
    :param status: State of the lessons in `training_status.json`, which is updated in place.
    :param others: Lessons of the run's other parameters; these ones may be among them.
    :raises UnityGymError: If the lesson in `status` does not exist.
    """

    def __init__(
        self,
        name: str,
        lessons: Sequence[Lesson],
        status: dict[str, Any] | None = None,
        others: Sequence[Lesson] = (),
    ) -> None:
        self.name, self._lessons = name, lessons
        self._windows: dict[str, int] = {}  # by behavior
        for criteria in (lesson.completion_criteria for lesson in (*lessons, *others)):
            if criteria is not None:
                longest = self._windows.get(criteria.behavior, 1)
                self._windows[criteria.behavior] = max(longest, criteria.min_lesson_length)
        self._status = {} if status is None else status
        number = self._status.setdefault("lesson_num", 0)
        if number not in range(len(lessons)):
            raise UnityGymError(
                f"the run is in lesson {number!r} of environment_parameters.{name}, which has {len(lessons)} in the "
                "settings, counted from 0: give it the lessons that it had, or start a new run with --initialize-from"
            )
        self.reset()
        self._recent.extend(self._status.get("recent", []))
        self._episodes = self._status.get("episodes", 0)
        self._measured = self._status.get("measured")

    def report(self) -> None:
        """Report the variables of the lesson's completion to `training_status.json`."""
        self._status.update(recent=list(self._recent), episodes=self._episodes, measured=self._measured)

    @property
    def number(self) -> int:
        """Index of the current lesson, from 0."""
        return int(self._status["lesson_num"])

    @property
    def lesson(self) -> Lesson:
        """Current lesson."""
        return self._lessons[self.number]

    @property
    def criteria(self) -> CompletionCriteria | None:
        """Completion criteria of the current lesson; None for the last."""
        return self.lesson.completion_criteria if self.number + 1 < len(self._lessons) else None

    @property
    def may_end_with_episode(self) -> bool:
        """Whether the end of an episode may complete the current lesson, not only progress."""
        criteria = self.criteria
        return criteria is not None and (criteria.measure != "progress" or self._episodes < criteria.min_lesson_length)

    @property
    def line(self) -> str:
        """Log line about the current lesson."""
        return f"Lesson {self.number} of {self.name}: {self.lesson.name}"

    _measured: float | None

    def reset(self) -> None:
        """Discard the episodes that have ended."""
        window = 1 if self.criteria is None else self._windows[self.criteria.behavior]
        self._recent: deque[float] = deque(maxlen=window)
        self._episodes = 0
        self._measured = None

    def is_complete(self, learned: Mapping[str, LessonProgress]) -> bool:
        """Return whether the current lesson is complete, given the progress since the last call, by behavior."""
        criteria = self.criteria
        if criteria is None or criteria.behavior not in learned:
            return False
        returns, progress, elo = learned[criteria.behavior]
        if criteria.measure == "reward":
            return any(self._count(episode, criteria) for episode in returns)
        self._episodes += len(returns)
        measured = progress if criteria.measure == "progress" else elo
        assert measured is not None, "the settings ask for the rating of behaviors with self_play only"
        return self._episodes >= criteria.min_lesson_length and measured > criteria.threshold

    def _count(self, episode: float, criteria: CompletionCriteria) -> bool:
        """Return whether the return of another episode completes the lesson."""
        self._episodes += 1
        self._recent.append(episode)
        if self._episodes < criteria.min_lesson_length:
            return False
        mean = fmean(self._recent)
        if criteria.signal_smoothing and self._measured is not None:
            mean = _NEWEST * mean + (1 - _NEWEST) * self._measured
        self._measured = mean
        return mean > criteria.threshold

    def steps_of_progress(self, behavior: str, max_steps: int) -> int | None:
        """Return the timesteps of a behavior at which its progress completes the lesson; None for other lessons."""
        criteria = self.criteria
        if criteria is None or criteria.behavior != behavior or criteria.measure != "progress":
            return None
        step = int(criteria.threshold * max_steps) + 1
        return step if step / max_steps > criteria.threshold else step + 1  # the product is rounded

    def advance(self) -> bool:
        """Start the next lesson.

        :return: Whether the lesson requires a reset of the scene.
        """
        criteria = self.criteria
        assert criteria is not None, "the last lesson never ends"
        self._status["lesson_num"] = self.number + 1
        self.reset()
        return criteria.require_reset


class EnvironmentParameterManager:
    """Manager of all environment parameters of a run. A parameter without lessons is treated as a single lesson.

    :param settings: Settings of the run, with its seed.
    :param run: Folder of the run, which contains the lessons of a resumed run.
    :raises UnityGymError: If such a lesson does not exist.
    """

    def __init__(self, settings: RunSettings, run: Run) -> None:
        self._curricula: dict[str, ParameterCurriculum] = {}
        self._seeds: dict[str, int] = {}  # seed of each parameter's first lesson; the next ones follow
        self._taught = [
            name for name, given in settings.environment_parameters.items() if isinstance(given, Curriculum)
        ]
        all_lessons = [
            lesson
            for given in settings.environment_parameters.values()
            if isinstance(given, Curriculum)
            for lesson in given.curriculum
        ]
        seed = settings.env_settings.seed
        for name, given in settings.environment_parameters.items():
            if isinstance(given, Curriculum):
                lessons, status = given.curriculum, run.lesson(name)
            else:
                lessons, status = [Lesson(name=name, value=given)], {}
            self._curricula[name] = ParameterCurriculum(name, lessons, status, others=all_lessons)
            self._seeds[name] = seed
            seed += len(lessons)

    @property
    def constants(self) -> dict[str, float]:
        """Parameters that are constant now, with their values."""
        values = {name: curriculum.lesson.value for name, curriculum in self._curricula.items()}
        return {name: value.sampler_parameters.value for name, value in values.items() if isinstance(value, Constant)}

    @property
    def lessons(self) -> dict[str, ParameterCurriculum]:
        """Parameters that have lessons."""
        return {name: self._curricula[name] for name in self._taught}

    @property
    def measured(self) -> set[str]:
        """Behaviors that complete the current lessons."""
        return {criteria.behavior for lesson in self.lessons.values() if (criteria := lesson.criteria) is not None}

    def steps_to_lesson(self, behavior: str, steps: int, max_steps: int) -> int | None:
        """Return the timesteps until the progress of a behavior may complete a lesson; None for never.

        :param steps: Current timesteps of the behavior, of `max_steps`.
        """
        due = [curriculum.steps_of_progress(behavior, max_steps) for curriculum in self.lessons.values()]
        return min((step - steps for step in due if step is not None and step > steps), default=None)

    def report(self) -> None:
        """Report the variables of the lessons' completion to `training_status.json`."""
        for curriculum in self.lessons.values():
            curriculum.report()

    @property
    def stats(self) -> dict[str, float]:
        """Current lessons, by their TensorBoard tags in Unity's trainer."""
        return {f"Environment/Lesson Number/{name}": curriculum.number for name, curriculum in self.lessons.items()}

    def values(self, names: Sequence[str] | None = None) -> list[ParameterValue]:
        """Return the current values or samplers of parameters.

        Without a seed in the settings, all lessons of the run share one.

        :param names: Names of some parameters; by default of all.
        """
        chosen = [self._curricula[name] for name in (self._curricula if names is None else names)]
        values = []
        for curriculum in chosen:
            given = curriculum.lesson.value.sampler_parameters.seed
            first = self._seeds[curriculum.name] + curriculum.number if given < 0 else given
            values.append(ParameterValue(curriculum.name, curriculum.lesson.value, first))
        return values

    def send(self, pool: PlayerPool, names: Sequence[str] | None = None, first_player: int = 0) -> None:
        """Send parameters to the players of a pool, with their next step; see `values`.

        :param first_player: Number of the pool's first player among all players of the run.
        """
        for player, channel in enumerate(pool.environment_parameters, first_player):
            for value in self.values(names):
                send_parameter(channel, value, player)

    def advance(self, learned: Mapping[str, LessonProgress]) -> tuple[list[str], bool]:
        """Start the lessons that follow the complete ones, and count the episodes of all lessons from 0 again.

        :param learned: Progress since the last call, by behavior.
        :return: Names of parameters with a new lesson, and whether any of them requires a reset of the scene.
        """
        changed = [curriculum for curriculum in self._curricula.values() if curriculum.is_complete(learned)]
        resets = [curriculum.advance() for curriculum in changed]
        if changed:
            for curriculum in self._curricula.values():
                curriculum.reset()
        return [curriculum.name for curriculum in changed], any(resets)
