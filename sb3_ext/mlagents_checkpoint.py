"""Checkpoints of `mlagents-learn`: `results/<run-id>/<behavior>/checkpoint.pt` and `<behavior>-<step>.pt`.

Such a file is a dictionary of state dictionaries: `Policy` (the actor), `Optimizer:critic` (the critic of PPO),
`Optimizer:q_network` (both critics of SAC), the states of the optimizers and the networks of the reward signals.
Unity's networks have the same layers as those of this package, with other names and in another order:

- Unity concatenates the encodings in the order of the sensors, this package vectors first and images next. The input
  columns of the layers that follow the encodings are reordered.
- Unity divides the attention scores by the root of the width, this package by that of a head's width. The weights of
  the queries are scaled.
- `running_variance` is the sum of squared deviations of each vector sensor.
- Each branch of a discrete action has a separate layer, and so has the value of each reward signal.
- With a shared critic, `Optimizer:critic` is the actor again, and both have the value heads.
- Unity's SAC also trains a state value, without a counterpart here. The target critics start as copies of the critics.

The file is read as data only, so that nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sb3_ext.checkpoints import load_data, not_a_checkpoint
from sb3_ext.networks import NetworkBody
from sb3_ext.networks.entities import HEADS, WIDTH
from sb3_ext.policies import AgentPolicy, UnityPolicy
from sb3_ext.sac_policy import UnitySACPolicy
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec

MLAGENTS_CHECKPOINT = "checkpoint.pt"
"""File name of the latest checkpoint of a behavior."""

# Parts of names in the checkpoints of mlagents 0.24 and 0.25, with those of later versions.
_NAMES_OF_0_25 = {"network_body.linear_encoder.": "network_body._body_endoder."}
_NAMES_OF_0_24 = {"network_body.processors.": "network_body.observation_encoder.processors."}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class MLAgentsCheckpoint:
    """Networks of a checkpoint, by Unity's names."""

    path: Path
    actor: Tensors
    critic: Tensors | None
    """Critic of PPO, which is the actor if it shares its body; None for other trainers."""
    critics: Tensors | None = None
    """Both critics of SAC; None for other trainers."""


class _Mismatch(Exception):  # noqa: N818 (a reason, not an error)
    """Difference between a network and the one that the settings describe."""


def is_mlagents_run(folder: Path) -> bool:
    """Return whether `mlagents-learn` wrote the results folder of a run."""
    return any(folder.glob(f"*/{MLAGENTS_CHECKPOINT}"))


def read_mlagents_checkpoint(path: Path) -> MLAgentsCheckpoint:
    """Read a checkpoint, without executing anything in it.

    :param path: Path of the file.
    :raises UnityGymError: If there is no such file, it is not such a checkpoint, or it contains more than data.
    """
    try:
        modules = load_data(path)
        actor = _tensors(modules["Policy"])
        critic, critics = (
            _tensors(modules[name]) if name in modules else None for name in ("Optimizer:critic", "Optimizer:q_network")
        )
    except FileNotFoundError:
        raise UnityGymError(f"{path}: there is no such checkpoint. Correct the path") from None
    except Exception as error:  # torch raises many classes for other files
        raise not_a_checkpoint(path, error) from error
    return MLAgentsCheckpoint(path, actor, critic, critics)


