"""Training loop of a run: samplers collect experience, learners update, and samplers receive the new weights."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from stable_baselines3.common.utils import set_random_seed
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from sb3_ext.child_processes import HANGUP, stop_signals
from sb3_ext.console import (
    LOG,
    OutputClosedError,
    Progress,
    block_text,
    console_logging,
    discard_output,
    lock_bars_in_threads,
)
from sb3_ext.curriculum import EnvironmentParameterManager
from sb3_ext.experience import ROWS_PER_SAMPLER, Trajectories
from sb3_ext.from_settings import build_model
from sb3_ext.joint import JointTraining
from sb3_ext.launching import (
    launch,
    player_name,
    require_demonstrations,
    require_source,
    with_samplers,
    with_seed,
)
from sb3_ext.learner import Learner
from sb3_ext.placement import LocalSampler, Place, PlacedSampler, started
from sb3_ext.plugins import StatsWriter, load_writers
from sb3_ext.processes import Processes
from sb3_ext.records import BehaviorRecord
from sb3_ext.restarts import RestartPolicy
from sb3_ext.run_logs import Timers
from sb3_ext.runs import Run
from sb3_ext.sampler import Sampler, Samples, plain_name
from sb3_ext.self_play import SelfPlay
from sb3_ext.served_sampler import SamplerArguments
from sb3_ext.settings import BCSettings, EnvSettings, FixedSettings, RaySettings, RunSettings
from unity_gym.errors import UnityGymError
from unity_gym.pool import PlayerPool
from unity_gym.specs import BehaviorSpec

_SECONDS_PER_FIGURE = 10.0  # at least: drawing one takes tenths of a second


def train(settings: RunSettings, writers: Sequence[StatsWriter] = ()) -> int:
    """Train the behaviors of a run, then end the players.

    :param writers: Statistics writers in addition to those of the settings. An exception that one raises ends the run,
        which is saved.
    :return: 0 if the run is complete, otherwise the number of the signal (such as Ctrl-C) that ended it.
    :raises UnityGymError: If the settings, the run's folder or a player are invalid or fail, or another process trains
        in the folder; the training until then is saved.
    """
    with console_logging(settings.debug):
        require_demonstrations(settings)
        run = Run(settings)
        writers = [*load_writers(settings.stats_writers, run.folder), *writers]
        settings = with_samplers(with_seed(settings))
        LOG.debug("Seed: %d", settings.env_settings.seed)
        LOG.debug("Configuration for this run:\n%s", json.dumps(settings.model_dump(mode="json"), indent=4))
        curricula = EnvironmentParameterManager(settings, run)
        training = None
        try:
            with run.locked(), place_samplers(settings, curricula, run) as samplers:
                training = Training(settings, run, samplers, curricula, writers)
                return training.run_to_the_end()
        except KeyboardInterrupt as stop:
            if training is None or not training.is_saved:
                raise
            return int(stop.args[0] if stop.args else signal.SIGINT)


@contextmanager
def place_samplers(
    settings: RunSettings, curricula: EnvironmentParameterManager, run: Run, is_silent: bool = False
) -> Iterator[list[PlacedSampler]]:
    """Launch the players of a run with samplers: one in this process, or `num_workers` in processes or Ray actors.

    :param is_silent: Suppress the output of the processes.
    """
    environment = settings.env_settings
    limits = _restart_limits(environment)
    threaded = any(block.threaded for block in settings.behavior_blocks)
    if not environment.num_workers:
        with launch(settings, curricula, run.logs) as pool:
            restarts = RestartPolicy(**limits)
            yield [LocalSampler(Sampler(pool, restarts, is_asynchronous=threaded, on_restart=LOG.warning))]
        return
    set_random_seed(environment.seed)
    with ExitStack() as stack:
        place = Processes() if settings.ray is None else stack.enter_context(_connect(settings.ray, settings))
        shares = [
            environment.num_envs * share // environment.num_workers for share in range(environment.num_workers + 1)
        ]
        arguments = []
        for number, (first, last) in enumerate(itertools.pairwise(shares)):
            changed: dict[str, Any] = {"num_envs": last - first, "seed": environment.seed + first}
            if "base_port" in environment.model_fields_set:
                changed["base_port"] = environment.base_port + first
            logs: Path | None = run.logs if environment.num_workers == 1 else run.logs / f"sampler-{number}"
            if place.build is not None:
                changed["env_path"], logs = place.build, None  # the folder of the run is on this machine
            own = settings.model_copy(update={"env_settings": environment.model_copy(update=changed)})
            launching = functools.partial(_launch_in_process, own, curricula, logs, first, is_silent)
            arguments.append(SamplerArguments(launching, first, limits, threaded))
        players = [last - first for first, last in itertools.pairwise(shares)]
        yield [*stack.enter_context(started(place, arguments, players, LOG.warning))]


def _connect(ray: RaySettings, settings: RunSettings) -> AbstractContextManager[Place]:
    from sb3_ext.ray_cluster import connect  # optional dependency

    return connect(ray, player_name(settings), LOG.info)


@contextmanager
def _launch_in_process(
    settings: RunSettings,
    curricula: EnvironmentParameterManager,
    logs: Path | None,
    first_player: int,
    is_silent: bool,
) -> Iterator[PlayerPool]:
    """Launch players in this separate process, and print their log unless it is silent."""
    lock_bars_in_threads()
    printing = nullcontext() if is_silent else console_logging(settings.debug)
    with printing, launch(settings, curricula, logs, first_player=first_player) as pool:
        yield pool


def _restart_limits(environment: EnvSettings) -> dict[str, Any]:
    return {
        "lifetime": environment.max_lifetime_restarts,
        "number": environment.restarts_rate_limit_n,
        "period": environment.restarts_rate_limit_period_s,
    }


class Training(JointTraining):
    """Joint training of a run, with its files and lessons, after the reset of the players.

    :param settings: Settings of the run.
    :param run: Folder of the run, in which files are written from now on.
    :param samplers: Samplers of the agents.
    :param curricula: Environment parameters, which the players have received.
    :param writers: Statistics writers, which are closed at the end.
    :param is_silent: Show no progress.
    :raises UnityGymError: If a checkpoint is invalid or incompatible.
    """

    def __init__(
        self,
        settings: RunSettings,
        run: Run,
        samplers: Sequence[PlacedSampler],
        curricula: EnvironmentParameterManager,
        writers: Sequence[StatsWriter] = (),
        is_silent: bool = False,
    ) -> None:
        super().__init__(samplers)
        self._settings, self._run, self._curricula = settings, run, curricula
        self._timers = Timers()
        self._records: dict[str, BehaviorRecord] = {}
        self._bars: dict[str, Any] = {}
        self._interrupted = 0  # number of the signal
        self._drawn_at = time.monotonic()
        self.is_saved = False
        """Whether the run is saved at its end."""
        self._writers = writers
        self._terminals = [output for output in (1, 2) if os.isatty(output)]
        self._has_bars = sys.stderr.isatty() and not is_silent
        self._progress = Progress(not self._has_bars and not is_silent)
        if changes := run.changes(settings):
            LOG.info(changes)
        self._start()
        self._restore_learning_team()
        for sampler in samplers:
            sampler.start_matches()
        run.start(settings)
        for curriculum in curricula.lessons.values():
            if curriculum.number:
                LOG.info(curriculum.line)

    def run_to_the_end(self) -> int:
        """Train until each behavior has completed its timesteps or a signal arrives, and save, also after errors.

        :return: The number of the signal, or 0.
        :raises UnityGymError: If a player fails, or a file cannot be written.
        """
        before = {number: signal.signal(number, self._interrupt) for number in stop_signals()}
        try:
            while not self._interrupted and self._learns:
                self._step()
            if not self._interrupted:
                self._learn_the_last()
        except Exception as error:
            if self._interrupted and isinstance(error, OutputClosedError):  # Ctrl-C also ends `tee`
                self._finish(failed=True)
            else:
                with suppress(UnityGymError, OutputClosedError):
                    self._finish(failed=True)
                raise
        else:
            self._finish()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close()
        return self._interrupted

    def _close(self) -> None:
        """Close the processes of the learners, files and progress bars."""
        for learner in self._learners.values():
            learner.model.stop_replicas()
        with ExitStack() as stack:  # an error of one does not prevent that the others are closed
            for closing in (*self._records.values(), *self._writers, *self._bars.values()):
                stack.callback(closing.close)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if number == HANGUP:
            for terminal in self._terminals:
                discard_output(terminal)
        elif self._interrupted:
            raise KeyboardInterrupt(number)
        self._interrupted = number
        # Ctrl-C ends `tee`, too. If it arrives while a line is written, Python cannot write another one meanwhile.
        with suppress(OutputClosedError, RuntimeError):
            LOG.info("Stopping (once more: at once, and nothing is saved)")

    def _build_learner(self, name: str, spec: BehaviorSpec) -> Learner:
        settings = self._settings.behavior(name)
        LOG.info("Hyperparameters for behavior name %s:\n%s", name, block_text(settings.model_dump()))
        model = build_model(spec, settings, self._settings.torch_settings.device)
        if isinstance(settings, FixedSettings):
            return Learner(name, spec, model, 0, deterministic=settings.is_deterministic)
        require_source(name, settings)
        record = self._records[name] = BehaviorRecord(name, model, self._settings, self._run, self._writers)
        self_play = None
        if settings.self_play is not None:
            self_play = SelfPlay(**settings.self_play.model_dump(), seed=self._settings.env_settings.seed)
        teacher = settings.teacher if isinstance(settings, BCSettings) else None
        learner = Learner(name, spec, model, settings.max_steps, self_play, settings.is_deterministic, teacher)
        record.load_experience(learner)
        if not learner.learns:
            count = f"{model.num_timesteps} of {settings.max_steps} timesteps"
            LOG.warning("%s is complete with %s: raise max_steps to train it further", name, count)
        if self._has_bars:
            steps = model.num_timesteps
            self._bars[name] = tqdm(total=settings.max_steps, initial=steps, desc=name, unit=" steps")
        return learner

    def _add_appeared(self) -> None:
        super()._add_appeared()
        self._restore_learning_team(reset=True)

    def _restore_learning_team(self, reset: bool = False) -> None:
        """Continue the turn of the team that learned when the run was saved, as soon as the team has appeared."""
        for record in self._records.values():
            team, teams = record.learned_last, self._learners[record.name].teams
            if team is not None and team in teams:
                record.learned_last = None
                if team != self._learning_team:
                    self._set_learning_team(team, reset)

    def _steps_to_event(self, learner: Learner) -> int:
        steps = min(learner.steps_to_event, self._records[learner.name].steps_to_event)
        lesson = self._curricula.steps_to_lesson(learner.name, learner.model.num_timesteps, learner.max_steps)
        return steps if lesson is None else min(steps, lesson)

    @property
    def _until_episode(self) -> bool:
        return any(curriculum.may_end_with_episode for curriculum in self._curricula.lessons.values())

    def _timing(self, part: str) -> AbstractContextManager[None]:
        return self._timers(part)

    def _proceed(self) -> bool:
        """Publish the weights of finished updates; return False after a signal."""
        super()._proceed()
        if self._progress.is_due or self._bars:
            self._show_progress()
        return not self._interrupted

    def _show_progress(self) -> None:
        """Show the progress of the agents, including the timesteps of the running collection."""
        timesteps = {name: learner.model.num_timesteps for name, learner in self._learners.items() if learner.learns}
        for sampler in self._samplers:
            for name, decisions in sampler.decisions.items() if isinstance(sampler, LocalSampler) else ():
                if name in timesteps:
                    timesteps[name] += decisions
        for name, bar in self._bars.items():
            bar.update(max(timesteps.get(name, 0) - bar.n, 0))
        if self._progress.is_due:
            parts = [f"{name} {count} of {self._records[name].next_summary}" for name, count in timesteps.items()]
            self._progress.report("Timesteps until the next summary", parts)

    def _take_statistics(self, samples: Samples) -> None:
        for name, episodes in samples.episodes.items():
            if name in self._records and name not in self._complete:  # no summary follows
                self._records[name].add_episodes(episodes)
        for part, (seconds, count) in samples.seconds.items():
            self._timers.add(part, seconds, count)
        for learner in self._recorded:
            if learner.name not in self._complete:
                self._records[learner.name].statistics.add_stats(samples.stats)

    def _take_update(self, learner: Learner) -> None:
        name, records = learner.name, learner.pop_records()
        values = ", ".join(f"{record} {value:.4g}" for record, value in records.items())
        LOG.debug("Update of %s at step %d: %s", name, self._learners[name].model.num_timesteps, values)
        self._records[name].add_update(records, self._seconds)

    def _step(self) -> None:
        """Collect until the next event, and process it."""
        super()._step()
        recorded = self._recorded
        for learner in recorded:
            record = self._records[learner.name]
            if record.is_summary_due:
                record.statistics.add({tag: [value] for tag, value in self._curricula.stats.items()})
                elo = None if learner.self_play is None else learner.self_play.elo
                LOG.info(record.summarize(self._seconds, self._timers, elo))
                self._progress.restart()
        measured = self._curricula.measured
        self._advance_lessons()
        self._change_team()
        names = [learner.name for learner in recorded]
        due = [name for name in names if self._records[name].is_checkpoint_due]
        if due:  # with the lessons and the team that follow
            # Ratings of those that rest change, too, and lessons are not ahead of what has completed them.
            due += [name for name in self._records if name not in due and (name not in names or name in measured)]
            with self._timers("checkpoint"):
                for name in due:
                    learner = self._learners[name]
                    self._finish_update(learner)
                    self._records[name].save(self._experience(learner))
                    LOG.debug("Saved a checkpoint of %s at step %d", name, learner.model.num_timesteps)
                self._write_status()
                if time.monotonic() - self._drawn_at > _SECONDS_PER_FIGURE:
                    self._draw()
        for name, bar in self._bars.items():
            bar.update(self._learners[name].model.num_timesteps - bar.n)

    @property
    def _recorded(self) -> list[Learner]:
        """The learners whose agents act for themselves, except for fixed policies."""
        return [learner for learner in self._acting if learner.name in self._records]

    def _experience(self, learner: Learner) -> list[Trajectories]:
        """Return the collected experience that was not used for training yet."""
        parts = learner.model.experience()
        for number, sampler in enumerate(self._samplers):
            if (part := sampler.peek(learner.name)) is not None:
                part.shift_rows(number * ROWS_PER_SAMPLER)
                parts.append(part)
        return parts

    def _advance_lessons(self) -> None:
        """Start the next lesson of each parameter whose lesson is complete."""
        changed, reset = self._curricula.advance(
            {name: learner.pop_lesson_progress() for name, learner in self._learners.items()}
        )
        if not changed:
            return
        for sampler in self._samplers:
            sampler.set_parameters(self._curricula.values(changed), reset, self._proceed)
        for learner in self._learners.values():
            learner.start_lesson(reset)
        for name in changed:
            LOG.info(self._curricula.lessons[name].line)

    @property
    def _seconds(self) -> float:
        return self._run.seconds_before + self._timers.seconds

    def _write_status(self) -> None:
        for name, learner in self._learners.items():
            if learner.self_play is not None:
                is_turn = plain_name(self._learning_team) == name
                self._records[name].report_self_play(learner.self_play.elo, self._learning_team if is_turn else None)
        self._curricula.report()
        self._run.write_status(self._seconds, self._timers.tree())

    def _draw(self) -> None:
        curves = {name: record.curve.summaries for name, record in self._records.items()}
        if any(curves.values()):
            self._run.draw(curves)
        self._drawn_at = time.monotonic()

    def _finish(self, failed: bool = False) -> None:
        """Save everything.

        :param failed: Whether an error occurred. The experience of a sampler or learner that caused it is lost.
        """
        if failed:
            self._stop_samplers()
        lines: list[str] = []
        errors: list[UnityGymError] = []
        for name in self._records:
            learner = self._learners[name]
            experience: list[Trajectories] = []
            try:
                self._finish_update(learner)
                experience = self._experience(learner)
            except Exception:
                if not failed:
                    raise
            try:
                lines.append(self._records[name].finish(experience))
            except UnityGymError as error:  # which does not prevent that the others are saved
                errors.append(error)
        self._write_status()
        if errors:
            raise errors[0]
        self._draw()
        self.is_saved = True
        with suppress(*([OutputClosedError] if self._interrupted else [])):
            for line in lines:
                LOG.info(line)
