"""Export policies as ONNX files, which Unity and `OnnxPolicy` load."""

from __future__ import annotations

import copy
import io
import itertools
import os
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from sb3_ext.distributions import CONTINUOUS_LIMIT
from sb3_ext.files import write_whole
from sb3_ext.policies import AgentPolicy
from unity_gym.errors import UnityGymError

VERSION = 3
OPSET = 9  # the lowest that Unity reads, and sufficient for every network here
_FORBIDDEN = 1e8  # subtracted from the logits of discrete actions that the mask forbids


def export_onnx(policy: AgentPolicy, path: str | os.PathLike[str], deterministic: bool = False) -> None:
    """Write the actor of a policy as Unity's model file of version 3, opset 9.

    Inputs, float32 with the batch dimension n first: `obs_0`, `obs_1`, … (n, *shape) per sensor, images in `[0, 1]`;
    `action_masks` (n, sum of branches), 1 = allowed, with discrete actions; `recurrent_in` (n, 1, memory size) of
    recurrent policies. Outputs: `version_number` and `memory_size` (1,); `continuous_actions` (n, size) sampled, in
    `[-1, 1]`, with `deterministic_continuous_actions` and `continuous_action_output_shape` (1,); `discrete_actions` (n,
    branches) sampled indices, int64, with `deterministic_discrete_actions` and `discrete_action_output_shape` (1,
    branches); `recurrent_out` as `recurrent_in`.

    The sensors are those of `policy.adapter`: those of the behavior of a Unity environment, unless a wrapper changes
    the observation space; otherwise one per key of the observation space. The file replaces an existing one only once
    it is complete.

    A policy that reads its previous action stores it in `recurrent_out`, and Unity does not report whether it executed
    the sampled or the deterministic one. So both outputs of such a file have the same actions.

    :param policy: Policy to export. Neither it nor torch's random state changes.
    :param path: Path of the file; its folder is created if it does not exist.
    :param deterministic: Whether the file of a policy that reads its previous action always contains the most likely
        actions; by default it always samples.
    :raises UnityGymError: If the continuous actions have no bounds, which `[-1, 1]` represents.
    :raises OSError: If the file cannot be written.
    """
    actor = _Actor(policy, deterministic).eval()
    inputs = actor.example()
    names = actor.output_names
    constant = {name for name in names if name in dict(actor.named_buffers())}
    content = io.BytesIO()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # torch warns that this exporter is deprecated, and that an LSTM may fix the batch size. It does not here,
        # as the initial state of the LSTM is an input.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            actor,
            tuple(inputs.values()),
            content,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=names,
            dynamic_axes={name: {0: "batch"} for name in [*inputs, *names] if name not in constant},
        )
    model = onnx.load_from_string(content.getvalue())
    _fold_identities(model.graph)
    write_whole(Path(path), model.SerializeToString())


