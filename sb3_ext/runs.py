"""The results folder of a training run.

    results/<run-id>/configuration.yaml                the settings, with every value spelled out
    results/<run-id>/learning_curve.png                mean reward over steps
    results/<run-id>/<behavior>.onnx                   the newest network, for Unity
    results/<run-id>/<behavior>/<behavior>-<step>.zip  checkpoints: `load` of `sb3_ext.PPO`, `SAC` … reads them
    results/<run-id>/<behavior>/<behavior>-<step>.onnx their networks, for Unity
    results/<run-id>/<behavior>/last_replay_buffer.npz what SAC remembers, with `save_replay_buffer`
    results/<run-id>/<behavior>/rewards.csv            what the learning curve shows
    results/<run-id>/<behavior>/events.…               for TensorBoard
    results/<run-id>/run_logs/                         players' logs, training_status.json, timers.json

Every file but the logs is written under a temporary name first and then renamed, so that none is ever half-written.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import yaml
from stable_baselines3.common.save_util import load_from_zip_file

from sb3_ext.ppo import PPO
from sb3_ext.sac import SAC
from sb3_ext.settings import RunSettings, dump
from unity_gym.errors import UnityGymError

_CONFIGURATION, _LOGS, _REPLAY_BUFFER = "configuration.yaml", "run_logs", "last_replay_buffer.npz"


class Summary(NamedTuple):
    """One line of `rewards.csv`: the episodes that ended since the one before. `seconds` is since the run was begun."""

    step: int
    seconds: float
    mean_reward: float
    std_reward: float
    episodes: int


def write(path: Path, content: bytes | str | Callable[[BinaryIO], None]) -> None:
    """Write a file so that there is never half of it.

    :param content: all of it, or what writes it into an open file
    :raises UnityGymError: it cannot be written
    """
    partial = path.with_name(f".{path.name}.partial")
    with _saving(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnityGymError(
            f"{path} cannot be written: {error.strerror}. Make room there, then go on with --resume"
        ) from error


class Run:
    """The folder of one run.

    :param settings: of the run
    :raises UnityGymError: there is such a run, and neither `resume` nor `force`; there is none to resume; or `force`
        would delete what is no run
    """

    def __init__(self, settings: RunSettings) -> None:
        asked = settings.checkpoint_settings
        self.results = Path(asked.results_dir)
        self.folder = self.results / asked.run_id
        self.logs = self.folder / _LOGS
        is_run = (self.folder / _CONFIGURATION).is_file()
        exists = self.folder.exists() and (not self.folder.is_dir() or bool(self._content()))
        if asked.resume and asked.force:
            raise UnityGymError("--resume goes on with a run and --force deletes it: type one of them")
        if asked.inference and not asked.resume:
            raise UnityGymError("--inference shows what a run has learned: type --resume too, and its --run-id")
        if asked.resume and not is_run:
            raise UnityGymError(
                f"{self.folder} is no run that could go on; {self._known_runs()}. Correct --run-id, or leave --resume "
                "out to begin one"
            )
        if exists and not asked.resume and not asked.force:
            raise UnityGymError(
                f"{self.folder} exists. Type --resume to go on with it, --force to delete it and begin anew, or "
                "another --run-id"
            )
        if exists and asked.force and not is_run:
            raise UnityGymError(f"{self.folder} is no run (it has no {_CONFIGURATION}): type another --run-id")
        self._is_new = not asked.resume
        self._status: dict[str, Any] = {}
        if not self._is_new:
            self._status = _read_json(self.logs / "training_status.json")
        self.seconds_before = float(self._status.get("metadata", {}).get("seconds", 0))

    def begin(self, settings: RunSettings) -> None:
        """Write the settings; with `force`, delete the run that was there, but for the logs."""
        if self._is_new:
            for entry in self._content():
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        tree = yaml.safe_load(dump(settings))
        for key in ("base_port", "num_areas"):  # they mean free ports and the scene's own number where they are absent
            if key not in settings.env_settings.model_fields_set:
                del tree["env_settings"][key]
        write(self.folder / _CONFIGURATION, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))

    def _content(self) -> list[Path]:
        return [entry for entry in self.folder.iterdir() if entry.name != _LOGS] if self.folder.is_dir() else []

    def _known_runs(self) -> str:
        known = sorted(path.parent.name for path in self.results.glob(f"*/{_CONFIGURATION}"))
        return f"{self.results} has {', '.join(known) or 'no runs'}"

    def checkpoints(self, behavior: str, keep: int = 0) -> Checkpoints:
        """Those of a behavior."""
        return Checkpoints(self.folder / behavior, keep, self._status.setdefault(behavior, {}))

    def lesson(self, parameter: str) -> dict[str, Any]:
        """What `training_status.json` tells of the lessons of a parameter: change it, and it is written with it."""
        told: dict[str, Any] = self._status.setdefault(parameter, {})
        return told

    def initial(self, run_id: str, behavior: str) -> Path:
        """The newest checkpoint of a behavior in another run.

        :raises UnityGymError: there is none
        """
        folder = self.results / run_id
        newest = Checkpoints(folder / behavior).newest()
        if newest is None:
            raise UnityGymError(
                f"{folder} has no checkpoint of {behavior}; {self._known_runs()}. Correct --initialize-from"
            )
        return newest

    def initial_file(self, path: str, behavior: str) -> Path:
        """The checkpoint that `init_path` names: a file, or the folder of a behavior's checkpoints.

        :raises UnityGymError: there is none
        """
        found = Checkpoints(Path(path)).newest() if Path(path).is_dir() else Path(path)
        if found is None:
            raise UnityGymError(f"{path} has no checkpoint: correct behaviors.{behavior}.init_path")
        return found

    def write_status(self, seconds: float, timers: dict[str, Any]) -> None:
        """Write `training_status.json` and `timers.json`."""
        self._status.setdefault("metadata", {}).update(
            stats_format_version="0.3.0",
            unity_gym_version=version("unity-gym"),
            torch_version=torch.__version__,
            seconds=round(seconds, 3),
        )
        write(self.logs / "training_status.json", json.dumps(self._status, indent=2))
        write(self.logs / "timers.json", json.dumps(timers, indent=2))

    def draw(self, curves: dict[str, list[Summary]]) -> None:
        """Draw `learning_curve.png`: the mean reward of each behavior over its steps, ± one standard deviation."""
        from matplotlib.figure import Figure  # takes as long to import as some runs take to a first summary

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, curve in curves.items():
            if curve:
                steps, _, mean, std, _ = np.array(curve).T
                axes.plot(steps, mean, marker=".", label=name)
                axes.fill_between(steps, mean - std, mean + std, alpha=0.2)
        axes.set(title=self.folder.name, xlabel="agent steps", ylabel="reward of an episode")
        axes.grid(alpha=0.3)
        if any(curves.values()):
            axes.legend()
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120)
        write(self.folder / "learning_curve.png", picture.getvalue())


class Checkpoints:
    """The checkpoints of one behavior.

    :param folder: where they are; its name is the behavior's
    :param keep: how many; 0 or less for all
    :param told: what `training_status.json` tells of the behavior, which this keeps up to date
    """

    def __init__(self, folder: Path, keep: int = 0, told: dict[str, Any] | None = None) -> None:
        self.folder, self._keep = folder, keep
        self.told = {} if told is None else told

    def by_step(self) -> dict[int, Path]:
        """All of them, the oldest first."""
        found = {}
        for path in self.folder.glob("*.zip"):
            step = path.stem.removeprefix(f"{self.folder.name}-")
            if step.isdecimal():
                found[int(step)] = path
        return dict(sorted(found.items()))

    def newest(self) -> Path | None:
        """The one with most steps, or None."""
        return next(reversed(self.by_step().values()), None)

    def save(self, model: PPO | SAC, reward: float | None) -> None:
        """Write one, and delete the oldest that are too many.

        :param reward: newest mean of an episode
        :raises UnityGymError: it cannot be written
        """
        step = model.num_timesteps
        path = self.folder / f"{self.folder.name}-{step}.zip"
        model.random_states = _random_states()  # type: ignore[union-attr]
        content = io.BytesIO()
        model.save(content)
        # The network first: where there is a checkpoint, there is its network too.
        with _saving(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            model.export_onnx(path.with_suffix(".onnx"))
        try:
            write(path, content.getvalue())
        except UnityGymError:
            path.with_suffix(".onnx").unlink()
            raise
        entry = {
            "steps": step,
            "file_path": path.with_suffix(".onnx").as_posix(),
            "reward": reward,
            "creation_time": time.time(),
            "auxillary_file_paths": [path.as_posix()],
        }
        kept = self.by_step()
        if self._keep > 0:
            for old in list(kept)[: -self._keep]:
                kept[old].with_suffix(".onnx").unlink(missing_ok=True)
                kept.pop(old).unlink()
        known = [other for other in self.told.get("checkpoints", []) if other["steps"] in kept]
        self.told["checkpoints"] = [other for other in known if other["steps"] != step] + [entry]

    def save_replay_buffer(self, model: PPO | SAC) -> None:
        """Write what a model remembers, in place of what was written before.

        :raises UnityGymError: it cannot be written
        """
        assert isinstance(model, SAC)
        write(self.folder / _REPLAY_BUFFER, model.replay_buffer.save)

    def load_replay_buffer(self, model: PPO | SAC) -> bool:
        """Let a model remember what was written.

        :return: whether anything was
        :raises UnityGymError: it cannot be read, or is of another behavior
        """
        assert isinstance(model, SAC)
        path = self.folder / _REPLAY_BUFFER
        if path.exists():
            model.load_replay_buffer(path)
        return path.exists()

    def publish(self) -> Path:
        """Write the newest network as the run's result, beside the folder of the behavior."""
        newest = self.newest()
        assert newest is not None
        path = self.folder.with_name(f"{self.folder.name}.onnx")
        write(path, newest.with_suffix(".onnx").read_bytes())
        last = self.told.get("checkpoints", [])[-1:]
        self.told["final_checkpoint"] = {**(last[0] if last else {}), "file_path": path.as_posix()}
        return path