def _tensors(module: Mapping[str, object]) -> Tensors:
    tensors = {name: value for name, value in module.items() if isinstance(value, torch.Tensor)}
    if len(tensors) < len(module):
        raise ValueError(f"{sorted(module.keys() - tensors)} are no tensors")
    older = dict(_NAMES_OF_0_25)
    if not any("observation_encoder." in name for name in tensors):
        older |= _NAMES_OF_0_24
    return {_renamed(name, older): value for name, value in tensors.items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for older, newer in names.items():
        name = name.replace(older, newer)
    return name


def load_actor(policy: AgentPolicy, checkpoint: MLAgentsCheckpoint) -> None:
    """Load the actor of a checkpoint into a policy, with the statistics of its observations.

    :raises UnityGymError: If the actor is incompatible with the network or behavior.
    """
    try:
        weights = _actor(policy, checkpoint.actor)
        _require_shapes(weights, policy.actor().state_dict())
    except _Mismatch as error:
        raise UnityGymError(
            f"{checkpoint.path} is of another network or behavior than the settings describe: {error}. Give the "
            "network_settings and the trainer_type that it was trained with"
        ) from None
    _load(policy, weights)


def load_critic(policy: AgentPolicy, checkpoint: MLAgentsCheckpoint, signals: Sequence[str]) -> str | None:
    """Load the critic of a checkpoint into a policy, after its actor.

    :param signals: Names of the reward signals, in the order of the value heads.
    :return: Reason why the policy has kept its critic; None if the critic was loaded.
    """
    parts = ("critic.", "critic_target.", "value_head.")
    try:
        if type(policy) is UnityPolicy:
            weights = _critic(policy, checkpoint, signals)
        elif type(policy) is UnitySACPolicy:
            weights = _critics(policy, checkpoint, signals)
        else:
            return f"the critic of {type(policy).__name__} is another network"
        _require_shapes(weights, {name: part for name, part in policy.state_dict().items() if name.startswith(parts)})
    except _Mismatch as error:
        return f"its critic is of another network: {error}"
    _load(policy, weights)
    return None


def _load(policy: AgentPolicy, weights: Tensors) -> None:
    own = policy.state_dict()
    policy.load_state_dict({**own, **{name: part.to(own[name]) for name, part in weights.items()}})


def _require_shapes(weights: Tensors, own: Mapping[str, torch.Tensor]) -> None:
    for name in sorted(weights.keys() | own.keys()):
        shapes = [tuple(part[name].shape) if name in part else None for part in (weights, own)]
        if shapes[0] != shapes[1]:
            raise _Mismatch(f"{name} has the shape {shapes[0]} there and {shapes[1]} here")


class _Source:
    """Tensors of a network under a prefix, each of which is read once."""

    def __init__(self, tensors: Tensors, prefix: str) -> None:
        self._tensors = {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}

    def take(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            raise _Mismatch(f"it has no {name}")
        return self._tensors.pop(name)

    def layer(self, name: str, columns: torch.Tensor | None = None) -> Tensors:
        """Return the weight and bias of a dense layer, with its input columns in this order."""
        weight = self.take(f"{name}.weight")
        if columns is not None:
            if weight.shape[1] != len(columns):
                raise _Mismatch(f"{name} reads {weight.shape[1]} numbers instead of {len(columns)}")
            weight = weight[:, columns]
        return {"weight": weight, "bias": self.take(f"{name}.bias")}

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._tensors if name.startswith(prefix)]

    def require_all_taken(self) -> None:
        if self._tensors:
            raise _Mismatch(f"it also has {next(iter(self._tensors))}")


def _actor(policy: AgentPolicy, saved: Tensors) -> Tensors:
    spec = policy.adapter.spec
    weights = _prefixed("body", _body(policy.body, spec, _Source(saved, "network_body.")))
    head = _Source(saved, "action_model.")
    if spec.action_spec.continuous_size:
        name = "_continuous_distribution"
        weights |= _prefixed("head.mean", head.layer(f"{name}.mu"))
        if f"{name}.log_sigma" in head.names(name):
            weights["head.log_std"] = head.take(f"{name}.log_sigma").flatten()
        else:
            weights |= _prefixed("head.log_std", head.layer(f"{name}.log_sigma"))
    elif "head.log_std" in policy.state_dict():
        weights["head.log_std"] = torch.zeros(0)
    if spec.action_spec.discrete_size:
        layers = [
            head.layer(f"_discrete_distribution.branches.{branch}") for branch in range(spec.action_spec.discrete_size)
        ]
        weights |= _prefixed("head.logits", {name: torch.cat([layer[name] for layer in layers]) for name in layers[0]})
    head.require_all_taken()
    return weights


def _critic(policy: UnityPolicy, checkpoint: MLAgentsCheckpoint, signals: Sequence[str]) -> Tensors:
    weights: Tensors = {}
    saved = checkpoint.critic
    if saved is None:
        raise _Mismatch("it is not of PPO")
    if policy.critic is None:
        if not any(name.startswith("value_heads.") for name in checkpoint.actor):
            raise _Mismatch("it has a body of its own")
    else:
        body = _body(policy.critic, policy.adapter.spec, _Source(saved, "network_body."))
        if policy.critic.normalization is not None:  # actor and critic share one here, with the actor's statistics
            body |= {f"normalization.{name}": part for name, part in policy.critic.normalization.state_dict().items()}
        weights |= _prefixed("critic", body)
    heads = _Source(saved, "value_heads.value_heads.")
    layers = [heads.layer(signal) for signal in signals]
    return weights | _prefixed("value_head", {name: torch.cat([layer[name] for layer in layers]) for name in layers[0]})


def _critics(policy: UnitySACPolicy, checkpoint: MLAgentsCheckpoint, signals: Sequence[str]) -> Tensors:
    if checkpoint.critics is None:
        raise _Mismatch("it is not of SAC")
    sensors, body = policy.adapter.spec.observation_specs, policy.critic.body
    if policy.settings.memory_size or body.goals or any(len(sensor.shape) > 1 for sensor in sensors):
        raise _Mismatch("there, each critic has its own encoding of images, entities, goals and past observations")
    both = []
    for prefix in ("q1_network.", "q2_network."):
        saved = _Source(checkpoint.critics, f"{prefix}network_body.")
        for statistics in (*saved.names("processors."), *saved.names("observation_encoder.")):
            saved.take(statistics)  # those of the actor
        numbers = range(0, 2 * len(policy.critic_settings.widths), 2)
        layers = {f"layers.{number}": saved.layer(f"_body_endoder.seq_layers.{number}") for number in numbers}
        saved.require_all_taken()
        heads = _Source(checkpoint.critics, f"{prefix}value_heads.value_heads.")
        values = [heads.layer(signal) for signal in signals]
        layers["head"] = {name: torch.cat([value[name] for value in values]) for name in ("weight", "bias")}
        both.append(layers)
    weights: Tensors = {}
    if body.normalization is not None:
        weights |= _prefixed("body.normalization", body.normalization.state_dict())
    for name in both[0]:
        weights[f"{name}.weight"] = torch.stack([layers[name]["weight"].T for layers in both])
        weights[f"{name}.bias"] = torch.stack([layers[name]["bias"].unsqueeze(0) for layers in both])
    return _prefixed("critic", weights) | _prefixed("critic_target", weights)


def _prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}.{name}": part for name, part in tensors.items()}


