"""`UnityPolicy`: actor and critic over the sensors of a behavior."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_ext.agents import SpaceAdapter, allowed_actions, memory_before
from sb3_ext.distributions import CONTINUOUS_LIMIT, ActionDistribution, ActionHead, SquashedActionHead
from sb3_ext.hardware import to_device
from sb3_ext.networks import NetworkBody
from sb3_ext.networks.actions import action_features
from sb3_ext.networks.layers import value_layer
from sb3_ext.optimizer import Adam
from sb3_ext.rollout import Batch, Rollout, as_tensor
from sb3_ext.sb3_names import SB3_NETWORKS, network_settings
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import ActionTuple, Array

if TYPE_CHECKING:
    from typing_extensions import Self

Tensors = list[torch.Tensor]


class AgentPolicy(BasePolicy):
    """Base class of the policies of all algorithms: an actor over the sensors of a behavior.

    A subclass builds `body` and `head`, and implements `act` and `environment_actions`.

    :param observation_space: Observation space of one agent.
    :param action_space: Action space of one agent.
    :param adapter: Adapter between the spaces and the arrays of the networks; by default derived from the spaces.
    :param network: Entries of `policy_kwargs`; see `sb3_names.network_settings`.
    :param critic: Name of the critic in `net_arch`.
    :param optimizer_class: Class of the optimizers.
    :param optimizer_kwargs: Parameters of the optimizers except the learning rate (default: `fused=True` for Adam).
    :param options: Parameters of the subclass, which `save` stores.
    """

    body: NetworkBody
    head: ActionHead | SquashedActionHead
    action_scaling: str
    memory_size: int
    network_defaults: ClassVar[dict[str, Any]] = {}
    """Default entries of `policy_kwargs`."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        adapter: SpaceAdapter | None,
        network: dict[str, Any],
        critic: str,
        optimizer_class: type[torch.optim.Optimizer],
        optimizer_kwargs: dict[str, Any] | None,
        **options: Any,
    ) -> None:
        if optimizer_kwargs is None and optimizer_class in (Adam, torch.optim.Adam):
            optimizer_kwargs = {"fused": True}  # same updates, less overhead
        super().__init__(
            observation_space, action_space, optimizer_class=optimizer_class, optimizer_kwargs=optimizer_kwargs
        )
        self.adapter = adapter or SpaceAdapter(observation_space, action_space)
        self.settings, self.critic_settings = network_settings(network, self.network_defaults, self.adapter, critic)
        self._constructor = {
            "adapter": self.adapter,
            "optimizer_class": optimizer_class,
            "optimizer_kwargs": optimizer_kwargs,
            **network,
            **options,
        }

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters() | self._constructor | {"lr_schedule": self._dummy_schedule}
        del data["normalize_images"]
        return data

    def act(
        self,
        observations: Tensors,
        masks: torch.Tensor | None,
        memory: torch.Tensor,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Select the actions of n agents.

        :param observations: One tensor (n, *shape) per sensor.
        :param masks: Allowed discrete actions, bool (n, sum of branches); None allows all.
        :param memory: Recurrent states (n, memory size).
        :param deterministic: Whether to take the most likely actions.
        :param generator: Generator of the samples (default: torch's global one).
        :return: Actions (n, act_dim), their log-probabilities (n, act_dim or 0), recurrent states afterwards.
        """
        raise NotImplementedError

    def environment_actions(self, actions: Array) -> ActionTuple:
        """Return the actions for the environment from actions (n, act_dim) of `act`."""
        raise NotImplementedError

    def _bounded(self, continuous: torch.Tensor) -> torch.Tensor:
        """Return the continuous actions for the environment, in `[-1, 1]`, from raw ones (n, size)."""
        raise NotImplementedError

    def mean_actions(self, mean: torch.Tensor) -> torch.Tensor:
        """Return the environment's continuous actions (n, size) of the head's means, before clipping to `[-1, 1]`."""
        raise NotImplementedError

    def bounded_actions(self, actions: torch.Tensor) -> torch.Tensor:
        """Return actions (n, act_dim) of `act` as in a demonstration: with the continuous ones in `[-1, 1]`."""
        continuous, discrete = actions.tensor_split([self.adapter.spec.action_spec.continuous_size], dim=1)
        return torch.cat([self._bounded(continuous), discrete], 1)

    def previous_actions(self, actions: torch.Tensor, raw: bool = True) -> torch.Tensor | None:
        """Return actions as the input of the recurrent network at the next decision.

        :param actions: Actions (n, act_dim).
        :param raw: Whether continuous actions are those of `act`, instead of those of the environment.
        :return: Features (n, size), see `action_features`; None if the network does not use previous actions.
        """
        if not self.body.action_size:
            return None
        spec = self.adapter.spec.action_spec
        if raw:
            return action_features(self.bounded_actions(actions), spec)
        continuous, discrete = actions.tensor_split([spec.continuous_size], dim=1)
        return action_features(torch.cat([continuous.clamp(-1, 1), discrete], 1), spec)

    def _with_actions(self, memory: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return the recurrent state (n, memory size) after decisions, with their actions (n, act_dim)."""
        features = self.previous_actions(actions)
        if features is None:
            return memory
        parts = memory.view(len(memory), -1, self.body.state_size)[:, :, self.body.action_size :]
        return torch.cat([features.unsqueeze(1).expand(-1, parts.shape[1], -1), parts], 2).flatten(1)

    def _copy_without(self, parts: Iterable[Any]) -> Self:
        """Return a deep copy that has None instead of these parts."""
        apart: dict[int, Any] = {id(part): None for part in (*parts, self.optimizer)}
        apart[id(self.adapter)] = self.adapter
        copied = copy.deepcopy(self, apart)
        for module in copied.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # a deep copy's are apart, which is slower on a GPU
        return copied

    def acting_copy(self) -> Self:
        """Return a copy that acts as this policy does, with its own weights and without optimizer."""
        # The critics have a recurrent state, too, which acting updates.
        return self._copy_without([] if self.settings.memory_size else self._learning_parts())

    def actor(self) -> Self:
        """Return a copy with only the actor's recurrent state, without critics and optimizer."""
        actor = self._copy_without(self._learning_parts())
        actor.memory_size = self.body.state_size
        return actor

    def _learning_parts(self) -> list[Any]:
        """Return the parts that only learning needs."""
        raise NotImplementedError

    def clear_gradients(self) -> None:
        """Set all gradients to None, without the calls to the profiler of `optimizer.zero_grad`."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def weights(self) -> dict[str, Array]:
        """Return copies of all weights and statistics as arrays, by name."""
        return {name: part.detach().cpu().numpy().copy() for name, part in self.state_dict().items()}

    def load_acting(self, weights: Mapping[str, torch.Tensor | Array]) -> None:
        """Load weights, and ignore those of parts that this copy does not have; see `acting_copy`."""
        own = {name: weights[name] for name in self.state_dict()}
        self.load_state_dict(
            {name: part if isinstance(part, torch.Tensor) else as_tensor(part) for name, part in own.items()}
        )

    def select_actions(
        self,
        observations: Sequence[Array],
        masks: Array,
        memory: Array,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[ActionTuple, Array]:
        """Return the environment's actions of n agents, and their recurrent states afterwards.

        :param observations: One array (n, *shape) per sensor.
        :param masks: Allowed discrete actions, bool (n, sum of branches).
        :param memory: Recurrent states, float32 (n, memory size).
        :param deterministic: Whether to take the most likely actions.
        :param generator: Generator of the samples (default: torch's global one).
        """
        *seen, mask, before = self.tensors([*observations, masks, memory])
        with torch.no_grad():
            raw, _, after = self.act(seen, mask if masks.shape[1] else None, before, deterministic, generator)
        return self.environment_actions(raw.cpu().numpy()), after.cpu().numpy()

    @property
    def has_fresh_normalization(self) -> bool:
        """Whether observations are normalized and there are no statistics yet."""
        return self.body.normalization is not None and self.body.normalization.fresh

    def tensors(self, observations: Sequence[Array]) -> Tensors:
        """Return arrays as tensors on the device of this policy."""
        device = self.device  # once, as SB3 searches all parameters for it
        return [to_device(torch.as_tensor(array), device) for array in observations]

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> Any:
        """Return the actions of n agents, as `_predict` does."""
        return self._predict(obs, deterministic)

    def _start_memory(self, n: int) -> torch.Tensor:
        """Return the recurrent state (n, memory size) at the start of an episode."""
        return torch.zeros((n, self.memory_size), device=self.device)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> torch.Tensor:
        """Return actions (n, act_dim), without masks and recurrent state; SB3 requires the method."""
        observations = self._sensor_tensors(observation)
        return self.act(observations, None, self._start_memory(len(observations[0])), deterministic)[0]

    def _sensor_tensors(self, observation: PyTorchObs) -> Tensors:
        arrays = (
            {key: part.cpu().numpy() for key, part in observation.items()}
            if isinstance(observation, dict)
            else observation.cpu().numpy()
        )
        return self.tensors(self.adapter.sensor_arrays(arrays))

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Return the actions for one observation or a batch of n, in the form of the action space.

        The method replaces `BasePolicy.predict`, which supports neither masks nor hybrid actions.

        :param observation: One observation or a batch, in the form of the observation space.
        :param state: Recurrent state that the previous call returned; None at first and for policies without one.
        :param episode_start: Whether the recurrent state starts again, bool (n,).
        :param deterministic: Whether to take the most likely actions.
        :param action_masks: Allowed discrete actions, bool (n, sum of branches).
        :return: Actions, and the recurrent state after them, None for policies without one.
        :raises UnityGymError: If a recurrent policy gets no state in mid-episode, or `action_masks` has a wrong shape.
        """
        self.set_training_mode(False)
        tensor, is_batch = self.obs_to_tensor(observation)
        observations = self._sensor_tensors(tensor)
        n = len(observations[0])
        memory = torch.as_tensor(memory_before(state, episode_start, n, self.memory_size), device=self.device)
        masks = None
        if action_masks is not None:
            branches = self.adapter.spec.action_spec.discrete_branches
            masks = torch.as_tensor(allowed_actions(action_masks, n, branches), device=self.device)
        with torch.no_grad():
            raw, _, memory = self.act(observations, masks, memory, deterministic)
        actions = self.adapter.actions(self.environment_actions(raw.cpu().numpy()))
        if not is_batch:
            actions = {key: part[0] for key, part in actions.items()} if isinstance(actions, dict) else actions[0]
        return actions, (memory.cpu().numpy(),) if self.memory_size else None


class UnityPolicy(AgentPolicy):
    """Actor and critic of Unity's PPO, with one value head per reward signal.

    The recurrent state, if any, is one vector per agent: the actor's part, then that of each separate critic.

    :param observation_space: Observation space of one agent.
    :param action_space: Action space of one agent.
    :param lr_schedule: Learning rate as a function of the remaining progress (1 → 0).
    :param adapter: Adapter between the spaces and the arrays of the networks; by default derived from the spaces.
    :param value_heads: Names of the reward signals.
    :param shared_critic: Whether the value heads are on the actor's body instead of on a separate body.
    :param second_critic: Combination of the estimates of two critics, "max", "min" or "mean"; None for one critic.
    :param action_scaling: "unity" for actions of clip(raw, −3, 3) / 3, scaled to the bounds of the space; "clip" for
        raw actions clipped to the bounds, as in SB3.
    :param log_std_init: Initial logarithm of the standard deviations of continuous actions.
    :param ortho_init: Whether to initialize layers orthogonally, as Stable-Baselines3 does, instead of as Unity's
        trainer does; None for the default of the policy class.
    :param optimizer_class: Class of the optimizer, one for actor and critic.
    :param optimizer_kwargs: Parameters of the optimizer except the learning rate (default: `fused=True` for Adam).
    :param network: Parameters of `NetworkSettings`, and Stable-Baselines3's `net_arch` (a list of widths, or those of
        "pi" and "vf"), `features_extractor_class` and `features_extractor_kwargs`.
    :raises InvalidValueError: If `action_scaling` or `second_critic` has another value.
    :raises UnityGymError: If a second critic is combined with a shared one.
    """

    head: ActionHead

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        adapter: SpaceAdapter | None = None,
        value_heads: Sequence[str] = ("extrinsic",),
        shared_critic: bool = False,
        second_critic: str | None = None,
        action_scaling: str = "unity",
        log_std_init: float = 0.0,
        ortho_init: bool | None = None,
        optimizer_class: type[torch.optim.Optimizer] = Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **network: Any,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            adapter=adapter,
            network=network,
            critic="vf",
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            value_heads=tuple(value_heads),
            shared_critic=shared_critic,
            second_critic=second_critic,
            action_scaling=action_scaling,
            log_std_init=log_std_init,
            ortho_init=ortho_init,
        )
        if action_scaling not in ("unity", "clip"):
            raise InvalidValueError(f"action_scaling must be 'unity' or 'clip', got {action_scaling!r}")
        self.action_scaling = action_scaling
        spec = self.adapter.spec
        self.body = NetworkBody(spec, self.settings)
        self.head = ActionHead(self.body.features, spec.action_spec, log_std_init)
        self._build_critics(len(value_heads), shared_critic, second_critic)
        if self.network_defaults.get("ortho_init", False) if ortho_init is None else ortho_init:
            self._initialize_orthogonally()
        self.memory_size = self.body.state_size * (1 + len(self._critics))
        self.optimizer = optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _build_critics(self, heads: int, shared_critic: bool, second_critic: str | None) -> None:
        if second_critic not in (None, "max", "min", "mean"):
            raise InvalidValueError(f"second_critic must be None, 'max', 'min' or 'mean', got {second_critic!r}")
        if second_critic and shared_critic:
            raise UnityGymError(
                f"second_critic={second_critic!r} needs a first critic of its own, which shared_critic=True "
                "leaves out: give one of them"
            )
        spec = self.adapter.spec
        settings = self.critic_settings
        if shared_critic and settings != self.settings:
            raise UnityGymError("net_arch must be the same for 'pi' and 'vf' with shared_critic=True: leave one out")
        self.critic = None if shared_critic else NetworkBody(spec, settings, self.body.normalization)
        features = self.body.features if self.critic is None else self.critic.features
        self.value_head = value_layer(features, heads)
        self.combined_by = second_critic
        self.second_critic = NetworkBody(spec, settings, self.body.normalization) if second_critic else None
        self.second_value_head = value_layer(features, heads) if second_critic else None

    def _initialize_orthogonally(self) -> None:
        """Initialize actor and critics as `ActorCriticPolicy` of Stable-Baselines3 does."""
        heads: list[nn.Module] = [head for head in (self.value_head, self.second_value_head) if head is not None]
        gains: dict[float, list[nn.Module]] = {2**0.5: [self.body, *self._critics], 0.01: [self.head], 1.0: heads}
        for gain, modules in gains.items():
            for module in modules:
                module.apply(partial(self.init_weights, gain=gain))

    def forward(
        self, obs: PyTorchObs, deterministic: bool = False, action_masks: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return actions, values and log-probabilities at the start of an episode; see `ActorCriticPolicy.forward`.

        :param obs: Observations of n agents as tensors; see `obs_to_tensor`.
        :param deterministic: Whether to take the most likely actions.
        :param action_masks: Allowed discrete actions, bool (n, sum of branches).
        :return: Actions of the policy, in the shape of the action space or, if that is a `Dict`, (n, act_dim);
            values (n, signals); log-probabilities (n,).
        """
        distribution = self.get_distribution(obs, action_masks)
        actions = distribution.get_actions(deterministic)
        return self._shaped(actions), self.predict_values(obs), distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: torch.Tensor, action_masks: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return values (n, signals), log-probabilities (n,) and entropies (n,); see `forward`.

        :param obs: Observations of n agents as tensors.
        :param actions: Actions that `forward` returned.
        :param action_masks: Allowed discrete actions, bool (n, sum of branches).
        """
        distribution = self.get_distribution(obs, action_masks)
        log_probs = distribution.log_prob(actions.reshape(len(actions), -1).to(torch.float32))
        return self.predict_values(obs), log_probs, distribution.entropy()

    def get_distribution(self, obs: PyTorchObs, action_masks: torch.Tensor | None = None) -> ActionDistribution:
        """Return the distribution of the actions; see `forward`."""
        observations = self._sensor_tensors(obs)
        memory = self._split(self._start_memory(len(observations[0])))[0]
        if action_masks is not None:
            action_masks = torch.as_tensor(action_masks, dtype=torch.bool, device=self.device)
        return self._distribution(self.body(observations, memory)[0], action_masks)

    def predict_values(self, obs: PyTorchObs) -> torch.Tensor:
        """Return the values (n, signals); see `forward`."""
        observations = self._sensor_tensors(obs)
        return self.state_values(observations, self._start_memory(len(observations[0])))

    def _shaped(self, actions: torch.Tensor) -> torch.Tensor:
        """Return actions (n, act_dim) in shape and dtype of the action space, unchanged for a `Dict`."""
        space = self.action_space
        if isinstance(space, spaces.Dict):
            return actions
        actions = actions.reshape(-1, *(space.shape or ()))
        return actions if isinstance(space, spaces.Box) else actions.to(torch.int64)

    def act(
        self,
        observations: Tensors,
        masks: torch.Tensor | None,
        memory: torch.Tensor,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Select the actions of n agents; see `AgentPolicy.act`.

        :return: Raw actions (n, act_dim), their log-probabilities (n, act_dim), recurrent states afterwards.
        """
        parts = self._split(memory)
        features, after = self.body(observations, parts[0])
        if after is not None:
            others = [critic(observations, part)[1] for critic, part in zip(self._critics, parts[1:], strict=True)]
            memory = torch.cat([after, *others], 1)
        distribution = self._distribution(features, masks)
        distribution.generator = generator
        actions = distribution.get_actions(deterministic)
        return actions, distribution.log_probs_per_dimension(actions), self._with_actions(memory, actions)

    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, ActionDistribution]:
        """Return values (m, critics, signals), log-probabilities (m, act_dim) and distribution of decisions."""
        features, distribution = self._forward_actor(batch)
        previous = self.previous_actions(batch.actions)
        values = self._values(features, batch.inputs(self.body), self._memory_of(batch), batch.length, previous)
        return values, distribution.log_probs_per_dimension(batch.actions), distribution

    def log_probs(self, batch: Batch) -> torch.Tensor:
        """Return the log-probabilities (m, act_dim) of the batch's decisions."""
        return self._forward_actor(batch)[1].log_probs_per_dimension(batch.actions)

    def _forward_actor(self, batch: Batch) -> tuple[torch.Tensor, ActionDistribution]:
        """Return the actor's features (m, features), and the distribution of the batch's decisions."""
        previous = self.previous_actions(batch.actions)
        features, _ = self.body(batch.inputs(self.body), self._memory_of(batch)[0], batch.length, actions=previous)
        masks = batch.action_masks if self.adapter.spec.action_spec.discrete_size else None
        return features, self._distribution(features, masks)

    def _memory_of(self, batch: Batch) -> list[torch.Tensor | None]:
        return self._split(batch.memory) if self.memory_size else [None] * (1 + len(self._critics))

    def _distribution(self, features: torch.Tensor, masks: torch.Tensor | None) -> ActionDistribution:
        mean, log_std, logits = self.head(features)
        return ActionDistribution(self.adapter.spec.action_spec).proba_distribution(mean, log_std, logits, masks)

    def critic_values(self, observations: Sequence[torch.Tensor], memory: torch.Tensor) -> torch.Tensor:
        """Return the estimates of each critic (n, critics, signals).

        :param observations: One tensor (n, *shape) per sensor.
        :param memory: Recurrent states (n, memory size).
        """
        parts = self._split(memory)
        features = None if self._critics else self.body(observations, parts[0])[0]
        return self._values(features, observations, parts)

    def state_values(self, observations: Tensors, memory: torch.Tensor) -> torch.Tensor:
        """Return values (n, signals) from one (n, *shape) per sensor and recurrent states (n, memory size)."""
        return self.combined(self.critic_values(observations, memory))

    def combined(self, values: torch.Tensor) -> torch.Tensor:
        """Return the joint estimate of the critics (n, signals), from (n, critics, signals)."""
        if self.combined_by is None:
            return values[:, 0]
        if self.combined_by == "mean":
            return values.mean(1)
        return values.amax(1) if self.combined_by == "max" else values.amin(1)

    def baseline(self, values: torch.Tensor) -> torch.Tensor:
        """Return the baseline of the advantages (n, signals), from (n, critics, signals)."""
        return self.combined(values)

    def _values(
        self,
        features: torch.Tensor | None,
        observations: Sequence[torch.Tensor],
        parts: list[torch.Tensor | None],
        length: int = 1,
        previous: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the values of all critics; `features` are the actor's, for a shared critic."""
        if self._critics:
            features = self._critics[0](observations, parts[1], length, actions=previous)[0]
        values = [self.value_head(features)]
        if self.second_critic is not None and self.second_value_head is not None:
            second = self.second_critic(observations, parts[2], length, actions=previous)[0]
            values.append(self.second_value_head(second))
        return torch.stack(values, 1) if len(values) > 1 else values[0].unsqueeze(1)

    @property
    def _critics(self) -> list[NetworkBody]:
        """Bodies of the separate critics."""
        return [critic for critic in (self.critic, self.second_critic) if critic is not None]

    def _split(self, memory: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the actor's part of the recurrent state and that of each separate critic."""
        size = self.body.state_size
        return [*torch.split(memory, size, 1)] if size else [None] * (1 + len(self._critics))

    @torch.no_grad()
    def refresh_memory(self, rollout: Rollout) -> None:
        """Recompute a rollout's recurrent states with the current weights; see `Rollout.refresh_memory`."""
        self.refresh_stored_memory(rollout, self.settings.sequence_length)

    @torch.no_grad()
    def refresh_stored_memory(self, rollout: Rollout, length: int) -> None:
        """Recompute the recurrent states that acting stored, before each sequence of `length` decisions.

        With 1, these are all states of the rollout.
        """

        def after(batch: Batch) -> torch.Tensor:
            previous = self.previous_actions(batch.actions)
            parts = [
                body(batch.inputs(self.body), part, length, actions=previous)[1]
                for body, part in zip([self.body, *self._critics], self._split(batch.memory), strict=True)
            ]
            return torch.cat(parts, 1)

        rollout.refresh_memory(length, after)

    def _learning_parts(self) -> list[Any]:
        return [self.critic, self.value_head, self.second_critic, self.second_value_head]

    def _bounded(self, continuous: torch.Tensor) -> torch.Tensor:
        if self.action_scaling == "unity":
            return self.mean_actions(continuous.clamp(-CONTINUOUS_LIMIT, CONTINUOUS_LIMIT))
        low, high = (torch.as_tensor(bound).to(continuous) for bound in (self.adapter.low, self.adapter.high))
        return self.mean_actions(torch.minimum(torch.maximum(continuous, low), high))

    def mean_actions(self, mean: torch.Tensor) -> torch.Tensor:
        """Return the environment's continuous actions of the head's means, see `AgentPolicy`; unbounded ones as is."""
        if self.action_scaling == "unity":
            return mean / CONTINUOUS_LIMIT
        low, high = (torch.as_tensor(bound).to(mean) for bound in (self.adapter.low, self.adapter.high))
        return torch.where(torch.isfinite(high - low), (mean - (high + low) / 2) / ((high - low) / 2), mean)

    def environment_actions(self, actions: Array) -> ActionTuple:
        """Return the actions for the environment from raw actions (n, act_dim)."""
        size = self.adapter.spec.action_spec.continuous_size
        raw, low, high = actions[:, :size], self.adapter.low, self.adapter.high
        if self.action_scaling == "unity":
            bounded = np.minimum(np.maximum(raw, -CONTINUOUS_LIMIT), CONTINUOUS_LIMIT)  # in less time than np.clip
            continuous = (high + low) / 2 + bounded / CONTINUOUS_LIMIT * ((high - low) / 2)
        else:
            continuous = np.clip(raw, low, high)
        return ActionTuple(continuous, actions[:, size:].astype(np.int32))


class MlpPolicy(UnityPolicy):
    """`UnityPolicy` with the network of Stable-Baselines3's policy of this name: 64 and 64 units, tanh."""

    network_defaults = SB3_NETWORKS["MlpPolicy"]


class CnnPolicy(UnityPolicy):
    """`UnityPolicy` with the network of Stable-Baselines3's policy of this name: `NatureCNN` alone."""

    network_defaults = SB3_NETWORKS["CnnPolicy"]


class MultiInputPolicy(UnityPolicy):
    """`UnityPolicy` with the network of Stable-Baselines3's policy: `CombinedExtractor`, then 64 and 64 units."""

    network_defaults = SB3_NETWORKS["MultiInputPolicy"]


POLICY_ALIASES: dict[str, type[BasePolicy]] = {
    "UnityPolicy": UnityPolicy,
    "MlpPolicy": MlpPolicy,
    "CnnPolicy": CnnPolicy,
    "MultiInputPolicy": MultiInputPolicy,
}