def restore(model: PPO | SAC, path: Path, resume: bool) -> None:
    """Give a model the networks, statistics and optimiser of a checkpoint.

    :param resume: its steps and the random states too
    :raises UnityGymError: the checkpoint cannot be read, or is of another network or behavior
    """
    try:
        data, states, _ = load_from_zip_file(path, device=model.device)
    except FileNotFoundError:
        raise UnityGymError(f"{path}: there is no such checkpoint. Correct the path") from None
    except Exception as error:  # whatever a file that is no checkpoint makes zipfile, json, pickle and torch raise
        raise UnityGymError(f"{path} is no checkpoint of this version: {error}. Delete it, or use another") from error
    parameters: dict[str, Any] = dict(states)
    if not resume:  # then cloning begins anew, whatever the other run cloned
        parameters.pop("cloning", None)
        if model.cloning is not None:
            parameters["cloning"] = model.cloning.state_dict()
    try:
        model.set_parameters(parameters, exact_match=True, device=model.device)
    except (RuntimeError, ValueError, KeyError) as error:
        # torch's message lists every tensor in a line of its own.
        reason = " ".join(str(error).split())
        raise UnityGymError(
            f"{path} is of another network or behavior than the settings describe: {reason:.300}. Give the "
            "network_settings, reward_signals and hyperparameters that it was trained with, or begin anew with another "
            "--run-id"
        ) from error
    if resume:
        assert data is not None
        for counter in model.counters:
            setattr(model, counter, data[counter])
        model.self_play = data.get("self_play")
        if "random_states" in data:  # not so where a script saved the model
            _set_random_states(data["random_states"])