def _body(body: NetworkBody, spec: BehaviorSpec, saved: _Source) -> Tensors:
    """Return the weights of a `NetworkBody`.

    :raises _Mismatch: If Unity's network has a missing or an additional part.
    """
    for alias in saved.names("processors."):  # duplicates of other tensors
        saved.take(alias)
    sensors = spec.observation_specs
    processor = "observation_encoder.processors.{}".format
    vectors = [index for index, sensor in enumerate(sensors) if len(sensor.shape) == 1]
    images = [index for index, sensor in enumerate(sensors) if sensor.is_visual]
    entities = [index for index, sensor in enumerate(sensors) if len(sensor.shape) == 2]
    weights: Tensors = {}
    if body.normalization is not None:
        weights |= _prefixed("normalization", _normalization(saved, [processor(index) for index in vectors]))
    for number, (encoder, index) in enumerate(zip(body.encoders, images, strict=True)):
        # Unity's "resnet" lists its last layer, which is dense, first.
        names = sorted(saved.names(f"{processor(index)}."), key=lambda name: ".dense." in name)
        own = list(encoder.state_dict())
        if len(names) != len(own):
            raise _Mismatch(f"its visual encoder has {len(names)} weights instead of {len(own)}")
        weights |= {
            f"encoders.{number}.{own_name}": saved.take(name) for own_name, name in zip(own, names, strict=True)
        }
    # Index of each of our encoded features among Unity's.
    starts, goals, size = {}, {}, 0
    for index in sorted(vectors + images):
        starts[index], width = size, _width(body, spec, index)
        goals[index] = width
        size += width
    columns = torch.cat([torch.arange(0), *(starts[i] + torch.arange(goals[i]) for i in vectors + images)])
    if body.attention is not None:
        weights |= _prefixed("attention", _attention(body, saved, columns, [processor(index) for index in entities]))
        columns = torch.cat([columns, size + torch.arange(WIDTH)])
    weights |= _layers(body, saved, columns)
    if body.memory is not None:
        names = list(body.memory.state_dict())
        weights |= {f"memory.{name}": saved.take(f"lstm.{name}") for name in names}
    saved.require_all_taken()
    return weights


