"""Checkpoints of a run: write them, resume from them, and start other runs with their networks."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from sb3_ext.files import saving, write
from sb3_ext.mlagents_checkpoint import MLAGENTS_CHECKPOINT, load_actor, load_critic, read_mlagents_checkpoint
from sb3_ext.policies import AgentPolicy
from sb3_ext.sac import SAC
from sb3_ext.self_play import SelfPlay
from unity_gym.errors import UnityGymError

_REPLAY_BUFFER = "last_replay_buffer.npz"
_ACTOR = ("body.", "head.")  # the networks of a policy that are required to act


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
        found = {step: path for path in self.folder.glob("*.zip") if (step := step_of(path)) is not None}
        return dict(sorted(found.items()))

    def incomplete(self) -> list[Path]:
        """Return the networks of checkpoints that were not written: those with more timesteps than each that was."""
        last = next(reversed(self.by_step()), -1)
        return [path for path in self.folder.glob("*.onnx") if (step := step_of(path)) is not None and step > last]

    def newest(self) -> Path | None:
        """Return the checkpoint with the most timesteps; None if there is none."""
        return next(reversed(self.by_step().values()), None)

    def is_complete(self, step: int) -> bool:
        """Whether there is a checkpoint of this timestep, with its network."""
        path = self._path(step)
        return path.exists() and path.with_suffix(".onnx").exists()

    def _path(self, step: int) -> Path:
        return self.folder / f"{self.folder.name}-{step}.zip"

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
        path = self._path(step)
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
        # The network first, and deleted last, so that each checkpoint has its network even after a kill.
        with saving(path):
            model.export_onnx(path.with_suffix(".onnx"), deterministic)
        try:
            write(path, content.getvalue())
        except UnityGymError:
            if not path.exists():  # an earlier save at this timestep needs its network
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
                superseded = kept.pop(old)
                superseded.unlink()
                superseded.with_suffix(".onnx").unlink(missing_ok=True)
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


def step_of(path: Path) -> int | None:
    """Return the timestep in the name of a checkpoint or of its network; None for other files."""
    name, _, step = path.stem.rpartition("-")
    return int(step) if name == path.parent.name and step.isdecimal() else None


def newest_in(folder: Path) -> Path | None:
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
    except UnityGymError as error:
        raise _of_another_network(path, error.__cause__, keeps_actor=_fits_actor(model.policy, checkpoint)) from error
    for counter in model.counters:
        if counter in state["counters"]:  # earlier versions have saved fewer
            setattr(model, counter, state["counters"][counter])
    if state["self_play"] is not None:
        model.self_play = SelfPlay()
        model.self_play.load_state_dict(state["self_play"])
    _set_random_states(state["random"])
    further: dict[str, Any] = state["further"]
    return further


def start_from(model: UnityAlgorithm, path: Path) -> str | None:
    """Load the networks of a checkpoint into a new model where they have the same shapes: at least the actor.

    Entropy coefficients are no networks, and start at `init_entcoef`, as in Unity's trainer.

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
            if not _fit(own_part, saved_part):
                fresh.append(part)
            elif part != "log_ent_coef":
                own.update({key: saved_part[key] for key in saved_part if key in own})
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


def _fits_actor(policy: AgentPolicy, checkpoint: Checkpoint) -> bool:
    try:
        _require_actor(policy, checkpoint)
    except UnityGymError:
        return False
    return True


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


def _of_another_network(path: Path, reason: object, keeps_actor: bool = False) -> UnityGymError:
    # torch's message has one line per tensor.
    text = " ".join(str(reason).split())
    start = "start from scratch with another --run-id"
    if keeps_actor:
        start = "give --initialize-from this run and another --run-id, which keeps the networks that fit"
    return UnityGymError(
        f"{path} is of another network or behavior than the settings describe: {text:.300}. Give the "
        f"network_settings, reward_signals and hyperparameters that it was trained with, or {start}"
    )


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
