"""Conversion of parameters of Stable-Baselines3's algorithms and policies.

Parameters with the same name have the same meaning in both packages. `PPO_NAMES` and `SAC_NAMES` contain the others:
those that set a parameter of another name, and those that are rejected, with the reason. `network_settings` converts
`policy_kwargs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_ext.agents import SpaceAdapter
from sb3_ext.networks import NetworkSettings
from sb3_ext.networks.extractor import SensorExtractor
from sb3_ext.reward_signals import Extrinsic
from sb3_ext.settings.document import did_you_mean
from unity_gym.errors import InvalidValueError, UnityGymError


class Equivalent(NamedTuple):
    """Parameters of Stable-Baselines3 that together set one parameter."""

    names: tuple[str, ...]
    convert: Callable[..., Any]
    """Function of the number of environments (None without an environment) and the values (None if not given)."""


class Unsupported(NamedTuple):
    """Parameter of Stable-Baselines3 with only one possible value here."""

    value: Any
    reason: str


def _reject(table: Mapping[str, Unsupported], given: Mapping[str, Any]) -> None:
    for name, unsupported in table.items():
        value = given.get(name, unsupported.value)
        if value is not unsupported.value and value != unsupported.value:
            raise UnityGymError(f"{name} must be {unsupported.value!r}, got {value!r}: {unsupported.reason}")


class Names(NamedTuple):
    """Names of the parameters of one algorithm."""

    equivalents: dict[str, Equivalent]
    """Equivalents by the parameter that they set."""
    unsupported: dict[str, Unsupported]

    def has(self, name: str) -> bool:
        """Return whether a parameter of Stable-Baselines3 has another name here, or is not supported."""
        return name in self.unsupported or any(name in equivalent.names for equivalent in self.equivalents.values())

    def translate(self, env: object, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that those of Stable-Baselines3 set.

        :param env: Environment of the algorithm.
        :param given: Values of parameters of both packages; None if a parameter is not given.
        :raises UnityGymError: If a parameter is given under two names, or is not supported.
        """
        _reject(self.unsupported, given)
        n_envs = None if env is None else env.num_envs if isinstance(env, VecEnv) else 1
        translated = {}
        for own, (names, convert) in self.equivalents.items():
            values = {name: given.get(name) for name in names}
            used = [name for name, value in values.items() if value is not None]
            if not used:
                continue
            if given.get(own) is not None:
                raise UnityGymError(f"{' and '.join(used)} and {own} set the same: give one of them")
            translated[own] = convert(n_envs, **values)
        return translated


def _discounted(n_envs: int | None, gamma: float) -> list[Extrinsic]:  # noqa: ARG001
    return [Extrinsic(gamma)]


def _decisions_per_update(n_envs: int | None, n_steps: int) -> int:
    if n_envs is None:
        raise UnityGymError(
            f"n_steps counts steps of each environment, and there is none: pass buffer_size instead of {n_steps}"
        )
    return n_steps * n_envs


def _decisions_per_gradient_step(
    n_envs: int | None, train_freq: int | tuple[int, str] | None, gradient_steps: int | None
) -> float:
    steps, unit = (train_freq, "step") if not isinstance(train_freq, tuple) else train_freq
    steps, gradient_steps = steps or 1, 1 if gradient_steps is None else gradient_steps
    if unit != "step":
        raise InvalidValueError(
            f"train_freq must count steps, got {train_freq!r}: gradient steps are spread evenly over the timesteps. "
            "Pass a number of steps, or steps_per_update"
        )
    if steps < 1 or gradient_steps == 0 or gradient_steps < -1:
        raise UnityGymError(
            f"train_freq must be at least 1 and gradient_steps at least 1 or -1, got {train_freq!r} and "
            f"{gradient_steps}"
        )
    if gradient_steps == -1:
        return 1.0
    if n_envs is None:
        raise UnityGymError(
            f"train_freq counts steps of each environment, and there is none: pass steps_per_update instead of {steps}"
        )
    return steps * n_envs / gradient_steps


