"""The results folder of a training run.

    results/<run-id>/configuration.yaml                the settings, which ML-Agents can read, too
    results/<run-id>/learning_curve.png                mean reward over steps, from the first summary on
    results/<run-id>/<behavior>.onnx                   the latest network, for Unity
    results/<run-id>/<behavior>/<behavior>-<step>.zip  checkpoints: `load` of `sb3_ext.PPO`, `SAC` and `POCA` reads them
    results/<run-id>/<behavior>/<behavior>-<step>.onnx their networks, for Unity
    results/<run-id>/<behavior>/last_replay_buffer.npz SAC's replay buffer, with `save_replay_buffer`
    results/<run-id>/<behavior>/experience-….npz       experience that was not used for training yet
    results/<run-id>/<behavior>/rewards.csv            the data of the learning curve
    results/<run-id>/<behavior>/updates.jsonl          the log of each update: one JSON object per line
    results/<run-id>/<behavior>/events.…               for TensorBoard
    results/<run-id>/tracking.json                     ids of the run at the trackers of `--track`
    results/<run-id>/run_logs/                         players' logs, training_status.json, timers.json, lock

Every file except the logs, `updates.jsonl` and TensorBoard's is written under a temporary name first and then
renamed, so that none is ever incomplete.
Only data is read back: no file of a run can execute code. Checkpoints of `mlagents-learn` can be initial weights.

A resumed run, also after it was killed, continues from its latest checkpoint: networks, statistics of observations,
optimizers, reward signals, counters, schedules, random numbers of Python, NumPy and torch, and lessons. With self-play,
snapshots, ratings and the learning team are restored, too. A behavior without a checkpoint starts again, with the
initial weights of the settings, if any. A resumed run differs from an uninterrupted one in this:

- The players are launched again, so that all episodes and matches restart, with new opponents. The random numbers of
  the scene repeat those from the start of the run.
- Timesteps after the latest checkpoint are repeated. Their lines in `rewards.csv` and `updates.jsonl` are deleted, and
  TensorBoard hides their points.
- SAC starts with an empty replay buffer, and waits for `buffer_init_steps` again, unless `save_replay_buffer` is set.
- Experience that was not used for training is part of the next update, as trajectories that were cut.
- The means of the incomplete summary restart.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from sb3_ext.files import locked, write
from sb3_ext.mlagents_checkpoint import is_mlagents_run
from sb3_ext.run_checkpoints import Checkpoints, newest_in
from sb3_ext.run_logs import Summary
from sb3_ext.settings import BehaviorSettings, FixedSettings, RunSettings, dump, load
from unity_gym.errors import UnityGymError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIGURATION, _LOGS, _STATUS, _TIMERS = "configuration.yaml", "run_logs", "training_status.json", "timers.json"
_LONGEST = 200  # bytes of a folder's name, to which checkpoints add their timesteps; file systems take 255


def every_value(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as a tree with every value, except for ports and areas that are not given."""
    return _without_open_values(settings, settings.model_dump())


