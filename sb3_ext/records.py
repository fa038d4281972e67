"""`BehaviorRecord`: the files of one behavior in a run, from which the run resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.console import LOG, summary_line
from sb3_ext.experience import Trajectories, prefixed, without_prefix
from sb3_ext.files import write
from sb3_ext.groups import GroupTrajectories
from sb3_ext.learner import Learner
from sb3_ext.plugins import StatsWriter
from sb3_ext.run_checkpoints import resume, start_from
from sb3_ext.run_logs import Curve, Summary, Timers, UpdateLog
from sb3_ext.runs import Run, can_be_folder
from sb3_ext.sac import SAC
from sb3_ext.settings import BehaviorSettings, RunSettings, SACHyperparameters
from sb3_ext.statistics import Statistics
from unity_gym.errors import UnityGymError
from unity_gym.specs import Array

_GRADIENT_STEPS_PER_LINE = 100  # of SAC, in updates.jsonl
_RESUMED_ROWS = 1 << 48  # offset of the rows of saved experience, so that they are unique


class BehaviorRecord:
    """Files of one behavior.

    :param name: Name of the behavior, without a team.
    :param model: Model of the behavior, which is restored if the run or the settings have a checkpoint for it.
    :param settings: Settings of the run.
    :param run: Folder of the run.
    :param writers: Further statistics writers.
    :raises UnityGymError: If a checkpoint is invalid or incompatible.
    """

    def __init__(
        self, name: str, model: UnityAlgorithm, settings: RunSettings, run: Run, writers: Sequence[StatsWriter] = ()
    ) -> None:
        if not can_be_folder(name):
            raise UnityGymError(f"no folder can have the name of the behavior {name!r}: rename it in Unity")
        self.name, self.model = name, model
        self.settings: BehaviorSettings = settings.behavior(name)
        asked = settings.checkpoint_settings
        self._folder = run.folder / name
        self._checkpoints = run.checkpoints(name, self.settings.keep_checkpoints)
        newest = self._checkpoints.newest() if asked.resume else None
        if newest is not None:
            resume(model, newest)
            if self._keeps_replay_buffer and not self._checkpoints.load_replay_buffer(model):
                LOG.warning("%s: the run has no replay buffer of it, so that it starts with an empty one", name)
        else:
            if asked.resume:
                LOG.warning("%s: the run has no checkpoint of it, so that it starts again", name)
            if (initial := run.initial(settings, name)) is not None and (line := start_from(model, initial)):
                LOG.info("%s: %s", name, line)
        status = self._checkpoints.status
        if self.settings.self_play is None:  # since the run was saved
            for key in ("elo", "learning_team"):
                status.pop(key, None)
        self.learned_last: str | None = status.get("learning_team") if asked.resume else None
        """Learning team at the time of saving; None if it was a team of another behavior, or learns again."""
        steps = model.num_timesteps
        self.curve = Curve(self._folder / "rewards.csv", steps if asked.resume else None)
        self._updates = UpdateLog(
            self._folder / "updates.jsonl",
            steps if asked.resume else None,
            _GRADIENT_STEPS_PER_LINE if isinstance(model, SAC) else 1,
        )
        signals = [signal.name for signal in model.reward_signals]
        text = yaml.safe_dump(self.settings.model_dump(mode="json"), sort_keys=False)
        self.statistics = Statistics(self._folder, steps, signals, writers, text)
        self._saved = None if newest is None else self._state
        self._next_summary = (steps // self.settings.summary_freq + 1) * self.settings.summary_freq
        self._next_checkpoint = (steps // self.settings.checkpoint_interval + 1) * self.settings.checkpoint_interval

    @property
    def _state(self) -> tuple[int, int, list[float]]:
        """Timesteps, updates and ratings, at least one of which changes with everything that a checkpoint has."""
        play = self.model.self_play
        return self.model.num_timesteps, self.model._n_updates, [] if play is None else play.ratings

    @property
    def _keeps_replay_buffer(self) -> bool:
        hyperparameters = self.settings.hyperparameters
        return isinstance(hyperparameters, SACHyperparameters) and hyperparameters.save_replay_buffer

    @property
    def steps_to_event(self) -> int:
        """Timesteps until a summary or a checkpoint is due."""
        return min(self._next_summary, self._next_checkpoint) - self.model.num_timesteps

    @property
    def next_summary(self) -> int:
        """Timestep of the next summary."""
        return self._next_summary

    @property
    def is_summary_due(self) -> bool:
        """Whether a multiple of `summary_freq` has passed."""
        return self.model.num_timesteps >= self._next_summary

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a multiple of `checkpoint_interval` has passed."""
        return self.model.num_timesteps >= self._next_checkpoint

    def add_update(self, records: Mapping[str, float], seconds: float) -> None:
        """Add the records of an update.

        :param seconds: Seconds since the start of the run.
        """
        self.statistics.add_records(records)
        if records:
            self._updates.add(self.model.num_timesteps, self.model._n_updates, seconds, records)

    def add_episodes(self, episodes: Mapping[str, Array]) -> None:
        """Add finished episodes; see `sb3_ext.sampler.Samples`."""
        extrinsic = self.settings.reward_signals.extrinsic
        self.statistics.add_episodes(episodes, None if extrinsic is None else extrinsic.strength)

    def summarize(self, seconds: float, timers: Timers, elo: float | None) -> str:
        """Write the statistics since the last summary, with the last multiple of `summary_freq` as their timestep.

        :param seconds: Seconds since the start of the run.
        :param timers: Durations of the parts of the loop.
        :param elo: Rating of the behavior; None without self-play.
        :return: Log line about them, in the form of mlagents-learn.
        """
        step = self.model.num_timesteps // self.settings.summary_freq * self.settings.summary_freq
        self._next_summary = step + self.settings.summary_freq
        if elo is not None:
            self.statistics.add({"Self-play/ELO": [elo]})
        returns = self.statistics.returns
        if returns:
            mean, std = float(np.mean(returns)), float(np.std(returns))
            self.curve.add(Summary(step, round(seconds, 3), mean, std, len(returns)))
        rest = ["Training"] if elo is None else ["Training", f"ELO: {elo:.3f}"]
        line = summary_line(self.name, step, seconds, self.statistics.reward_parts(), *rest)
        self.statistics.write(self.name, step, timers)
        self.statistics.clear()
        return line

    def report_self_play(self, elo: float, learning: str | None) -> None:
        """Report the state of self-play to `training_status.json`.

        :param elo: Rating of the behavior.
        :param learning: Current learning team; None if it is a team of another behavior.
        """
        self._checkpoints.status.update(elo=elo, learning_team=learning)

    def save(self, experience: Sequence[Trajectories]) -> None:
        """Write a checkpoint and its other files, unless nothing has changed since the latest and both its files exist.

        :param experience: Collected experience that was not used for training yet.
        """
        self.model.finish_update()  # weights, counters and random numbers of one moment
        step = self.model.num_timesteps
        self._next_checkpoint = (step // self.settings.checkpoint_interval + 1) * self.settings.checkpoint_interval
        if self._state != self._saved or not self._checkpoints.is_complete(step):
            newest = self.curve.summaries[-1].mean_reward if self.curve.summaries else None
            # The checkpoint last, so that it is complete even if the run is killed in between.
            self.curve.save()
            self._updates.complete()
            if self._keeps_replay_buffer:
                self._checkpoints.save_replay_buffer(self.model)
            path = self._experience_file
            is_new = not path.exists()  # otherwise, it also belongs to the latest checkpoint
            if experience:
                arrays: dict[str, Array] = {}
                for number, part in enumerate(experience):
                    version = part.decisions["version"] - self.model.version  # that of a resumed run starts at 0
                    saved = replace(part, decisions={**part.decisions, "version": version})
                    arrays |= prefixed(str(number), saved.arrays())
                write(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
            try:
                self._checkpoints.save(self.model, newest, deterministic=self.settings.is_deterministic)
            except BaseException:
                if is_new:
                    path.unlink(missing_ok=True)
                raise
            for other in self._folder.glob("experience-*.npz"):
                if other != path:
                    other.unlink()
            self._saved = self._state

    @property
    def _experience_file(self) -> Path:
        """Path of the experience that belongs to the checkpoint of this step and number of updates only."""
        return self._folder / f"experience-{self.model.num_timesteps}-{self.model._n_updates}.npz"

    def load_experience(self, learner: Learner) -> None:
        """Pass the experience that was stored with the checkpoint to the learner."""
        path = self._experience_file
        if self._saved is None or not path.exists():
            return
        kind = GroupTrajectories if self.model.collection.groups else Trajectories
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            count = len({name.partition(".")[0] for name in arrays})
            parts = [kind.from_arrays(without_prefix(str(number), arrays)) for number in range(count)]
            longest, length = max(int(part.lengths.max()) for part in parts), self.model.collection.time_horizon
            if isinstance(self.model, SAC) and length is not None and longest > length:
                raise ValueError(f"its sequences are up to {longest} decisions long, those of this model {length}")
        except Exception as error:  # NumPy raises many classes for other files; nothing in the file is executed
            raise UnityGymError(f"{path} cannot be read: {error}. Delete it; the run continues without it") from error
        for part in parts:
            part.shift_rows(_RESUMED_ROWS)
            learner.model.add(part)

    def finish(self, experience: Sequence[Trajectories]) -> str:
        """Write the last checkpoint and the final ONNX file, and return a log line about them."""
        self.save(experience)
        return f"{self.name}: saved {self._checkpoints.newest()} and {self._checkpoints.publish()}"

    def close(self) -> None:
        """Close the TensorBoard file."""
        with suppress(OSError):
            self.statistics.close()
