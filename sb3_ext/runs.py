"""The results folder of a training run.

    results/<run-id>/configuration.yaml                the settings with every value
    results/<run-id>/learning_curve.png                mean reward over steps
    results/<run-id>/<behavior>.onnx                   the latest network, for Unity
    results/<run-id>/<behavior>/<behavior>-<step>.zip  checkpoints: `load` of `sb3_ext.PPO`, `SAC` and `POCA` reads them
    results/<run-id>/<behavior>/<behavior>-<step>.onnx their networks, for Unity
    results/<run-id>/<behavior>/last_replay_buffer.npz SAC's replay buffer, with `save_replay_buffer`
    results/<run-id>/<behavior>/experience-….npz       experience that was not used for training yet
    results/<run-id>/<behavior>/rewards.csv            the data of the learning curve
    results/<run-id>/<behavior>/updates.jsonl          the log of each update: one JSON object per line
    results/<run-id>/<behavior>/events.…               for TensorBoard
    results/<run-id>/tracking.json                     ids of the run at the trackers of `--track`
    results/<run-id>/run_logs/                         players' logs, training_status.json, timers.json

Every file except the logs, `updates.jsonl` and TensorBoard's is written under a temporary name first and then
renamed, so that none is ever incomplete.
Only data is read back: no file of a run can execute code. Checkpoints of `mlagents-learn` can be initial weights.

A resumed run, also after it was killed, continues from its latest checkpoint: networks, statistics of observations,
optimizers, reward signals, counters, schedules, random numbers of Python, NumPy and torch, and lessons. With self-play,
snapshots, ratings and the learning team are restored, too. It differs from an uninterrupted run in this:

- The players are launched again, so that all episodes and matches restart, with new opponents. The random numbers of
  the scene and of the action sampling repeat those from the start of the run.
- Timesteps after the latest checkpoint are repeated. Their lines in `rewards.csv` and `updates.jsonl` are deleted, and
  TensorBoard hides their points.
- SAC starts with an empty replay buffer, and waits for `buffer_init_steps` again, unless `save_replay_buffer` is set.
- Experience that was not used for training is part of the next update, as trajectories that were cut.
- The means of the incomplete summary restart.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import yaml

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from sb3_ext.mlagents_checkpoint import (
    MLAGENTS_CHECKPOINT,
    is_mlagents_run,
    load_actor,
    load_critic,
    read_mlagents_checkpoint,
)
from sb3_ext.policies import AgentPolicy
from sb3_ext.sac import SAC
from sb3_ext.self_play import SelfPlay
from sb3_ext.settings import RunSettings, dump
from unity_gym.errors import UnityGymError

CONFIGURATION, _LOGS, _REPLAY_BUFFER = "configuration.yaml", "run_logs", "last_replay_buffer.npz"
_ACTOR = ("body.", "head.")  # the networks of a policy that are required to act


class Summary(NamedTuple):
    """Line of `rewards.csv`: the episodes that ended since the last one. `seconds` counts from the run's start."""

    step: int
    seconds: float
    mean_reward: float
    std_reward: float
    episodes: int


def write(path: Path, content: bytes | str | Callable[[BinaryIO], None]) -> None:
    """Write a file so that it is never incomplete.

    :param content: Content of the file, or a function that writes it into an open file.
    :raises UnityGymError: If the file cannot be written.
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


def resolved_configuration(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as a YAML tree with every value, in a form that can be read again."""
    tree: dict[str, Any] = yaml.safe_load(dump(settings))
    for key in ("base_port", "num_areas"):  # if absent, ports are free ones and the scene sets the number of areas
        if key not in settings.env_settings.model_fields_set:
            del tree["env_settings"][key]
    return tree


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnityGymError(
            f"{path} cannot be written: {error.strerror}. Make room there, then continue with --resume"
        ) from error


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
        self._is_new = not (asked.resume or asked.inference)
        self._status: dict[str, Any] = {}
        if not self._is_new:
            self._status = _read_json(self.logs / "training_status.json")
        self.seconds_before = float(self._status.get("metadata", {}).get("seconds", 0))

    def _require_policies(self, settings: RunSettings, is_run: bool) -> None:
        asked, behaviors = settings.checkpoint_settings, [*settings.behaviors.values(), settings.default_settings]
        if asked.resume or asked.initialize_from is not None:
            if not is_run:
                option = "--run-id" if asked.resume else "--initialize-from"
                raise UnityGymError(f"{self.folder} is no run; {self._describe_runs()}. Correct {option}")
        elif all(behavior is None or behavior.init_path is None for behavior in behaviors):
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

    def start(self, settings: RunSettings) -> None:
        """Write the settings; with `force`, delete the existing run first, except for the logs.

        Also delete incomplete files of a run that was killed while it wrote them.
        """
        if self._is_new:
            for entry in self._content():
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        else:
            networks = [path for path in self.folder.glob("*/*.onnx") if not path.with_suffix(".zip").exists()]
            for path in (*self.folder.rglob(".*.partial"), *networks):
                path.unlink()
        tree = resolved_configuration(settings)
        write(self.folder / CONFIGURATION, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))

    def _content(self) -> list[Path]:
        return [entry for entry in self.folder.iterdir() if entry.name != _LOGS] if self.folder.is_dir() else []

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
            found = _newest_in(path) if path.is_dir() else path
            if found is None:
                raise UnityGymError(f"{path} has no checkpoint: correct behaviors.{behavior}.init_path")
            return found
        if run_id is None:
            return None
        found = _newest_in(self.results / run_id / behavior)
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
            found = _newest_in(self.folder / behavior)
        else:
            found = self.initial(settings, behavior)
        if found is None:
            raise UnityGymError(f"{self.folder} has no checkpoint of {behavior}: train it without --inference first")
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
        from matplotlib.figure import Figure  # the import takes as long as some runs take to their first summary

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
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=120)
        write(self.folder / "learning_curve.png", image.getvalue())