def _fold_identities(graph: onnx.GraphProto) -> None:
    """Replace each Identity of a constant by a constant of its name: Unity reads constants only in this form."""
    constants = {constant.name: constant for constant in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Identity" and node.input[0] in constants]:
        constant = graph.initializer.add()
        constant.CopyFrom(constants[node.input[0]])
        constant.name = node.output[0]
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for constant in constants.values():
        if constant.name not in used:
            graph.initializer.remove(constant)


class _Actor(nn.Module):
    """Network from the inputs of the file to its outputs: a copy of the actor in float32 on the CPU."""

    low: torch.Tensor
    high: torch.Tensor
    version_number: torch.Tensor
    memory_size: torch.Tensor
    continuous_action_output_shape: torch.Tensor
    discrete_action_output_shape: torch.Tensor

    def __init__(self, policy: AgentPolicy, deterministic: bool) -> None:
        super().__init__()
        self.deterministic = deterministic
        self.spec = policy.adapter.spec
        low, high = policy.adapter.low, policy.adapter.high
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UnityGymError(
                f"continuous actions from {low.tolist()} to {high.tolist()} have no −1…1, which is what a model file "
                "gives: bound the action space (gymnasium.wrappers.RescaleAction, or low and high of the Box)"
            )
        self.body, self.head = copy.deepcopy((policy.body, policy.head))
        self.scaling = policy.action_scaling
        self.memory = policy.body.state_size
        action = self.spec.action_spec
        for name, value in {
            "low": low,
            "high": high,
            "version_number": [VERSION],
            "memory_size": [self.memory],
            "continuous_action_output_shape": [action.continuous_size],
            "discrete_action_output_shape": [action.discrete_branches],
        }.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        self.to("cpu", torch.float32)

    def example(self) -> dict[str, torch.Tensor]:
        """Return example inputs by name, for two agents."""
        inputs = {f"obs_{index}": torch.zeros(2, *sensor.shape) for index, sensor in enumerate(self.spec[0])}
        if self.spec.action_spec.discrete_size:
            inputs["action_masks"] = torch.ones(2, sum(self.spec.action_spec.discrete_branches))
        if self.memory:
            inputs["recurrent_in"] = torch.zeros(2, 1, self.memory)
        return inputs

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in the order of `forward`."""
        names = ["version_number", "memory_size"]
        kinds = (("continuous", self.head.mean), ("discrete", self.head.logits))
        for kind in (kind for kind, layer in kinds if layer is not None):
            names += [f"{kind}_actions", f"{kind}_action_output_shape", f"deterministic_{kind}_actions"]
        return [*names, "recurrent_out"] if self.memory else names

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sensors = len(self.spec.observation_specs)
        features, memory = self.body(inputs[:sensors], inputs[-1].squeeze(1) if self.memory else None)
        mean, log_std, logits = self.head(features)
        outputs = [self.version_number, self.memory_size]
        action_size = self.body.action_size
        previous: list[torch.Tensor] = []  # parts of the action that are an input of the next decision
        if mean is not None:
            sample, mode = self._scaled(mean + torch.randn_like(mean) * log_std.exp()), self._scaled(mean)
            if action_size:
                sample = mode = mode if self.deterministic else sample
                previous.append(sample)
            outputs += [sample, self.continuous_action_output_shape, mode]
        if logits is not None:
            branches = self._branches(logits, inputs[sensors])
            samples = torch.cat([torch.multinomial(branch, 1) for branch in branches], 1)
            modes = torch.cat([branch.argmax(1, keepdim=True) for branch in branches], 1)
            if action_size:
                samples = modes = modes if self.deterministic else samples
                sizes = self.spec.action_spec.discrete_branches
                previous += [
                    nn.functional.one_hot(samples[:, index], size).to(memory.dtype) for index, size in enumerate(sizes)
                ]
            outputs += [samples, self.discrete_action_output_shape, modes]
        if memory is not None:
            if action_size:
                memory = torch.cat([*previous, memory[:, action_size:]], 1)
            outputs.append(memory.unsqueeze(1))
        return tuple(outputs)

    def _scaled(self, raw: torch.Tensor) -> torch.Tensor:
        if self.scaling == "tanh":
            return raw.tanh()
        if self.scaling == "unity":
            return raw.clamp(-CONTINUOUS_LIMIT, CONTINUOUS_LIMIT) / CONTINUOUS_LIMIT
        # Bounds as tensors become Min and Max, so that each dimension can have its own.
        clipped = torch.minimum(torch.maximum(raw, self.low), self.high)
        return (clipped - (self.high + self.low) / 2) / ((self.high - self.low) / 2)

    def _branches(self, logits: torch.Tensor, masks: torch.Tensor) -> list[torch.Tensor]:
        """Return the probabilities (n, branch size) of each branch."""
        masked = logits * masks - (1 - masks) * _FORBIDDEN
        ends = np.cumsum([0, *self.spec.action_spec.discrete_branches]).tolist()
        # Slices, as not every runtime of Unity supports Split.
        return [masked[:, start:end].softmax(1) for start, end in itertools.pairwise(ends)]
