"""Checkpoint files: Stable-Baselines3 model files that also contain the state of the training.

`write_checkpoint` writes the content of `model.save`, and an archive member with the state of the training. So `load`
of `sb3_ext.PPO`, `POCA` and `SAC` can read the file. `read_checkpoint` reads the parameters and that state as plain
data. It never unpickles: a file that would execute code is rejected. `load` of Stable-Baselines3 does unpickle, so
pass it only files that you trust.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from unity_gym.errors import UnityGymError

_STATE = "training_state.pt"  # Stable-Baselines3 reads every .pth member as parameters and ignores all others
_NOT_PARAMETERS = ("pytorch_variables", "tensors")
_ARRAY = "numpy array"  # key of a packed array


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint file."""

    path: Path
    parameters: dict[str, Any]
    """State dictionaries of the model's modules and optimizers, by attribute."""
    state: dict[str, Any] | None
    """State of the training; None if a script saved the model."""


def write_checkpoint(model: BaseAlgorithm, file: BinaryIO, state: Mapping[str, Any]) -> None:
    """Write a model and the state of its training.

    :param model: Model to save.
    :param file: Open file, readable and writable.
    :param state: State of the training: dictionaries with string keys, lists, tuples, strings, numbers, booleans, None,
        tensors and arrays of numbers, nested in any way.
    :raises TypeError: If `state` contains anything else.
    """
    model.save(file)  # type: ignore[arg-type]
    content = io.BytesIO()
    torch.save(pack(state), content)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(_STATE, content.getvalue())


def read_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a file that `write_checkpoint` or the `save` of a model wrote, without executing anything in it.

    :param path: Path of the file.
    :param device: Device of the tensors among the parameters.
    :raises UnityGymError: If there is no such file, it is not a checkpoint, or it contains more than data.
    """
    path = Path(path)
    parameters, state = {}, None
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                part = PurePosixPath(name)
                if part.suffix == ".pth" and part.stem not in _NOT_PARAMETERS:
                    parameters[part.stem] = load_data(io.BytesIO(archive.read(name)), device)
                elif name == _STATE:
                    state = unpack(load_data(io.BytesIO(archive.read(name)), "cpu"))
        if "policy" not in parameters:
            raise ValueError("it has no policy")
    except FileNotFoundError:
        raise UnityGymError(f"{path}: there is no such checkpoint. Correct the path") from None
    except Exception as error:  # zipfile and torch raise many classes for other files
        raise not_a_checkpoint(path, error) from error
    return Checkpoint(path, parameters, state)


def load_data(file: str | Path | BinaryIO, device: torch.device | str = "cpu") -> Any:
    """Read what `torch.save` wrote, if it is data only: tensors, numbers, strings and their collections.

    :raises pickle.UnpicklingError: If it contains anything else, which is not executed.
    """
    return torch.load(file, map_location=device, weights_only=True)


def not_a_checkpoint(path: Path, error: Exception) -> UnityGymError:
    """Return the error about a file that cannot be read as a checkpoint."""
    # torch's messages explain how to disable the restriction that protects the user.
    reason = " ".join(str(error).split())
    if "weights only" in reason.lower() or "weights_only" in reason.lower():
        reason = "it is damaged, or holds code in addition to data, which was not executed"
    return UnityGymError(f"{path} is no checkpoint that can be used: {reason:.200}. Delete it, or use another")


def pack(tree: Any) -> Any:
    """Return nested data with every array as a tensor, so that it is saved as data only.

    :raises TypeError: If it contains anything other than data.
    """
    if isinstance(tree, np.ndarray):
        return {_ARRAY: torch.from_numpy(np.array(tree))}  # a copy: the array may change later
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, Mapping):
        if not all(isinstance(key, (str, int)) for key in tree):
            raise TypeError(f"the keys of a state must be strings or integers, got {list(tree)}")
        return {key: pack(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(pack(value) for value in tree) if type(tree) in (list, tuple) else [pack(x) for x in tree]
    if tree is None or isinstance(tree, (str, int, float, bool, torch.Tensor)):
        return tree
    raise TypeError(f"a state must consist of data, got {type(tree).__name__}")


def unpack(tree: Any) -> Any:
    """Return the data that was passed to `pack`."""
    if isinstance(tree, dict):
        if tree.keys() == {_ARRAY}:
            return tree[_ARRAY].numpy()
        return {key: unpack(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(unpack(value) for value in tree)
    return tree