class Checkpoints:
    """Checkpoints of one behavior.

    :param folder: Folder of the checkpoints, with the name of the behavior.
    :param keep: Number of checkpoints to keep; 0 or less for all.
    :param status: State of the behavior in `training_status.json`, which is updated in place.
    """

    def __init__(self, folder: Path, keep: int = 0, status: dict[str, Any] | None = None) -> None:
        self.folder, self._keep = folder, keep
        self.status = {} if status is None else status

    def by_step(self) -> dict[int, Path]:
        """Return all checkpoints by timestep, the oldest first."""
        found = {}
        for path in self.folder.glob("*.zip"):
            step = path.stem.removeprefix(f"{self.folder.name}-")
            if step.isdecimal():
                found[int(step)] = path
        return dict(sorted(found.items()))

    def newest(self) -> Path | None:
        """Return the checkpoint with the most timesteps; None if there is none."""
        return next(reversed(self.by_step().values()), None)

    def save(
        self,
        model: UnityAlgorithm,
        reward: float | None,
        state: Mapping[str, Any] | None = None,
        deterministic: bool = False,
    ) -> None:
        """Write a checkpoint, and delete the oldest beyond the number to keep.

        :param model: Model to save.
        :param reward: Mean return of the latest episodes.
        :param state: Further state of the training, which `resume` returns; see `write_checkpoint`.
        :param deterministic: See `export_onnx`.
        :raises UnityGymError: If the checkpoint cannot be written.
        """
        step = model.num_timesteps
        path = self.folder / f"{self.folder.name}-{step}.zip"
        content = io.BytesIO()
        write_checkpoint(
            model,
            content,
            {
                "counters": {counter: getattr(model, counter) for counter in model.counters},
                "random": _random_states(),
                "self_play": None if model.self_play is None else model.self_play.state_dict(),
                "further": {} if state is None else state,
            },
        )
        # The network first, so that each checkpoint has its network.
        with _saving(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            model.export_onnx(path.with_suffix(".onnx"), deterministic)
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
        checkpoints = [other for other in self.status.get("checkpoints", []) if other["steps"] in kept]
        self.status["checkpoints"] = [other for other in checkpoints if other["steps"] != step] + [entry]

    def save_replay_buffer(self, model: UnityAlgorithm) -> None:
        """Write the replay buffer of a model, which replaces the previous file.

        :raises UnityGymError: If it cannot be written.
        """
        assert isinstance(model, SAC)
        write(self.folder / _REPLAY_BUFFER, model.replay_buffer.save)

    def load_replay_buffer(self, model: UnityAlgorithm) -> bool:
        """Load the replay buffer of a model.

        :return: Whether there is a file.
        :raises UnityGymError: If it cannot be read, or is incompatible with the behavior spec.
        """
        assert isinstance(model, SAC)
        path = self.folder / _REPLAY_BUFFER
        if path.exists():
            model.load_replay_buffer(path)
        return path.exists()

    def publish(self) -> Path:
        """Write the latest network as the result of the run, next to the folder of the behavior."""
        newest = self.newest()
        assert newest is not None
        path = self.folder.with_name(f"{self.folder.name}.onnx")
        write(path, newest.with_suffix(".onnx").read_bytes())
        last = self.status.get("checkpoints", [])[-1:]
        self.status["final_checkpoint"] = {**(last[0] if last else {}), "file_path": path.as_posix()}
        return path


def _newest_in(folder: Path) -> Path | None:
    """Return the latest checkpoint in the folder of a behavior, of this package or of `mlagents-learn`."""
    unity_checkpoint = folder / MLAGENTS_CHECKPOINT
    return Checkpoints(folder).newest() or (unity_checkpoint if unity_checkpoint.is_file() else None)


def resume(model: UnityAlgorithm, path: Path) -> dict[str, Any]:
    """Continue the training of a model from a checkpoint: networks, statistics, optimizers, counters, random numbers.

    :param model: Model, newly built from the settings.
    :param path: Path of the checkpoint.
    :return: Further state of the training that was passed to `Checkpoints.save`.
    :raises UnityGymError: If the checkpoint cannot be read, or is incompatible with the network or the behavior.
    """
    checkpoint = read_checkpoint(path, model.device)
    state = checkpoint.state
    if state is None:
        raise UnityGymError(
            f"{path} was saved by a script, not by a run, so that no run can be resumed from it. Give it as init_path"
        )
    try:
        model.set_parameters(checkpoint.parameters, exact_match=True, device=model.device)
    except (RuntimeError, ValueError, KeyError) as error:
        raise _of_another_network(path, error) from error
    for counter in model.counters:
        setattr(model, counter, state["counters"][counter])
    if state["self_play"] is not None:
        model.self_play = SelfPlay()
        model.self_play.load_state_dict(state["self_play"])
    _set_random_states(state["random"])
    further: dict[str, Any] = state["further"]
    return further


def start_from(model: UnityAlgorithm, path: Path) -> str | None:
    """Load the networks of a checkpoint into a new model where they have the same shapes: at least the actor.

    :param model: Model, newly built from the settings.
    :param path: Path of a checkpoint of this package or of `mlagents-learn`.
    :return: Line about the parts that start from scratch; None if there are none.
    :raises UnityGymError: If the checkpoint cannot be read, or its actor is incompatible with the network or behavior.
    """
    if path.suffix == ".pt":
        return _start_from_mlagents(model, path)
    checkpoint = read_checkpoint(path, model.device)
    parameters: dict[str, Any] = model.get_parameters()
    _require_actor(model.policy, checkpoint)
    fresh = []
    for name, own in parameters.items():
        saved = checkpoint.parameters.get(name, {})
        if name == "cloning":  # the demonstrations of this run differ
            continue
        if name == "policy.optimizer":
            if saved and _fit(checkpoint.parameters["policy"], model.policy.state_dict()):
                parameters[name] = saved
            else:
                fresh.append("optimizer")
            continue
        for part in sorted({_part(key) for key in own}):  # networks of the policy, reward signals
            own_part, saved_part = ({key: x[key] for key in x if _part(key) == part} for x in (own, saved))
            if _fit(own_part, saved_part):
                own.update({key: saved_part[key] for key in saved_part if key in own})
            else:
                fresh.append(part)
    model.set_parameters(parameters, exact_match=True, device=model.device)
    return f"starts with {path} except for {', '.join(sorted(fresh))}, which do not fit" if fresh else None


def load_policy(policy: AgentPolicy, path: Path) -> None:
    """Load the actor of a checkpoint of this package or of `mlagents-learn` into a policy.

    :raises UnityGymError: If the checkpoint cannot be read, or its actor is incompatible with the network or behavior.
    """
    if path.suffix == ".pt":
        load_actor(policy, read_mlagents_checkpoint(path))
        return
    checkpoint = read_checkpoint(path, policy.device)
    actor = _require_actor(policy, checkpoint)
    policy.load_state_dict({**policy.state_dict(), **actor})


def _start_from_mlagents(model: UnityAlgorithm, path: Path) -> str:
    checkpoint = read_mlagents_checkpoint(path)
    load_actor(model.policy, checkpoint)
    reason = load_critic(model.policy, checkpoint, [signal.name for signal in model.reward_signals])
    normalization = ", with the statistics of its observations" if model.policy.body.normalization is not None else ""
    if reason is None:
        return f"starts with the actor and critic of {path}{normalization}"
    return f"starts with the actor of {path}{normalization}, as {reason}"


def _require_actor(policy: AgentPolicy, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the actor of a checkpoint.

    :raises UnityGymError: If it is incompatible with the network or behavior.
    """
    own = _without_empty(policy.actor().state_dict())
    saved = _without_empty(checkpoint.parameters["policy"])
    actor = {name: part for name, part in saved.items() if name.startswith(_ACTOR)}
    for name in sorted(own.keys() | actor.keys()):
        shapes = [list(tree[name].shape) if name in tree else None for tree in (actor, own)]
        if shapes[0] != shapes[1]:
            raise _of_another_network(checkpoint.path, f"{name} has the shape {shapes[0]} there and {shapes[1]} here")
    return actor


def _part(key: str) -> str:
    return key.partition(".")[0]


def _fit(own: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Return whether two state dictionaries have the same names and shapes."""
    own, saved = _without_empty(own), _without_empty(saved)
    return own.keys() == saved.keys() and all(
        getattr(part, "shape", None) == getattr(saved[name], "shape", None) for name, part in own.items()
    )


def _without_empty(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters except for those of actions that the behavior does not have."""
    return {name: part for name, part in tensors.items() if not (isinstance(part, torch.Tensor) and not part.numel())}


def _of_another_network(path: Path, reason: object) -> UnityGymError:
    # torch's message has one line per tensor.
    text = " ".join(str(reason).split())
    return UnityGymError(
        f"{path} is of another network or behavior than the settings describe: {text:.300}. Give the "
        "network_settings, reward_signals and hyperparameters that it was trained with, or start from scratch with "
        "another --run-id"
    )


class Curve:
    """Learning curve of one behavior, `rewards.csv`.

    :param path: Path of the file.
    :param until: Delete lines after this step, which will be repeated; None deletes all.
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


class UpdateLog:
    """Log of the updates of one behavior, `updates.jsonl`: a line per update, with its step, seconds and records.

    Lines are appended during the run.

    :param path: Path of the file.
    :param until: Delete lines after this step, which will be repeated; None deletes all.
    :param every: Gradient steps per line; a line has their means.
    """

    def __init__(self, path: Path, until: int | None, every: int = 1) -> None:
        self._path, self._until, self._every = path, until, every
        self._next = 0  # `n_updates` of the next line
        self._is_open = False
        self._values: dict[str, list[float]] = defaultdict(list)

    def _start_file(self) -> None:
        kept = []
        if self._until is not None and self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # the last line, if the run was killed while it was written
                    kept += [line] if json.loads(line)["step"] <= self._until else []
        write(self._path, "".join(f"{line}\n" for line in kept))
        self._is_open = True

    def add(self, step: int, n_updates: int, seconds: float, records: Mapping[str, float]) -> None:
        """Add the records of an update.

        :param step: Timesteps of the training.
        :param n_updates: Epochs or gradient steps of the training.
        :param seconds: Seconds since the start of the run.
        :raises UnityGymError: If the file cannot be written.
        """
        if not self._is_open:
            self._start_file()
        for name, value in records.items():
            self._values[name].append(value)
        if n_updates < self._next:
            return
        self._next = n_updates + self._every
        means = {name: float(np.mean(values)) for name, values in self._values.items()}
        self._values.clear()
        line = {"step": step, "seconds": round(seconds, 3)} | means | {"train/n_updates": n_updates}
        with _saving(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Timers:
    """Durations of the parts of the training loop."""

    def __init__(self) -> None:
        self._started, self._start = time.monotonic(), time.time()
        self._spent: dict[str, tuple[float, int]] = {}
        self.gauges: dict[str, dict[str, float]] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add the duration of the context to this part."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(part, time.monotonic() - started)

    def add(self, part: str, seconds: float, count: int = 1) -> None:
        """Add seconds to a part, for `count` calls."""
        total, before = self._spent.get(part, (0.0, 0))
        self._spent[part] = (total + seconds, before + count)

    def gauge(self, name: str, value: float) -> None:
        """Record the latest value of a series."""
        gauge = self.gauges.get(name, {"min": value, "max": value, "count": 0})
        self.gauges[name] = {
            "value": value,
            "min": min(gauge["min"], value),
            "max": max(gauge["max"], value),
            "count": gauge["count"] + 1,
        }

    def tree(self) -> dict[str, Any]:
        """Return the times in seconds, gauges and metadata in the form of ML-Agents' `timers.json`."""
        total = self.seconds
        inner = sum(spent for spent, _ in self._spent.values())
        return {
            "name": "root",
            "gauges": self.gauges,
            "metadata": {
                "timer_format_version": "0.1.0",
                "start_time_seconds": str(int(self._start)),
                "end_time_seconds": str(int(self._start + total)),
                "python_version": sys.version,
                "command_line_arguments": shlex.join(sys.argv),
                "unity_gym_version": version("unity-gym"),
                "pytorch_version": torch.__version__,
                "numpy_version": np.__version__,
            },
            "total": total,
            "count": 1,
            "self": total - inner,
            "children": {
                name: {"total": spent, "count": n, "is_parallel": False, "self": spent}
                for name, (spent, n) in self._spent.items()
            },
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
        raise UnityGymError(f"{path} is no JSON: {error}. Delete it; the run continues without it") from error
    return tree if isinstance(tree, dict) else {}