def resolved_configuration(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as a YAML tree that can be read again, as in `dump`."""
    return _without_open_values(settings, yaml.safe_load(dump(settings)))


def _without_open_values(settings: RunSettings, tree: dict[str, Any]) -> dict[str, Any]:
    for key in ("base_port", "num_areas"):  # if absent, ports are free ones and the scene sets the number of areas
        if key not in settings.env_settings.model_fields_set:
            del tree["env_settings"][key]
    return tree


def _leaves(tree: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries with their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value


def _behavior_leaves(settings: RunSettings) -> dict[str, Any]:
    """Return the settings of the behaviors with their dotted keys; without named ones, those of `default_settings`."""
    tree = every_value(settings)
    key = "behaviors" if tree["behaviors"] else "default_settings"
    return dict(_leaves(tree[key] or {}, key))


def _needs_run(behavior: BehaviorSettings) -> bool:
    """Whether a behavior can act with the policy of a run alone."""
    return behavior.init_path is None and not isinstance(behavior, FixedSettings)


class _SavedCheckpoint(TypedDict):
    steps: int


class _StatusBlock(TypedDict, total=False):
    """Values in a block of `training_status.json` that are read back: of the run, a behavior or a lesson."""

    seconds: float
    checkpoints: list[_SavedCheckpoint]
    final_checkpoint: dict[str, Any]
    recent: list[float]
    episodes: int
    measured: float | None


_STATUS_FORM = TypeAdapter[dict[str, _StatusBlock]](dict[str, _StatusBlock])


def can_be_folder(name: str) -> bool:
    """Whether a folder in that of a run can have the name of a behavior."""
    path = Path(name)
    is_too_long = any(len(os.fsencode(part)) > _LONGEST for part in path.parts)
    return not (is_too_long or path.anchor) and {"..", _LOGS}.isdisjoint(path.parts)


class Run:
    """Folder of one run.

    With `inference`, it is the folder of the policies, which is not changed.

    :param settings: Settings of the run.
    :raises UnityGymError: If the run exists, with neither `resume` nor `force`; if there is no run to resume, or it is
        one of `mlagents-learn`; if `inference` has no policies; or if `force` would delete a folder that is not a run.
    """

    def __init__(self, settings: RunSettings) -> None:
        asked = settings.checkpoint_settings
        self.results = Path(asked.results_dir)
        self.folder = self.results / asked.run_id
        if asked.inference and not asked.resume and asked.initialize_from is not None:
            self.folder = self.results / asked.initialize_from
        self.logs = self.folder / _LOGS
        is_run = (self.folder / CONFIGURATION).is_file()
        if asked.resume and asked.force:
            raise UnityGymError("--resume continues a run and --force deletes it: give one of them")
        if asked.inference:
            self._require_policies(settings, is_run)
        elif asked.resume:
            self._require_resumable(is_run)
        else:
            self._require_free(asked.force, is_run)
            self._require_other_sources(settings)
        self._is_new = not (asked.resume or asked.inference)
        self._status: dict[str, Any] = {}
        if asked.resume or (asked.inference and asked.initialize_from is not None):  # not with init_path alone
            self._status = read_status(self.folder)
        self.seconds_before = float(self._status.get("metadata", {}).get("seconds", 0))

    def _require_policies(self, settings: RunSettings, is_run: bool) -> None:
        asked = settings.checkpoint_settings
        if asked.resume or asked.initialize_from is not None:
            if not is_run:
                option = "--run-id" if asked.resume else "--initialize-from"
                raise UnityGymError(f"{self.folder} is no run; {self._describe_runs()}. Correct {option}")
        elif all(_needs_run(block) for block in settings.behavior_blocks):
            raise UnityGymError(
                "--inference needs trained policies: give --resume and the --run-id of a run, --initialize-from, or "
                "init_path in the settings of the behaviors"
            )

    def _require_resumable(self, is_run: bool) -> None:
        if not is_run:
            raise UnityGymError(
                f"{self.folder} is no run that could be resumed; {self._describe_runs()}. Correct --run-id, or leave "
                "--resume out to start one"
            )
        if is_mlagents_run(self.folder):
            raise UnityGymError(
                f"{self.folder} is a run of mlagents-learn, which only mlagents-learn can resume. Give "
                f"--initialize-from {self.folder.name} and another --run-id to start from its networks"
            )

    def _require_free(self, force: bool, is_run: bool) -> None:
        exists = self.folder.exists() and (not self.folder.is_dir() or bool(self._content()))
        if exists and not force:
            raise UnityGymError(
                f"{self.folder} exists. Give --resume to continue it, --force to delete it and start from scratch, or "
                "another --run-id"
            )
        if exists and not is_run:
            raise UnityGymError(f"{self.folder} is no run (it has no {CONFIGURATION}): give another --run-id")

    def _require_other_sources(self, settings: RunSettings) -> None:
        """Check that initial weights are in no file that `force` deletes.

        :raises UnityGymError: If they are.
        """
        asked = settings.checkpoint_settings
        sources = [Path(block.init_path) for block in settings.behavior_blocks if block.init_path is not None]
        if asked.initialize_from is not None:
            sources.append(self.results / asked.initialize_from)
        folder = self.folder.resolve()
        if asked.force and any(folder in (path.resolve(), *path.resolve().parents) for path in sources):
            raise UnityGymError(
                f"--force deletes {self.folder}, which has the initial weights of the new run: give another --run-id"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, so that no other process trains in it.

        :raises UnityGymError: If another process does, or the folder cannot be written.
        """
        with locked(self.logs / "lock") as is_locked:
            if not is_locked:
                raise UnityGymError(
                    f"another process trains in {self.folder}: wait until it ends, or give another --run-id"
                )
            yield

    def changes(self, settings: RunSettings) -> str | None:
        """Return a line about the behaviors' settings that differ from those with which a resumed run was saved.

        :return: None without differences, for other runs, and if the file of the settings is damaged.
        """
        if not settings.checkpoint_settings.resume or settings.checkpoint_settings.inference:
            return None
        path = self.folder / CONFIGURATION
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                saved = _behavior_leaves(load(path))
        except UnityGymError:
            return None
        given = _behavior_leaves(settings)
        changed = [key for key in {**given, **saved} if given.get(key) != saved.get(key)]
        if not changed:
            return None
        parts = [f"{key} {json.dumps(given.get(key))} (was {json.dumps(saved.get(key))})" for key in changed]
        return f"Settings that differ from {path}: {', '.join(parts)}"

    def start(self, settings: RunSettings) -> None:
        """Write the settings; with `force`, delete the existing run first, except for the players' logs.

        Also delete incomplete files of a run that was killed while it wrote them, and the network of a checkpoint that
        it did not write.
        """
        if self._is_new:
            for name in (_STATUS, _TIMERS):
                (self.logs / name).unlink(missing_ok=True)
            for entry in self._content():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                elif entry.name != CONFIGURATION:  # replaced below, so that the folder is a run at each moment
                    entry.unlink()
        else:
            names = filter(can_be_folder, {*self._status, *settings.behaviors})
            behaviors = [self.folder / name for name in names]
            folders = {self.folder, self.logs, *behaviors, *(folder.parent for folder in behaviors)}
            partial = [path for folder in folders for path in folder.glob(".*.partial")]
            for path in (*partial, *(path for folder in behaviors for path in Checkpoints(folder).incomplete())):
                path.unlink()
        self._configuration = yaml.safe_dump(resolved_configuration(settings), sort_keys=False, allow_unicode=True)
        write(self.folder / CONFIGURATION, self._configuration)

    def _content(self) -> list[Path]:
        rest = (_LOGS, f".{CONFIGURATION}.partial")  # the latter of a run that was killed at its start
        return [entry for entry in self.folder.iterdir() if entry.name not in rest] if self.folder.is_dir() else []

    def _describe_runs(self) -> str:
        run_ids = sorted(path.parent.name for path in self.results.glob(f"*/{CONFIGURATION}"))
        return f"{self.results} has {', '.join(run_ids) or 'no runs'}"

    def checkpoints(self, behavior: str, keep: int = 0) -> Checkpoints:
        """Return the checkpoints of a behavior."""
        return Checkpoints(self.folder / behavior, keep, self._status.setdefault(behavior, {}))

    def lesson(self, parameter: str) -> dict[str, Any]:
        """Return the state of a parameter's lessons in `training_status.json`.

        Changes of the returned dict are written with the status.
        """
        status: dict[str, Any] = self._status.setdefault(parameter, {})
        return status

    def initial(self, settings: RunSettings, behavior: str) -> Path | None:
        """Return the checkpoint with the initial weights of a behavior, of this package or of `mlagents-learn`.

        :param behavior: Name of the behavior, without a team.
        :return: Path of the checkpoint; None without `init_path` and `initialize_from`.
        :raises UnityGymError: If it does not exist.
        """
        run_id, given = settings.checkpoint_settings.initialize_from, settings.behavior(behavior).init_path
        if given is not None:
            path = Path(given)
            if run_id is not None and path.name == given:  # a bare file name is a checkpoint of that run
                path = self.results / run_id / behavior / given
            if path.suffix == ".pt" and not path.exists() and path.with_suffix(".zip").exists():
                path = path.with_suffix(".zip")  # in settings for mlagents-learn, the same checkpoint of this package
            found = newest_in(path) if path.is_dir() else path
            if found is None:
                raise UnityGymError(f"{path} has no checkpoint: correct behaviors.{behavior}.init_path")
            if not found.exists():
                names = [file.name for file in found.parent.glob("*") if file.suffix in (".zip", ".pt")]
                names.sort(key=lambda name: (len(name), name))  # by step
                raise UnityGymError(
                    f"{found}: there is no such checkpoint. Correct the path: {found.parent} has "
                    f"{', '.join(names) or 'no checkpoints'}"
                )
            return found
        if run_id is None:
            return None
        found = newest_in(self.results / run_id / behavior)
        if found is None:
            raise UnityGymError(
                f"{self.results / run_id} has no checkpoint of {behavior}; {self._describe_runs()}. Correct "
                "--initialize-from"
            )
        return found

    def policy_file(self, settings: RunSettings, behavior: str) -> Path:
        """Return the checkpoint with the policy of a behavior, with `inference`.

        :raises UnityGymError: If there is none.
        """
        if settings.checkpoint_settings.resume:
            found = newest_in(self.folder / behavior)
        else:
            found = self.initial(settings, behavior)
        if found is None:
            raise UnityGymError(f"{self.folder} has no checkpoint of {behavior}: train it without --inference first")
        return found

    def write_status(self, seconds: float, timers: dict[str, Any]) -> None:
        """Write `training_status.json` and `timers.json`, and the settings again if the folder was deleted."""
        if not (self.folder / CONFIGURATION).exists():
            write(self.folder / CONFIGURATION, self._configuration)
        self._status.setdefault("metadata", {}).update(
            stats_format_version="0.3.0",
            unity_gym_version=version("unity-gym"),
            torch_version=torch.__version__,
            seconds=round(seconds, 3),
        )
        write(self.logs / _STATUS, json.dumps(self._status, indent=2))
        write(self.logs / _TIMERS, json.dumps(timers, indent=2))

    def draw(self, curves: dict[str, list[Summary]]) -> None:
        """Draw `learning_curve.png`: the mean reward of each behavior over its steps, ± one standard deviation.

        :param curves: Summaries by behavior; at least one has some.
        """
        from matplotlib.figure import Figure  # the import takes as long as some runs take to their first summary

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, curve in curves.items():
            if curve:
                steps, _, mean, std, _ = np.array(curve).T
                axes.plot(steps, mean, marker=".", label=name)
                axes.fill_between(steps, mean - std, mean + std, alpha=0.2)
        axes.set(xlabel="agent steps", ylabel="reward of an episode")
        axes.grid(alpha=0.3)
        for label in axes.legend().get_texts():
            label.set_parse_math(False)
        save_figure(figure, self.folder / "learning_curve.png")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG image, with the name of its folder as the title of the first axes."""
    title = os.fsencode(path.parent.name).decode(errors="replace")  # a name need not be UTF-8
    figure.axes[0].set_title(title, parse_math=False)
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters of names that the font does not have
        figure.savefig(image, format="png", dpi=120)
    write(path, image.getvalue())


def read_status(folder: Path) -> dict[str, Any]:
    """Return the content of `training_status.json` in the folder of a run, {} if there is none.

    :raises UnityGymError: If it is damaged.
    """
    path = folder / _LOGS / _STATUS
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UnityGymError(f"{path} is no JSON: {error}. Delete it; the run continues without it") from error
    try:
        _STATUS_FORM.validate_python(tree, strict=True)
    except ValidationError as error:
        mistake = error.errors()[0]
        key = ".".join(map(str, mistake["loc"])) or "the file"
        raise UnityGymError(
            f"{path} has other content than a run writes: {key}: {mistake['msg']}. Delete it; the run continues "
            "without it"
        ) from error
    status: dict[str, Any] = tree
    return status
