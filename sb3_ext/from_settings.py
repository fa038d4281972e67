"""Build models, reward signals and behavioral cloning from settings."""

from __future__ import annotations

from typing import Any

from sb3_ext.algorithm import UnityAlgorithm, schedule
from sb3_ext.bc import BC
from sb3_ext.fixed import FixedModel
from sb3_ext.imitation import BehavioralCloning
from sb3_ext.plugin_classes import base_trainer, load_signal, load_trainer
from sb3_ext.plugins import parameters
from sb3_ext.poca import POCA
from sb3_ext.ppo import PPO
from sb3_ext.reward_signals import GAIL, RND, Curiosity, Extrinsic, RewardSignal
from sb3_ext.sac import SAC
from sb3_ext.settings import (
    BCSettings,
    BehaviorSettings,
    FixedSettings,
    POCAHyperparameters,
    PPOHyperparameters,
    RewardSignals,
    SACHyperparameters,
)
from sb3_ext.settings import RewardSignal as RewardSignalSettings
from sb3_ext.settings.behaviors import TRAINERS
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec

_REWARD_SIGNALS: dict[str, type[RewardSignal]] = {
    "extrinsic": Extrinsic,
    "curiosity": Curiosity,
    "gail": GAIL,
    "rnd": RND,
}


def reward_signals(settings: RewardSignals) -> list[RewardSignal]:
    """Return the reward signals of the settings."""
    signals = []
    for name, block in settings.items():
        arguments = block.model_dump(exclude={"network_settings"})
        if name != "extrinsic" and isinstance(block, RewardSignalSettings):
            arguments |= block.network_settings.model_dump(exclude={"deterministic", "memory"})
        if "demo_path" in arguments:
            arguments["demonstrations"] = arguments.pop("demo_path")
        signal = _REWARD_SIGNALS[name] if name in _REWARD_SIGNALS else load_signal(name)
        signals.append(signal(**arguments))
    return signals


def _cloning(settings: BehaviorSettings) -> BehavioralCloning | None:
    """Return the behavioral cloning of the settings; None if there is none."""
    block = settings.behavioral_cloning
    if block is None:
        return None
    return BehavioralCloning(
        block.demo_path,
        block.strength,
        block.steps,
        n_epochs=block.num_epoch or 3,
        batch_size=block.batch_size,
        samples_per_update=block.samples_per_update,
    )


def build_model(spec: BehaviorSpec, settings: BehaviorSettings, device: str | None) -> UnityAlgorithm:
    """Return a model of the behavior, as the settings describe it.

    :param device: Device of the model, followed after commas by those of further processes that share its updates; None
        for the default.
    """
    if isinstance(settings, FixedSettings):
        return FixedModel(settings.policy, spec)
    first, *further = (device or "auto").split(",")
    if further and isinstance(settings, BCSettings):
        raise UnityGymError(f"behavioral cloning learns on one device, got {device!r}: give one of them")
    model = _build_model(spec, settings, first)
    if further:
        model.learner_devices = tuple(further)
    return model


def _build_model(spec: BehaviorSpec, settings: BehaviorSettings, device: str) -> UnityAlgorithm:
    hyperparameters, network = settings.hyperparameters, settings.network_settings
    memory = network.memory
    policy_kwargs = {
        "normalize": network.normalize,
        "hidden_units": network.hidden_units,
        "num_layers": network.num_layers,
        "vis_encode_type": network.vis_encode_type,
        "goal_conditioning_type": network.goal_conditioning_type,
    } | ({} if memory is None else memory.model_dump())
    if isinstance(settings, BCSettings):
        cloned = settings.hyperparameters
        return BC.from_spec(
            "UnityPolicy",
            spec,
            learning_rate=schedule(cloned.learning_rate, cloned.learning_rate_schedule, 1e-10),
            batch_size=cloned.batch_size,
            teacher_steps_per_epoch=cloned.buffer_size,
            n_epochs=cloned.num_epoch,
            validation_fraction=cloned.validation_fraction,
            window=cloned.window,
            demonstrations=settings.demo_path,
            policy_kwargs=policy_kwargs,
            device=device,
        )
    options: dict[str, Any] = {
        "learning_rate": hyperparameters.learning_rate,
        "buffer_size": hyperparameters.buffer_size,
        "batch_size": hyperparameters.batch_size,
        "reward_signals": reward_signals(settings.reward_signals),
        "demonstrations": _cloning(settings),
        "learning_rate_schedule": hyperparameters.learning_rate_schedule,
        "policy_kwargs": policy_kwargs,
        "device": device,
        "threaded": settings.threaded,
    }
    plugged = None if settings.trainer_type in TRAINERS else load_trainer(settings.trainer_type)
    if plugged is not None:
        options |= {name: getattr(hyperparameters, name) for name in parameters(plugged, base_trainer(plugged)[1])}
    if isinstance(hyperparameters, SACHyperparameters):
        return (plugged or SAC).from_spec(
            "UnitySACPolicy",
            spec,
            tau=hyperparameters.tau,
            steps_per_update=hyperparameters.steps_per_update,
            reward_signal_steps_per_update=hyperparameters.reward_signal_steps_per_update,
            buffer_init_steps=hyperparameters.buffer_init_steps,
            init_entcoef=hyperparameters.init_entcoef,
            **options,
        )
    assert isinstance(hyperparameters, POCAHyperparameters)
    options |= {
        "n_epochs": hyperparameters.num_epoch,
        "time_horizon": settings.time_horizon,
        "gae_lambda": hyperparameters.lambd,
        "clip_range": hyperparameters.epsilon,
        "ent_coef": hyperparameters.beta,
        "clip_range_schedule": hyperparameters.epsilon_schedule,
        "ent_coef_schedule": hyperparameters.beta_schedule,
    }
    if isinstance(hyperparameters, PPOHyperparameters):
        options["policy_kwargs"]["shared_critic"] = hyperparameters.shared_critic
        options["second_critic"] = hyperparameters.second_critic
        return (plugged or PPO).from_spec("UnityPolicy", spec, **options)
    return (plugged or POCA).from_spec("UnityPOCAPolicy", spec, **options)
