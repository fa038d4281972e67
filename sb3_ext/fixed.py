"""Policies without training: an ONNX file, or a function of the observations, as one behavior of a training."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from sb3_ext.agents import SpaceAdapter
from sb3_ext.algorithm import UnityAlgorithm
from sb3_ext.collector import Collection
from sb3_ext.onnx_policy import OnnxPolicy
from sb3_ext.policies import AgentPolicy
from unity_gym.errors import UnityGymError
from unity_gym.spaces import ObservationLayout, action_space, action_tuple
from unity_gym.specs import ActionTuple, Array, BehaviorSpec

PolicySource = str | os.PathLike[str] | Callable[[Any], Any]
"""Path of an `.onnx` file, a function of the observations of n agents, or "module:function"."""


class FixedPolicy:
    """Policy of an ONNX file or a function, with the methods of `AgentPolicy` that are required to act.

    A function receives the observations of n agents in the form of `ObservationLayout`, and returns their actions in
    the form of the action space. Actions are stored in the scale of the environment, without log-probabilities.

    :param source: Path of an `.onnx` file, a function, or "module:function"; modules of the current folder are found,
        too.
    :param spec: Specification of the behavior.
    :raises UnityGymError: If there is no such file or function, or the file does not fit the behavior.
    """

    device = torch.device("cpu")

    def __init__(self, source: PolicySource, spec: BehaviorSpec) -> None:
        self._source = source
        self._layout = ObservationLayout(spec)
        self.adapter = SpaceAdapter(self._layout.space, action_space(spec.action_spec), (spec, self._layout))
        self.memory_size = 0
        self._onnx: OnnxPolicy | None = None
        self._function: Callable[[Any], Any] | None = None
        if callable(source):
            self._function = source
        elif Path(source).suffix == ".onnx":
            self._onnx = OnnxPolicy(source, spec=spec)
            self.memory_size = self._onnx.memory_size
        else:
            self._function = load_function(str(source))

    def __reduce__(self) -> tuple[Any, ...]:
        return FixedPolicy, (self._source, self.adapter.spec)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return no weights."""
        return []

    def weights(self) -> dict[str, Array]:
        """Return no weights."""
        return {}

    def load_acting(self, weights: Mapping[str, Any]) -> None:
        """Do nothing, as there are no weights."""

    def acting_copy(self) -> FixedPolicy:
        """Return itself."""
        return self

    def to(self, device: str) -> FixedPolicy:  # noqa: ARG002
        """Return itself."""
        return self

    def set_training_mode(self, mode: bool) -> None:
        """Do nothing, as there is no training."""

    @staticmethod
    def tensors(arrays: Sequence[Array]) -> list[torch.Tensor]:
        """Return the arrays as tensors."""
        return [torch.as_tensor(array) for array in arrays]

    def select_actions(
        self, arrays: Sequence[Array], masks: Array, memory: Array, deterministic: bool = False
    ) -> tuple[ActionTuple, Array]:
        """Return the actions of n agents, and the next recurrent states; see `AgentPolicy.select_actions`."""
        if self._onnx is not None:
            return self._onnx.select_actions(arrays, masks, memory, deterministic)
        assert self._function is not None
        n = len(arrays[0])
        observations = self._layout.select(list(arrays), np.arange(n))
        return action_tuple(self.adapter.spec.action_spec, self._function(observations), n), memory

    def act(
        self,
        observations: list[torch.Tensor],
        masks: torch.Tensor | None,
        memory: torch.Tensor,
        deterministic: bool = False,
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Select the actions of n agents; see `AgentPolicy.act`."""
        n = len(observations[0])
        allowed = np.ones((n, sum(self.adapter.spec.action_spec.discrete_branches)), bool)
        chosen, after = self.select_actions(
            [observation.numpy() for observation in observations],
            allowed if masks is None else masks.numpy(),
            memory.numpy(),
            deterministic,
        )
        actions = torch.from_numpy(np.concatenate([chosen.continuous, chosen.discrete], 1).astype(np.float32))
        return actions, actions[:, :0], torch.as_tensor(np.asarray(after, np.float32))

    def environment_actions(self, actions: Array) -> ActionTuple:
        """Return the actions (n, dimensions) of `act` in the scale of the environment."""
        size = self.adapter.spec.action_spec.continuous_size
        return ActionTuple(actions[:, :size], actions[:, size:].astype(np.int32))


class FixedModel(UnityAlgorithm):
    """Model with a `FixedPolicy`, for behaviors without training.

    :param source: Path of an `.onnx` file, a function, or "module:function"; see `FixedPolicy`.
    :param spec: Specification of the behavior.
    :raises UnityGymError: If there is no such file or function, or the file does not fit the behavior.
    """

    collection = Collection("cut", None)

    def __init__(self, source: PolicySource, spec: BehaviorSpec) -> None:
        # The constructor of Stable-Baselines3 is skipped, as it builds what only training requires.
        policy = FixedPolicy(source, spec)
        self.policy = cast(AgentPolicy, policy)
        self.device = policy.device
        self.num_timesteps, self.batch_size = 0, 1

    def _setup_model(self) -> None:
        """Do nothing: the policy exists."""

    def learn(self, *_: Any, **__: Any) -> FixedModel:
        """Raise, as there is no training.

        :raises UnityGymError: Always.
        """
        raise UnityGymError("a fixed policy does not learn: give the behavior another trainer_type")

    @property
    def missing(self) -> int:
        """1, as there are no updates."""
        return 1

    def add(self, trajectories: Any) -> None:
        """Discard the experience."""


def load_function(source: str) -> Callable[[Any], Any]:
    """Return the function that "module:function" names.

    :raises UnityGymError: If it does not exist.
    """
    module, separator, name = source.partition(":")
    if not separator or not module or not name:
        raise UnityGymError(f"policy must be an .onnx file or module:function, got {source!r}")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UnityGymError(f"policy {source!r} cannot be imported: {error}. Give module:function") from error
    if not callable(found):
        raise UnityGymError(f"policy {source!r} must be a function of the observations, got {found!r:.80}")
    return found  # type: ignore[no-any-return]