class Curve:
    """`rewards.csv` of one behavior.

    :param path: of the file
    :param until: forget what came after this step, which the run was killed after; None forgets all
    """

    def __init__(self, path: Path, until: int | None) -> None:
        self._path = path
        self.summaries: list[Summary] = []
        if until is not None and path.exists():
            with path.open(newline="") as file:
                lines = [
                    Summary(int(a), float(b), float(c), float(d), int(e)) for a, b, c, d, e in [*csv.reader(file)][1:]
                ]
            self.summaries = [line for line in lines if line.step <= until]

    def add(self, summary: Summary) -> None:
        """Append a line."""
        self.summaries.append(summary)

    def save(self) -> None:
        """Write the file."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(Summary._fields)
        writer.writerows(self.summaries)
        write(self._path, text.getvalue())


class Timers:
    """How long each part of the loop took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._spent: dict[str, tuple[float, int]] = {}
        self.gauges: dict[str, dict[str, float]] = {}

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count what happens within to this part."""
        began = time.monotonic()
        try:
            yield
        finally:
            total, count = self._spent.get(part, (0.0, 0))
            self._spent[part] = (total + time.monotonic() - began, count + 1)

    def gauge(self, name: str, value: float) -> None:
        """Note the newest of a series of values."""
        known = self.gauges.get(name, {"min": value, "max": value, "count": 0})
        self.gauges[name] = {
            "value": value,
            "min": min(known["min"], value),
            "max": max(known["max"], value),
            "count": known["count"] + 1,
        }

    def tree(self) -> dict[str, Any]:
        """As ML-Agents writes them, in seconds."""
        total = self.seconds
        inner = sum(spent for spent, _ in self._spent.values())
        return {
            "name": "root",
            "total": total,
            "count": 1,
            "self": total - inner,
            "children": {name: {"total": spent, "count": n, "self": spent} for name, (spent, n) in self._spent.items()},
            "gauges": self.gauges,
        }


def _random_states() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UnityGymError(f"{path} is no JSON: {error}. Delete it; the run goes on without it") from error
    return tree if isinstance(tree, dict) else {}