def _initial_entropy_coefficient(n_envs: int | None, ent_coef: float | str) -> float:  # noqa: ARG001
    if not isinstance(ent_coef, str):
        return ent_coef
    kind, _, value = ent_coef.partition("_")
    try:
        if kind == "auto":
            return float(value) if value else 1.0
    except ValueError:
        pass
    raise InvalidValueError(f"ent_coef must be a number, 'auto' or 'auto_<number>', got {ent_coef!r}")


_SDE = {
    "use_sde": Unsupported(False, "state-dependent exploration (gSDE) is not supported, actions are sampled again"),
    "sde_sample_freq": Unsupported(-1, "state-dependent exploration (gSDE) is not supported"),
}

PPO_NAMES = Names(
    {
        "buffer_size": Equivalent(("n_steps",), _decisions_per_update),
        "reward_signals": Equivalent(("gamma",), _discounted),
    },
    {
        **_SDE,
        "rollout_buffer_class": Unsupported(
            None, "each agent acts when it requests a decision, which no rollout buffer of Stable-Baselines3 stores"
        ),
        "rollout_buffer_kwargs": Unsupported(None, "there is no rollout_buffer_class to pass them to"),
    },
)

SAC_NAMES = Names(
    {
        "buffer_init_steps": Equivalent(("learning_starts",), lambda n_envs, learning_starts: learning_starts),  # noqa: ARG005
        "reward_signals": Equivalent(("gamma",), _discounted),
        "steps_per_update": Equivalent(("train_freq", "gradient_steps"), _decisions_per_gradient_step),
        "init_entcoef": Equivalent(("ent_coef",), _initial_entropy_coefficient),
    },
    {
        **_SDE,
        "use_sde_at_warmup": Unsupported(False, "state-dependent exploration (gSDE) is not supported"),
        "action_noise": Unsupported(None, "the entropy of the policy explores; raise init_entcoef or ent_coef"),
        "replay_buffer_class": Unsupported(
            None, "each agent acts when it requests a decision, which no replay buffer of Stable-Baselines3 stores"
        ),
        "replay_buffer_kwargs": Unsupported(None, "there is no replay_buffer_class to pass them to"),
        "optimize_memory_usage": Unsupported(
            False, "each next observation is stored, so that time-outs are exact; lower buffer_size"
        ),
        "n_steps": Unsupported(1, "targets are of one step"),
    },
)

NETWORK_UNSUPPORTED = {
    "use_sde": _SDE["use_sde"],
    "full_std": Unsupported(True, "state-dependent exploration (gSDE) is not supported"),
    "use_expln": Unsupported(False, "state-dependent exploration (gSDE) is not supported"),
    "squash_output": Unsupported(False, "action_scaling maps actions to the bounds of their space"),
    "clip_mean": Unsupported(2.0, "state-dependent exploration (gSDE) is not supported"),
    "log_std_init": Unsupported(-3, "the deviations of SAC's actions are a function of the observations"),
    "n_critics": Unsupported(2, "SAC has two critics"),
    "share_features_extractor": Unsupported(
        False, "actor and critic have an extractor each; shared_critic=True shares all layers of PPO's"
    ),
}
"""Entries of `policy_kwargs` with only one possible value here."""

SB3_NETWORKS: dict[str, dict[str, Any]] = {
    "MlpPolicy": {"net_arch": [64, 64], "activation_fn": nn.Tanh, "ortho_init": True},
    "CnnPolicy": {
        "net_arch": [],
        "activation_fn": nn.Tanh,
        "features_extractor_class": NatureCNN,
        "ortho_init": True,
    },
    "MultiInputPolicy": {
        "net_arch": [64, 64],
        "activation_fn": nn.Tanh,
        "features_extractor_class": CombinedExtractor,
        "ortho_init": True,
    },
}
"""The networks of Stable-Baselines3's policies of PPO, as `policy_kwargs`."""


