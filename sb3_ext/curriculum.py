"""Environment parameters in training: what each is or is drawn from, and the lessons that change it."""

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

_NEWEST = 0.75  # weight of the newest mean return in a smoothed one, as in Unity's trainer


class LessonProgress(NamedTuple):
    """What the agents of a behavior have done.

    - `returns`: of the episodes that have ended since the last look and started in the lessons that are going on, with
      the group's reward where there is a group (which counts when it has ended, not when one of its members has)
    - `progress`: the share of the behavior's `max_steps` that is done
    - `elo`: the rating of a behavior that plays against itself
    """

    returns: Sequence[float]
    progress: float
    elo: float | None = None


class ParameterValue(NamedTuple):
    """What an environment parameter is or is drawn from; player i draws with `seed` + i."""

    name: str
    sampler: ParameterSampler
    seed: int


def send_parameter(channel: EnvironmentParametersChannel, value: ParameterValue, player: int) -> None:
    """Send a parameter to a player, with its next step.

    :param player: Its number among all players of the run.
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
    """One environment parameter, and its lessons in their order.

    A lesson is complete when at least `min_lesson_length` episodes have ended in it and what it measures is above its
    threshold: the progress, the Elo rating, or the mean return of the last `min_lesson_length` episodes (of one, if
    that is 0). With `signal_smoothing` the measured m follows the means, m ← m/4 + 3/4 mean, once an episode; the first
    mean of a lesson is taken as it is. The last lesson never ends.

    :param name: of the parameter
    :param lessons: at least one
    :param told: what `training_status.json` tells of them, which this keeps up to date
    :raises UnityGymError: `told` has a lesson that there is not
    """

    def __init__(self, name: str, lessons: Sequence[Lesson], told: dict[str, Any] | None = None) -> None:
        self.name, self._lessons = name, lessons
        self._told = {} if told is None else told
        number = self._told.setdefault("lesson_num", 0)
        if number not in range(len(lessons)):
            raise UnityGymError(
                f"the run is in lesson {number!r} of environment_parameters.{name}, which has {len(lessons)} in the "
                "settings, counted from 0: give it the lessons that it had, or start a new run with --initialize-from"
            )
        self.reset()
        self._recent.extend(self._told.get("recent", []))
        self._episodes = self._told.get("episodes", 0)
        self._measured = self._told.get("measured")

    def report(self) -> None:
        """Report to `training_status.json` what the lesson's completion depends on."""
        self._told.update(recent=list(self._recent), episodes=self._episodes, measured=self._measured)

    @property
    def number(self) -> int:
        """The current lesson, counted from 0."""
        return int(self._told["lesson_num"])

    @property
    def lesson(self) -> Lesson:
        """The current one."""
        return self._lessons[self.number]

    @property
    def criteria(self) -> CompletionCriteria | None:
        """When the current lesson is complete; None for the last."""
        return self.lesson.completion_criteria if self.number + 1 < len(self._lessons) else None

    @property
    def line(self) -> str:
        """A line that tells of the current lesson."""
        return f"Lesson {self.number} of {self.name}: {self.lesson.name}"

    _measured: float | None

    def reset(self) -> None:
        """Forget the episodes that have ended."""
        length = 0 if self.criteria is None else self.criteria.min_lesson_length
        self._recent: deque[float] = deque(maxlen=max(length, 1))
        self._episodes = 0
        self._measured = None

    def is_complete(self, learned: Mapping[str, LessonProgress]) -> bool:
        """Whether the current lesson is, with what has been learned since the last call, by behavior."""
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
        """Whether the return of one more episode completes the lesson."""
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
        """Timesteps of a behavior from which its progress completes the lesson; None for other lessons."""
        criteria = self.criteria
        if criteria is None or criteria.behavior != behavior or criteria.measure != "progress":
            return None
        return int(criteria.threshold * max_steps) + 1

    def advance(self) -> bool:
        """Start the next lesson.

        :return: whether the scene is to be reset for it
        """
        criteria = self.criteria
        assert criteria is not None, "the last lesson never ends"
        self._told["lesson_num"] = self.number + 1
        self.reset()
        return criteria.require_reset


