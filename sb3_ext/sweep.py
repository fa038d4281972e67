"""Sweeps: search the settings of a run for the best ones, with Optuna.

A sweep file contains a configuration, the settings to vary by their keys, and the evaluation of trials:

    config: ppo/Basic                  # a YAML file, or a name from `unity-learn --list`
    trials: 12
    seeds: [0, 1]                      # one run per seed; the value of a trial is their mean
    steps: 20000                       # timesteps per run (default: max_steps)
    metric: Environment/Cumulative Reward
    objective: area                    # mean of the metric over all summaries; `last`: that of the last summary
    target: 0.925                      # a run ends when it achieves this value
    prune: true                        # end trials whose learning curve is below the median
    startup_trials: 5                  # trials that are sampled at random and not pruned
    warmup_steps: 4000                 # timesteps of a run before it can be pruned
    parameters:
      behaviors.Basic.hyperparameters.learning_rate: {log_uniform: [1.0e-4, 1.0e-2]}
      behaviors.Basic.hyperparameters.num_epoch: {int_uniform: [2, 10]}
      behaviors.Basic.hyperparameters.batch_size: {choice: [16, 32, 64]}
      behaviors.Basic.summary_freq: 500

The files of a sweep:

    results/<name>/study.journal            the study, which several processes and machines can share
    results/<name>/trial-<n>-seed-<seed>/   the runs, in the layout of `unity-learn`
    results/<name>/trials.csv, trials.png   table and image of all trials
    results/<name>/best.yaml                the configuration of the best trial
    results/<name>/processes/               a locked file per running process of the sweep
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from sb3_ext.console import OutputClosedError, print_line
from sb3_ext.files import is_locked, locked, write
from sb3_ext.runs import every_value, resolved_configuration, save_figure
from sb3_ext.settings import RunSettings, SettingsError, load
from sb3_ext.settings.shipped import configuration_file, sweep_file
from sb3_ext.settings.sweeps import SweepSettings, Value, load_sweep
from sb3_ext.training import train
from unity_gym.errors import UnityGymError

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import TPESampler
    from optuna.trial import FrozenTrial

_STUDY = "study.journal"
_DRAWS = 20  # combinations of values, of which at least one must be valid
_COLUMNS = ("trial", "state", "value", "steps", "seconds")


class _RunEnd(Exception):  # noqa: N818 (no error)
    """Signal that a run of a trial needs no more timesteps."""


class _LearningCurve:
    """Learning curve of one run of a trial: a statistics writer that ends the run as soon as its result is determined.

    :param trial: Trial of the run.
    :param sweep: Settings of the sweep.
    :param behavior: Name of the evaluated behavior.
    :param summaries: Timesteps of all summaries of the run.
    :param offset: Offset of the reported timesteps.
    """

    def __init__(self, trial: Trial, sweep: SweepSettings, behavior: str, summaries: range, offset: int) -> None:
        self._trial, self._sweep, self._behavior, self._summaries = trial, sweep, behavior, summaries
        self._offset = offset
        self._tags: set[str] = set()
        self.points: list[tuple[int, float]] = []
        """Timestep and metric of each summary."""
        self.solved_at: int | None = None
        """Timesteps until the target was achieved; None before."""

    def write_stats(self, behavior: str, step: int, stats: Mapping[str, float]) -> None:
        """Evaluate a summary.

        :raises _RunEnd: If the run has achieved the target or has completed its timesteps.
        :raises TrialPruned: If its learning curve is below the median.
        """
        if behavior != self._behavior:
            return
        self._tags |= stats.keys()
        target = self._sweep.target
        if self._sweep.metric in stats:
            self.points.append((step, stats[self._sweep.metric]))
            if target is not None and self.points[-1][1] >= target:
                self.solved_at = step
            self._report(step)
        if self.solved_at is not None or step >= self._summaries[-1]:
            raise _RunEnd

    def _report(self, step: int) -> None:
        from optuna import TrialPruned

        self._trial.report(self._value_at(step), self._offset + step)
        if self.solved_at is not None:  # the rest of its curve is reported for the comparison with other trials
            for later in self._summaries:
                if later > step:
                    self._trial.report(self._value_at(later), self._offset + later)
        elif self._sweep.prune and step >= self._sweep.warmup_steps and self._trial.should_prune():
            raise TrialPruned

    def close(self) -> None:
        """Do nothing, as each summary has been reported."""

    @property
    def value(self) -> float:
        """Value of the objective.

        :raises UnityGymError: If no summary contained the metric.
        """
        if not self.points:
            raise UnityGymError(
                f"no summary of {self._behavior} has the metric {self._sweep.metric!r}; its metrics are "
                f"{', '.join(sorted(self._tags)) or 'none'}. Correct metric, or give more steps"
            )
        return self._value_at(self.points[-1][0] if self.solved_at is None else self._summaries[-1])

    def _value_at(self, step: int) -> float:
        """Return the metric at a timestep; after the target was achieved, the curve stays at the target."""
        target = np.inf if self._sweep.target is None else self._sweep.target
        values = [min(value, target) for _, value in self.points]
        if self._sweep.objective == "last":
            return values[-1]
        rest = sum(self.points[-1][0] < later <= step for later in self._summaries)
        return float(np.mean(values + rest * values[-1:]))


class Sweep:
    """Sweep with its folder.

    :param path: Path of a sweep file, or name of a sweep of this package.
    :param flags: Settings from the command line, by key path; see `sb3_ext.settings.load`. They apply to all runs,
        except for `run_id`, `results_dir`, `resume`, `force` and `seed`, which are those of the sweep.
    :raises UnityGymError: If Optuna is missing, the settings are invalid, or the folder does not allow the sweep.
    """

    def __init__(self, path: str | Path, flags: Mapping[str, object] | None = None) -> None:
        self._path, self._flags = sweep_file(str(path)), dict(flags or {})
        run_id, results = (self._flags.pop(f"checkpoint_settings.{key}", None) for key in ("run_id", "results_dir"))
        resume, force = (bool(self._flags.pop(f"checkpoint_settings.{key}", False)) for key in ("resume", "force"))
        seed: Any = self._flags.pop("env_settings.seed", -1)
        self.settings = load_sweep(self._path)
        self._config = configuration_file(self.settings.config)
        self._results = Path(str(results or "results"))
        self.folder = self._results / str(run_id or self._path.stem)
        settings = self._any_settings()
        self._behavior = self._judged_behavior(settings)
        self._summaries(settings)
        longest = [given.largest for path, given in self.settings.varied.items() if path.endswith(".max_steps")]
        steps = self.settings.steps or max(longest, default=settings.behavior(self._behavior).max_steps)
        self._stride = int(steps) + 1  # of the timesteps that the runs of a trial report
        self._seed = int(seed)  # negative: none
        self._lock = self.folder / "processes" / uuid.uuid4().hex
        self._study = self._open(resume, force)

    def run(self) -> int:
        """Run trials until the study, which other processes may share, has all of them, or a signal arrives.

        :return: 0, or the number of the signal.
        :raises UnityGymError: If no trial was completed.
        """
        try:
            with locked(self._lock):
                return self._run()
        finally:
            self._lock.unlink(missing_ok=True)

    def _run(self) -> int:
        self._repeat_lost_trials()
        if not self._study.trials and (values := self._configured_values()) is not None:
            self._study.enqueue_trial(values)
        while sum(map(_counts, self._study.trials)) < self.settings.trials:
            if ended_by := self._run_trial():
                self._write_results()
                print_line(f"Stopped; --resume continues the sweep in {self.folder}")
                return ended_by
        best = self._write_results()
        if best is None and any(trial.state.name == "RUNNING" for trial in self._study.trials):
            print_line(f"No trial in {self.folder} is left: other processes run the last ones")
            return 0
        if best is None:
            reasons = [trial.user_attrs["error"] for trial in self._study.trials if "error" in trial.user_attrs]
            raise UnityGymError(
                f"no trial was completed; the last error is: {(reasons or ['none'])[-1]}. Correct {self._path}, and "
                "give --force to start from scratch"
            )
        print_line(self._table())
        print_line(f"Best: trial {best.number}. Train with its settings: unity-learn {self.folder / 'best.yaml'}")
        return 0

    def _load(self, values: Mapping[str, Value], run: Mapping[str, object] | None = None) -> RunSettings:
        """Return the settings of a trial.

        :param run: Settings of one run of the trial, by key path.
        :raises SettingsError: If the combination of values is invalid.
        """
        flags = {**self.settings.constants, **values, **self._flags, **(run or {})}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return load(self._config, flags)
        except SettingsError as error:
            where = f"{self._path}: parameters."
            raise SettingsError(str(error).replace("command line: ", where)) from None

    def _any_settings(self) -> RunSettings:
        """Return the settings of one trial, to check the sweep before a player is launched in vain.

        :raises SettingsError: If all of some random combinations are invalid. A part of them may be, such as a batch
            that is larger than the buffer.
        """
        generator, errors = np.random.default_rng(0), []
        for _ in range(_DRAWS):
            try:
                return self._load(
                    {path: distribution.sample(generator) for path, distribution in self.settings.varied.items()}
                )
            except SettingsError as error:
                errors.append(error)
        raise errors[0]

    def _judged_behavior(self, settings: RunSettings) -> str:
        name, behaviors = self.settings.behavior, list(settings.behaviors)
        if name is not None and (name in behaviors or settings.default_settings is not None):
            return name
        if name is None and len(behaviors) == 1:
            return behaviors[0]
        raise SettingsError(
            f"{self._path}: behavior {'is missing' if name is None else f'is {name!r}'}: give the behavior whose "
            f"metric is the objective; {self.settings.config} has {', '.join(behaviors) or 'none by name'}"
        )

    def _summaries(self, settings: RunSettings) -> range:
        """Return the timesteps of all summaries of a run with these settings.

        :raises SettingsError: If there are none.
        """
        behavior = settings.behavior(self._behavior)
        steps = min(self.settings.steps or behavior.max_steps, behavior.max_steps)
        summaries = range(behavior.summary_freq, steps + 1, behavior.summary_freq)
        if not summaries:
            raise SettingsError(
                f"{self._path}: steps must be at least summary_freq, which is {behavior.summary_freq}, got {steps}: "
                f"give more, or lower behaviors.{self._behavior}.summary_freq under parameters"
            )
        return summaries

    def _open(self, resume: bool, force: bool) -> Study:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend, JournalStorage
        except ImportError as error:
            raise UnityGymError("unity-learn sweep needs optuna: pip install 'unity-gym[tune]'") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = self.folder / _STUDY
        if resume and force:
            raise UnityGymError("--resume continues a sweep and --force deletes it: give one of them")
        if resume and not path.is_file():
            raise UnityGymError(f"{self.folder} is no sweep that could be resumed. Correct --run-id, or leave it out")
        if resume:
            _require_whole(path)
        if not resume and self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            if not path.is_file():
                raise UnityGymError(f"{self.folder} is no sweep (it has no {_STUDY}): give another --run-id")
            if not force:
                raise UnityGymError(
                    f"{self.folder} exists. Give --resume to continue or to join it, --force to delete it and start "
                    "from scratch, or another --run-id"
                )
            if any(is_locked(lock) for lock in self._lock.parent.glob("*")):
                raise UnityGymError(
                    f"another process runs the sweep in {self.folder}: wait until it ends, give --resume to join it, "
                    f"or give another --run-id. If there is none, delete {self._lock.parent}"
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(
                study_name=self.folder.name,
                storage=JournalStorage(JournalFileBackend(str(path))),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=self.settings.startup_trials),
                direction="maximize",
                load_if_exists=True,
            )
        own = self.settings.model_dump(mode="json", exclude={"trials"})
        if study.user_attrs.setdefault("sweep", own) != own:
            raise UnityGymError(
                f"{self.folder} was started with other settings than those of {self._path}, of which only trials can "
                "be changed: restore them, give another --run-id, or --force to start from scratch"
            )
        study.set_user_attr("sweep", own)
        return study

    def _sampler(self, number: int) -> TPESampler:
        """Return a sampler that draws values for a trial as the seed of the sweep and the number of the trial define.

        Processes that share the study, or resume it, thus draw other values than those of the trials before.
        """
        from optuna.samplers import TPESampler

        seed = None if self._seed < 0 else int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        return TPESampler(n_startup_trials=self.settings.startup_trials, constant_liar=True, seed=seed)

    def _repeat_lost_trials(self) -> None:
        """Queue trials again whose process, on any machine, was killed."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            name = trial.user_attrs.get("process")  # missing in the moment after `ask`
            if isinstance(name, str) and not is_locked(self._lock.with_name(name)):
                try:
                    self._study.tell(trial.number, state=TrialState.FAIL)
                except (UpdateFinishedTrialError, ValueError):
                    continue  # another process has just done the same
                self._study.enqueue_trial(trial.params)
                self._lock.with_name(name).unlink(missing_ok=True)

    def _configured_values(self) -> dict[str, Any] | None:
        """Return the values of the configuration; None if the search space does not contain them."""
        tree = every_value(self._load({}))
        values = {}
        for path, distribution in self.settings.varied.items():
            node: Any = tree
            for key in path.split("."):
                node = node.get(key) if isinstance(node, dict) else None
            if not distribution.contains(node):
                return None
            values[path] = node
        return values

    def _run_trial(self) -> int:
        """Run the next trial.

        :return: 0, or the number of the signal that ended the trial, which is then queued again.
        """
        from optuna import TrialPruned
        from optuna.trial import TrialState

        trial = self._study.ask()
        self._study.sampler = self._sampler(trial.number)
        trial.set_user_attr("process", self._lock.name)
        values = {path: distribution.suggest(trial, path) for path, distribution in self.settings.varied.items()}
        print_line(f"Trial {trial.number}: {_listed(values)}")
        curves: list[_LearningCurve] = []
        started = time.monotonic()
        state, value, outcome = TrialState.COMPLETE, None, ""
        try:
            for seed in self.settings.seeds:
                settings = self._settings_of_run(trial.number, values, seed)
                offset = len(curves) * self._stride
                summaries = self._summaries(settings)
                curves.append(_LearningCurve(trial, self.settings, self._behavior, summaries, offset))
                if ended_by := _train(settings, curves[-1]):
                    raise KeyboardInterrupt(ended_by)
            value = float(np.mean([curve.value for curve in curves]))
            outcome = f"value {value:.4g}"
        except TrialPruned:
            state, outcome = TrialState.PRUNED, f"pruned after {curves[-1].points[-1][0]} steps of seed {seed}"
        except (KeyboardInterrupt, OutputClosedError) as stop:
            self._study.tell(trial, state=TrialState.FAIL)
            self._study.enqueue_trial(trial.params)
            if isinstance(stop, OutputClosedError):
                raise
            return int(stop.args[0]) if stop.args else 2
        except Exception as error:  # invalid values can cause any error in a training; other values may be valid
            state = TrialState.FAIL
            reason = str(error) if isinstance(error, UnityGymError) else f"{type(error).__name__}: {error}"
            trial.set_user_attr("error", reason)
            outcome = f"failed: {reason}"
        solved = [curve.solved_at for curve in curves if curve.solved_at is not None]
        if state == TrialState.COMPLETE and len(solved) == len(curves):
            trial.set_user_attr("steps", float(np.mean(solved)))
            outcome += f", target achieved after {np.mean(solved):.0f} steps"
        trial.set_user_attr("seconds", round(time.monotonic() - started, 1))
        trial.set_user_attr("curves", [curve.points for curve in curves])
        self._study.tell(trial, value, state)
        print_line(f"Trial {trial.number}: {outcome}")
        return 0

    def _settings_of_run(self, number: int, values: Mapping[str, Value], seed: int) -> RunSettings:
        """Return the settings of one run of a trial."""
        run: dict[str, object] = {
            "env_settings.seed": seed,
            "checkpoint_settings.run_id": f"trial-{number}-seed-{seed}",
            "checkpoint_settings.results_dir": str(self.folder),
            "checkpoint_settings.force": True,
            "checkpoint_settings.resume": False,
            "checkpoint_settings.inference": False,
        }
        settings = self._load(values, run)
        if (initial := settings.checkpoint_settings.initialize_from) is not None:  # a run in the folder of the sweep
            settings = self._load(
                values, run | {"checkpoint_settings.initialize_from": str((self._results / initial).resolve())}
            )
        return settings

    def _write_results(self) -> FrozenTrial | None:
        """Write table, image and the best configuration; return the best trial, if any was completed."""
        trials = [trial for trial in self._study.trials if _counts(trial) and trial.state.is_finished()]
        names = list(self.settings.varied)
        text = io.StringIO(newline="")
        lines = csv.writer(text)
        lines.writerow([*_COLUMNS, *names, "error"])
        for trial in trials:
            attributes = trial.user_attrs
            own = [
                trial.number,
                trial.state.name.lower(),
                trial.value,
                attributes.get("steps"),
                attributes.get("seconds"),
            ]
            lines.writerow([*own, *(trial.params.get(name) for name in names), attributes.get("error")])
        write(self.folder / "trials.csv", text.getvalue())
        completed = [trial for trial in trials if trial.state.name == "COMPLETE"]
        best = max(completed, key=lambda trial: trial.value or 0.0, default=None)
        if best is not None:
            tree = resolved_configuration(self._load(best.params))
            del tree["checkpoint_settings"]  # name and folder of a run are given when it is started
            write(self.folder / "best.yaml", yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
            self._draw(trials, best)
        return best

    def _table(self) -> str:
        """Return the completed trials, the best first, as lines."""
        completed = [trial for trial in self._study.trials if trial.state.name == "COMPLETE"]
        names = list(self.settings.varied)
        rows = [["trial", "value", "steps", *(name.rpartition(".")[2] for name in names)]]
        for trial in sorted(completed, key=lambda trial: -(trial.value or 0.0)):
            steps = trial.user_attrs.get("steps")
            own = [str(trial.number), f"{trial.value:.4g}", "-" if steps is None else f"{steps:.0f}"]
            rows.append([*own, *(_shown(trial.params[name]) for name in names)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)

    def _draw(self, trials: list[FrozenTrial], best: FrozenTrial) -> None:
        """Draw `trials.png`: the learning curves of all trials, and their values over each setting."""
        from matplotlib.figure import Figure

        varied = self.settings.varied
        figure = Figure(figsize=(8, 4.5 + 2.5 * -(-len(varied) // 3)), layout="constrained")
        rows = 1 + -(-len(varied) // 3)
        grid = figure.add_gridspec(rows, 3, height_ratios=[2.0] + [1.0] * (rows - 1))
        axes = figure.add_subplot(grid[0, :])
        for trial in sorted(trials, key=lambda trial: trial.number == best.number):
            first = f"trial {trial.number}, the best" if trial.number == best.number else None
            look = {"color": "C0", "linewidth": 2.0} if first else {"color": "gray", "linewidth": 0.8, "alpha": 0.6}
            for curve in trial.user_attrs.get("curves", []):
                if curve:
                    axes.plot(*np.array(curve).T, label=first, **look)  # type: ignore[arg-type]
                    first = None
        axes.set(xlabel="timesteps", ylabel=self.settings.metric)
        axes.grid(alpha=0.3)
        axes.legend()
        completed = [trial for trial in trials if trial.state.name == "COMPLETE"]
        values = [trial.value or 0.0 for trial in completed]
        for number, (path, distribution) in enumerate(varied.items()):
            axes = figure.add_subplot(grid[1 + number // 3, number % 3])
            given = [trial.params[path] for trial in completed]
            if distribution.choice is None:
                axes.scatter(given, values)
                axes.set_xscale("log" if distribution.is_logarithmic else "linear")
            else:
                axes.scatter([distribution.choice.index(value) for value in given], values)
                axes.set_xticks(range(len(distribution.choice)), [_shown(value) for value in distribution.choice])
            axes.set(xlabel=path.rpartition(".")[2], ylabel="value")
            axes.grid(alpha=0.3)
        save_figure(figure, self.folder / "trials.png")


def _train(settings: RunSettings, curve: _LearningCurve) -> int:
    """Train one run, and return 0, or the number of the signal that ended it."""
    try:
        return train(settings, [curve])
    except _RunEnd:
        return 0


def _counts(trial: FrozenTrial) -> bool:
    """Return whether a trial counts towards the number of trials; it does not if it waits, or was interrupted."""
    from optuna.trial import TrialState

    if trial.state == TrialState.FAIL:
        return "error" in trial.user_attrs
    return trial.state != TrialState.WAITING


def _listed(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{path} {_shown(value)}" for path, value in values.items())


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _require_whole(study: Path) -> None:
    """Check that a study ends with a complete line, as later ones would be appended to a part of a line.

    :raises UnityGymError: If a line is incomplete, such as that of a process that was killed while it wrote it.
    """
    for number, line in enumerate(study.read_bytes().splitlines(keepends=True), 1):
        try:
            json.loads(line)
        except ValueError:
            line = b""
        if not line.endswith(b"\n"):
            raise UnityGymError(
                f"{study}, line {number} is incomplete or damaged. Delete it and all later lines, then continue with "
                "--resume"
            )