def _width(body: NetworkBody, spec: BehaviorSpec, index: int) -> int:
    sensor = spec.observation_specs[index]
    return body.settings.hidden_units if sensor.is_visual else sensor.shape[0]


def _normalization(saved: _Source, processors: Sequence[str]) -> Tensors:
    parts = []
    for processor in processors:
        names = ("normalization_steps", "running_mean", "running_variance")
        parts.append([saved.take(f"{processor}.normalizer.{name}").to(torch.float64) for name in names])
    count = parts[0][0]
    mean = torch.cat([mean for _, mean, _ in parts])
    variance = torch.cat([squares / steps for steps, _, squares in parts])
    return {"count": count, "mean": mean, "squares": variance * count}


def _attention(body: NetworkBody, saved: _Source, columns: torch.Tensor, processors: Sequence[str]) -> Tensors:
    assert body.attention is not None
    encoder = "observation_encoder"
    weights: Tensors = {}
    if body.attention.embed_self is not None:
        weights |= _prefixed("embed_self.0", saved.layer(f"{encoder}.x_self_encoder.seq_layers.0", columns))
    for number, processor in enumerate(processors):
        weights |= _prefixed(f"embed.{number}.0", saved.layer(f"{processor}.self_ent_encoder.seq_layers.0"))
    for name, unity in (("query", "fc_q"), ("key", "fc_k"), ("value", "fc_v"), ("out", "fc_out")):
        layer = saved.layer(f"{encoder}.rsa.{unity}")
        # Unity's q·k / √width is ours / √(width / heads).
        scale = HEADS**-0.5 if name == "query" else 1.0
        weights |= _prefixed(name, {part: tensor * scale for part, tensor in layer.items()})
    return weights


def _layers(body: NetworkBody, saved: _Source, columns: torch.Tensor) -> Tensors:
    weights: Tensors = {}
    dense = body.settings.num_layers - bool(body.goals)
    name = "_body_endoder.layers" if body.goals else "_body_endoder.seq_layers"
    for number in range(dense):
        layer = saved.layer(f"{name}.{2 * number}", columns if number == 0 else None)
        weights |= _prefixed(f"layers.{2 * number}", layer)
    if body.goals:
        hyper = f"{name}.{2 * dense}"
        goal_columns = columns[torch.tensor(body.goals)]
        order = torch.argsort(torch.argsort(goal_columns))  # Unity's goals are in the order of the sensors, too
        weights |= _prefixed("goal_layer.weights.0.0", saved.layer(f"{hyper}.hypernet.0", order))
        weights |= _prefixed("goal_layer.weights.0.2", saved.layer(f"{hyper}.hypernet.2"))
        written = saved.layer(f"{hyper}.hypernet.5")
        if not dense:  # the layer with generated weights is the first one, whose inputs are the encodings
            size, width = len(columns), body.settings.hidden_units
            if len(written["bias"]) != size * width:
                raise _Mismatch(f"{hyper} writes {len(written['bias'])} weights instead of {size * width}")
            written = {part: x.view(size, width, *x.shape[1:])[columns].flatten(0, 1) for part, x in written.items()}
        weights |= _prefixed("goal_layer.weights.2", written)
        weights["goal_layer.bias"] = saved.take(f"{hyper}.bias")
    return weights