def network_settings(
    given: Mapping[str, Any], defaults: Mapping[str, Any], adapter: SpaceAdapter, critic: str
) -> tuple[NetworkSettings, NetworkSettings]:
    """Return the network settings of the actor and of the critics.

    :param given: Entries of `policy_kwargs`: those of `NetworkSettings`, and Stable-Baselines3's `net_arch`,
        `activation_fn`, `features_extractor_class`, `features_extractor_kwargs` and `normalize_images`.
    :param defaults: Entries that apply unless `given` sets the same.
    :param adapter: Observations of the policy.
    :param critic: Name of the critic in `net_arch`, such as "vf".
    :raises UnityGymError: If two entries set the same, or an entry is not supported.
    """
    _reject(NETWORK_UNSUPPORTED, given)
    options = {name: value for name, value in given.items() if name not in NETWORK_UNSUPPORTED}
    for name, others in _OTHER_NAMES.items():
        if (also := [other for other in others if other in options]) and name in options:
            raise UnityGymError(f"{name} and {also[0]} set the same: give one of them")
        if not also and name in defaults:
            options.setdefault(name, defaults[name])
    if "activation_fn" in defaults:
        options.setdefault("activation_fn", defaults["activation_fn"])
    extractor_class = options.pop("features_extractor_class", None)
    arguments = dict(options.pop("features_extractor_kwargs", None) or {})
    space = adapter.observation_space
    entries = space.values() if isinstance(space, spaces.Dict) else [space]
    if not any(entry.dtype == np.uint8 for entry in entries):  # float images are in [0, 1] already
        options.pop("normalize_images", None)
    if extractor_class is not None:
        if not given.get("normalize_images", True) and issubclass(extractor_class, (NatureCNN, CombinedExtractor)):
            arguments["normalized_image"] = True
        options["features_extractor"] = partial(_sensor_extractor, extractor_class, arguments, adapter)
    elif arguments:
        raise UnityGymError("features_extractor_kwargs must come with features_extractor_class, which they are for")
    arch = options.pop("net_arch", None)
    if not isinstance(arch, Mapping):
        arch = {"pi": arch, critic: arch}
    if arch.keys() != {"pi", critic}:
        raise UnityGymError(f"net_arch must be a list of widths, or have the keys 'pi' and {critic!r}, got {arch!r}")
    for widths in arch.values():
        is_list = isinstance(widths, Sequence) and all(isinstance(width, (int, np.integer)) for width in widths)
        if widths is not None and not is_list:
            raise UnityGymError(
                f"net_arch must be a list of widths such as [64, 64], or have the keys 'pi' and {critic!r}, got "
                f"{widths!r}"
            )
    names = {entry.name for entry in fields(NetworkSettings)}
    if unknown := sorted(options.keys() - names):
        near = did_you_mean(unknown[0], names | {"features_extractor_class"})
        raise UnityGymError(f"policy_kwargs has the unknown entry {unknown[0]!r}{near}")
    actor, of_critic = (None if widths is None else tuple(widths) for widths in (arch["pi"], arch[critic]))
    return NetworkSettings(**options, net_arch=actor), NetworkSettings(**options, net_arch=of_critic)


_OTHER_NAMES = {
    "net_arch": ("hidden_units", "num_layers"),
    "features_extractor_class": ("vis_encode_type", "goal_conditioning_type"),
}


def _sensor_extractor(
    extractor_class: type[BaseFeaturesExtractor], arguments: Mapping[str, Any], adapter: SpaceAdapter
) -> SensorExtractor:
    try:
        extractor = extractor_class(adapter.observation_space, **arguments)
    except Exception as error:  # the user's class can raise anything
        raise UnityGymError(
            f"features_extractor_class {extractor_class.__name__} cannot be built for {adapter.observation_space}: "
            f"{error}. MultiInputPolicy is for a Dict, CnnPolicy for one image, MlpPolicy for all observations"
        ) from error
    return SensorExtractor(extractor, adapter.tensors)