class EnvironmentParameterManager:
    """All environment parameters of a run. One without lessons is the only lesson of its own.

    :param settings: of the run, with the seed that it has
    :param run: its folder, which tells where a resumed run was
    :raises UnityGymError: it was in a lesson that there is not
    """

    def __init__(self, settings: RunSettings, run: Run) -> None:
        self._courses: dict[str, ParameterCurriculum] = {}
        self._seeds: dict[str, int] = {}  # of each course's first lesson; the next ones count on
        self._taught = [
            name for name, given in settings.environment_parameters.items() if isinstance(given, Curriculum)
        ]
        seed = settings.env_settings.seed
        for name, given in settings.environment_parameters.items():
            if isinstance(given, Curriculum):
                lessons, told = given.curriculum, run.lesson(name)
            else:
                lessons, told = [Lesson(name=name, value=given)], {}
            self._courses[name], self._seeds[name] = ParameterCurriculum(name, lessons, told), seed
            seed += len(lessons)

    @property
    def constants(self) -> dict[str, float]:
        """The parameters that are numbers now."""
        values = {name: course.lesson.value for name, course in self._courses.items()}
        return {name: value.sampler_parameters.value for name, value in values.items() if isinstance(value, Constant)}

    @property
    def lessons(self) -> dict[str, ParameterCurriculum]:
        """The parameters that have lessons."""
        return {name: self._courses[name] for name in self._taught}

    def steps_to_lesson(self, behavior: str, steps: int, max_steps: int) -> int | None:
        """Timesteps until the progress of a behavior may complete a lesson; None for never.

        :param steps: Its timesteps until now, of `max_steps`.
        """
        due = [course.steps_of_progress(behavior, max_steps) for course in self.lessons.values()]
        return min((step - steps for step in due if step is not None and step > steps), default=None)

    def report(self) -> None:
        """Report to `training_status.json` what the completion of lessons depends on."""
        for course in self.lessons.values():
            course.report()

    @property
    def stats(self) -> dict[str, float]:
        """The current lessons, under the names that Unity's trainer gives them in TensorBoard."""
        return {f"Environment/Lesson Number/{name}": course.number for name, course in self.lessons.items()}

    def values(self, names: Sequence[str] | None = None) -> list[ParameterValue]:
        """Return what parameters are or are drawn from now.

        Where the settings give no seed, every lesson of the run has one.

        :param names: Of some parameters; by default of all.
        """
        chosen = [self._courses[name] for name in (self._courses if names is None else names)]
        values = []
        for course in chosen:
            given = course.lesson.value.sampler_parameters.seed
            first = self._seeds[course.name] + course.number if given < 0 else given
            values.append(ParameterValue(course.name, course.lesson.value, first))
        return values

    def send(self, pool: PlayerPool, names: Sequence[str] | None = None, first_player: int = 0) -> None:
        """Send parameters to the players of a pool, with their next step; see `values`.

        :param first_player: Number of the first one among all players of the run.
        """
        for player, channel in enumerate(pool.environment_parameters, first_player):
            for value in self.values(names):
                send_parameter(channel, value, player)

    def advance(self, learned: Mapping[str, LessonProgress]) -> tuple[list[str], bool]:
        """Start the lessons that follow those that are complete; the episodes of all lessons are then counted again.

        :param learned: by behavior, since the last call
        :return: the parameters whose lesson is another now, and whether the scene is to be reset for one
        """
        changed = [course for course in self._courses.values() if course.is_complete(learned)]
        resets = [course.advance() for course in changed]
        if changed:
            for course in self._courses.values():
                course.reset()
        return [course.name for course in changed], any(resets)
