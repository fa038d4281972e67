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

from sb3_ext.agents import SpaceAdapter, memory_before
from sb3_ext.distributions import CONTINUOUS_LIMIT, ActionDistribution, ActionHead, SquashedActionHead
from sb3_ext.networks import NetworkBody
from sb3_ext.networks.actions import action_features
from sb3_ext.networks.layers import value_layer
from sb3_ext.rollout import Batch, Rollout, as_tensor
from sb3_ext.sb3_names import SB3_NETWORKS, network_settings
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.specs import ActionTuple, Array

if TYPE_CHECKING:
    from typing_extensions import Self

Tensors = list[torch.Tensor]


class AgentPolicy(BasePolicy):
    """An actor over the sensors of a behavior: what the policies of all algorithms have in common.

    A subclass builds `body` and `head`, and says how to `act` and what the environment gets of it.

    :param observation_space: of one agent
    :param action_space: of one agent
    :param columns: observations and actions as columns; by default derived from the spaces
    :param network: Entries of `policy_kwargs`; see `sb3_names.network_settings`.
    :param critic: Name of the critic in `net_arch`.
    :param optimizer_class: of the optimizers
    :param optimizer_kwargs: in addition to the learning rate; by default Adam's fused form
    :param options: of the subclass, which `save` keeps
    """

    body: NetworkBody
    head: ActionHead | SquashedActionHead
    action_scaling: str
    memory_size: int
    network_defaults: ClassVar[dict[str, Any]] = {}
    """Entries of `policy_kwargs` where none are given."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        columns: SpaceAdapter | None,
        network: dict[str, Any],
        critic: str,
        optimizer_class: type[torch.optim.Optimizer],
        optimizer_kwargs: dict[str, Any] | None,
        **options: Any,
    ) -> None:
        if optimizer_kwargs is None and optimizer_class is torch.optim.Adam:
            optimizer_kwargs = {"fused": True}  # the same steps, sooner
        super().__init__(
            observation_space, action_space, optimizer_class=optimizer_class, optimizer_kwargs=optimizer_kwargs
        )
        self.columns = columns or SpaceAdapter(observation_space, action_space)
        self.settings, self.critic_settings = network_settings(network, self.network_defaults, self.columns, critic)
        self._constructor = {
            "columns": self.columns,
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
        """Decide for n agents.

        :param observations: one (n, *shape) a sensor
        :param masks: bool (n, sum of branches), True = allowed; None allows everything
        :param memory: (n, memory size)
        :param generator: source of the samples; by default torch's global one
        :return: actions (n, columns), their log-probabilities (n, columns or 0), memory afterwards
        """
        raise NotImplementedError

    def environment_actions(self, actions: Array) -> ActionTuple:
        """Actions (n, columns), as `act` gives them → what the environment gets."""
        raise NotImplementedError

    def _bounded(self, numbers: torch.Tensor) -> torch.Tensor:
        """Raw continuous actions (n, size) → those that the environment gets, in `[-1, 1]`."""
        raise NotImplementedError

    def previous_actions(self, actions: torch.Tensor) -> torch.Tensor | None:
        """Return actions (n, columns), as `act` gives them, as the recurrent network reads them at the next decision.

        :return: (n, size), see `action_features`; None if the network does not read them.
        """
        if not self.body.action_size:
            return None
        spec = self.columns.spec.action_spec
        numbers, choices = actions.tensor_split([spec.continuous_size], dim=1)
        return action_features(torch.cat([self._bounded(numbers), choices], 1), spec)

    def _with_actions(self, memory: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return the recurrent state (n, memory size) after decisions, with their actions (n, columns)."""
        features = self.previous_actions(actions)
        if features is None:
            return memory
        parts = memory.view(len(memory), -1, self.body.state_size)[:, :, self.body.action_size :]
        return torch.cat([features.unsqueeze(1).expand(-1, parts.shape[1], -1), parts], 2).flatten(1)

    def _copy_without(self, parts: Iterable[Any]) -> Self:
        """Return a deep copy that has None instead of these parts."""
        apart: dict[int, Any] = {id(part): None for part in (*parts, self.optimizer)}
        apart[id(self.columns)] = self.columns
        return copy.deepcopy(self, apart)

    def acting_copy(self) -> Self:
        """Return a copy that acts as this policy does, with weights of its own; it has no optimizer."""
        # The critics have a recurrent state, too, which acting carries on.
        return self._copy_without([] if self.settings.memory_size else self._learning_parts())

    def actor(self) -> Self:
        """Return a copy that acts with the recurrent state of the actor alone; it has no critics and no optimizer."""
        actor = self._copy_without(self._learning_parts())
        actor.memory_size = self.body.state_size
        return actor

    def _learning_parts(self) -> list[Any]:
        """Return what only learning needs."""
        raise NotImplementedError

    def weights(self) -> dict[str, Array]:
        """Return copies of all weights and statistics as arrays, by name."""
        return {name: part.detach().cpu().numpy().copy() for name, part in self.state_dict().items()}

    def load_acting(self, weights: Mapping[str, torch.Tensor | Array]) -> None:
        """Take over weights, which may have more than this copy has; see `acting_copy`."""
        own = {name: weights[name] for name in self.state_dict()}
        self.load_state_dict(
            {name: part if isinstance(part, torch.Tensor) else as_tensor(part) for name, part in own.items()}
        )

    def select_actions(
        self,
        columns: Sequence[Array],
        masks: Array,
        memory: Array,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[ActionTuple, Array]:
        """Return what the environment gets from n agents, and their memory afterwards.

        :param columns: one (n, *shape) a sensor
        :param masks: bool (n, sum of branches), True = allowed
        :param memory: float32 (n, memory size)
        :param deterministic: take the most likely actions
        """
        mask = torch.as_tensor(masks, device=self.device) if masks.shape[1] else None
        with torch.no_grad():
            raw, _, after = self.act(
                self.tensors(columns), mask, torch.as_tensor(memory, device=self.device), deterministic, generator
            )
        return self.environment_actions(raw.cpu().numpy()), after.cpu().numpy()

    @property
    def has_fresh_normalization(self) -> bool:
        """Whether observations are normalized and no statistics are there yet."""
        return self.body.normalization is not None and self.body.normalization.fresh

    def tensors(self, columns: Sequence[Array]) -> Tensors:
        """Arrays as tensors on the device of this policy."""
        return [torch.as_tensor(column, device=self.device) for column in columns]

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> Any:
        """Return the actions of n agents, as `_predict` does."""
        return self._predict(obs, deterministic)

    def _start_memory(self, n: int) -> torch.Tensor:
        """Return the recurrent state (n, memory size) at the start of an episode."""
        return torch.zeros((n, self.memory_size), device=self.device)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> torch.Tensor:
        """Actions (n, columns), without masks and memory; SB3 requires the method."""
        columns = self._columns(observation)
        return self.act(columns, None, self._start_memory(len(columns[0])), deterministic)[0]

    def _columns(self, observation: PyTorchObs) -> Tensors:
        arrays = (
            {key: part.cpu().numpy() for key, part in observation.items()}
            if isinstance(observation, dict)
            else observation.cpu().numpy()
        )
        return self.tensors(self.columns.columns(arrays))

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Return the actions for one observation or a batch of n, as the action space forms them.

        It replaces `BasePolicy.predict`, which knows neither masks nor actions of numbers and choices.

        :param state: the memory, as the last call returned it; None at first and where there is none
        :param episode_start: bool (n,), where the memory starts again
        :param action_masks: bool (n, sum of branches), True = allowed
        :raises UnityGymError: a policy with memory got no state, although an episode goes on
        """
        self.set_training_mode(False)
        tensor, is_batch = self.obs_to_tensor(observation)
        columns = self._columns(tensor)
        n = len(columns[0])
        memory = torch.as_tensor(memory_before(state, episode_start, n, self.memory_size), device=self.device)
        masks = None
        if action_masks is not None:
            masks = torch.as_tensor(action_masks, dtype=torch.bool, device=self.device).reshape(n, -1)
        with torch.no_grad():
            raw, _, memory = self.act(columns, masks, memory, deterministic)
        actions = self.columns.actions(self.environment_actions(raw.cpu().numpy()))
        if not is_batch:
            actions = {key: part[0] for key, part in actions.items()} if isinstance(actions, dict) else actions[0]
        return actions, (memory.cpu().numpy(),) if self.memory_size else None


class UnityPolicy(AgentPolicy):
    """An actor and a critic with one value head a reward signal, as Unity's PPO has them.

    Memory, where there is any, is one vector an agent: the actor's, then that of each separate critic.

    :param observation_space: of one agent
    :param action_space: of one agent
    :param lr_schedule: learning rate by remaining progress (1 → 0)
    :param columns: observations and actions as columns; by default derived from the spaces
    :param value_heads: names of the reward signals
    :param shared_critic: put the value heads on the actor's body instead of on a body of their own
    :param second_critic: a second critic, whose estimates are combined with those of the first by "max", "min" or
        "mean"; None for no second one
    :param action_scaling: "unity" (the environment gets clip(raw, −3, 3) / 3, stretched to the bounds of the space) or
        "clip" (the raw numbers, clipped to the bounds, as in SB3)
    :param log_std_init: first logarithm of the standard deviations of continuous actions
    :param ortho_init: Initialize layers orthogonally, as Stable-Baselines3 does, instead of as Unity's trainer does;
        None for the policy's own way.
    :param optimizer_class: one optimizer over actor and critic
    :param optimizer_kwargs: in addition to the learning rate; by default Adam's fused form
    :param network: As in `NetworkSettings`, and Stable-Baselines3's `net_arch` (a list of widths, or those of "pi" and
        "vf"), `features_extractor_class` and `features_extractor_kwargs`.
    :raises InvalidValueError: another action scaling, or another way to combine the critics
    :raises UnityGymError: If a second critic is combined with a shared one.
    """

    head: ActionHead

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        columns: SpaceAdapter | None = None,
        value_heads: Sequence[str] = ("extrinsic",),
        shared_critic: bool = False,
        second_critic: str | None = None,
        action_scaling: str = "unity",
        log_std_init: float = 0.0,
        ortho_init: bool | None = None,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **network: Any,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            columns=columns,
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
            raise InvalidValueError(f"action_scaling is 'unity' or 'clip', not {action_scaling!r}")
        self.action_scaling = action_scaling
        spec = self.columns.spec
        self.distribution = ActionDistribution(spec.action_spec)
        self.body = NetworkBody(spec, self.settings)
        self.head = self.distribution.proba_distribution_net(self.body.features, log_std_init)
        self._build_critics(len(value_heads), shared_critic, second_critic)
        if self.network_defaults.get("ortho_init", False) if ortho_init is None else ortho_init:
            self._initialize_orthogonally()
        self.memory_size = self.body.state_size * (1 + len(self._critics))
        self.optimizer = optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _build_critics(self, heads: int, shared_critic: bool, second_critic: str | None) -> None:
        if second_critic not in (None, "max", "min", "mean"):
            raise InvalidValueError(f"second_critic is None, 'max', 'min' or 'mean', not {second_critic!r}")
        if second_critic and shared_critic:
            raise UnityGymError(
                f"second_critic={second_critic!r} needs a first critic of its own, which shared_critic=True "
                "leaves out: give one of them"
            )
        spec = self.columns.spec
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
        heads: list[torch.nn.Module] = [head for head in (self.value_head, self.second_value_head) if head is not None]
        gains: dict[float, list[torch.nn.Module]] = {2**0.5: [self.body, *self._critics], 0.01: [self.head], 1.0: heads}
        for gain, modules in gains.items():
            for module in modules:
                module.apply(partial(self.init_weights, gain=gain))

    def forward(
        self, obs: PyTorchObs, deterministic: bool = False, action_masks: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return actions, values and log-probabilities at the start of an episode; see `ActorCriticPolicy.forward`.

        :param obs: Observations of n agents as tensors; see `obs_to_tensor`.
        :param action_masks: bool (n, sum of branches), True = allowed.
        :return: actions of the policy, in the shape of the action space or, if that is a `Dict`, (n, dimensions);
            values (n, signals); log-probabilities (n,)
        """
        distribution = self.get_distribution(obs, action_masks)
        actions = distribution.get_actions(deterministic)
        return self._shaped(actions), self.predict_values(obs), distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: torch.Tensor, action_masks: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return values (n, signals), log-probabilities (n,) and entropies (n,); see `forward`.

        :param actions: Actions as `forward` returns them.
        """
        distribution = self.get_distribution(obs, action_masks)
        log_probs = distribution.log_prob(actions.reshape(len(actions), -1).to(torch.float32))
        return self.predict_values(obs), log_probs, distribution.entropy()

    def get_distribution(self, obs: PyTorchObs, action_masks: torch.Tensor | None = None) -> ActionDistribution:
        """Return the distribution of the actions; see `forward`."""
        columns = self._columns(obs)
        memory = self._split(self._start_memory(len(columns[0])))[0]
        mean, log_std, logits = self.head(self.body(columns, memory)[0])
        if action_masks is not None:
            action_masks = torch.as_tensor(action_masks, dtype=torch.bool, device=self.device)
        return ActionDistribution(self.columns.spec.action_spec).proba_distribution(mean, log_std, logits, action_masks)

    def predict_values(self, obs: PyTorchObs) -> torch.Tensor:
        """Return the values (n, signals); see `forward`."""
        columns = self._columns(obs)
        return self.state_values(columns, self._start_memory(len(columns[0])))

    def _shaped(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions (n, dimensions) in shape and type of the action space; those of a `Dict` as they are."""
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
        """Decide for n agents.

        :param observations: one (n, *shape) a sensor
        :param masks: bool (n, sum of branches), True = allowed; None allows everything
        :param memory: (n, memory size)
        :return: raw actions (n, columns), their log-probabilities (n, columns), memory afterwards
        """
        parts = self._split(memory)
        features, after = self.body(observations, parts[0])
        if after is not None:
            others = [critic(observations, part)[1] for critic, part in zip(self._critics, parts[1:], strict=True)]
            memory = torch.cat([after, *others], 1)
        distribution = self._distribution(features, masks)
        distribution.generator = generator
        actions = distribution.get_actions(deterministic)
        return actions, distribution.log_prob_columns(actions), self._with_actions(memory, actions)

    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, ActionDistribution]:
        """Values (m, critics, signals) and log-probabilities (m, columns) of decisions, and their distribution."""
        features, distribution = self._decided(batch)
        previous = self.previous_actions(batch.actions)
        values = self._values(features, batch.inputs(self.body), self._memory_of(batch), batch.length, previous)
        return values, distribution.log_prob_columns(batch.actions), distribution

    def log_probs(self, batch: Batch) -> torch.Tensor:
        """(m, columns): of the batch's decisions."""
        return self._decided(batch)[1].log_prob_columns(batch.actions)

    def _decided(self, batch: Batch) -> tuple[torch.Tensor, ActionDistribution]:
        """Return the actor's features (m, features), and the distribution of the batch's decisions."""
        previous = self.previous_actions(batch.actions)
        features, _ = self.body(batch.inputs(self.body), self._memory_of(batch)[0], batch.length, actions=previous)
        masks = batch.action_masks if self.columns.spec.action_spec.discrete_size else None
        return features, self._distribution(features, masks)

    def _memory_of(self, batch: Batch) -> list[torch.Tensor | None]:
        return self._split(batch.memory) if self.memory_size else [None] * (1 + len(self._critics))

    def _distribution(self, features: torch.Tensor, masks: torch.Tensor | None) -> ActionDistribution:
        mean, log_std, logits = self.head(features)
        return self.distribution.proba_distribution(mean, log_std, logits, masks)

    def critic_values(self, observations: Sequence[torch.Tensor], memory: torch.Tensor) -> torch.Tensor:
        """Return the estimates of each critic: (n, critics, signals).

        :param observations: one (n, *shape) per sensor
        :param memory: (n, memory size)
        """
        parts = self._split(memory)
        features = None if self._critics else self.body(observations, parts[0])[0]
        return self._values(features, observations, parts)

    def state_values(self, observations: Tensors, memory: torch.Tensor) -> torch.Tensor:
        """(n, signals), of one (n, *shape) per sensor and memory (n, memory size)."""
        return self.combined(self.critic_values(observations, memory))

    def combined(self, values: torch.Tensor) -> torch.Tensor:
        """Return the joint estimate of the critics: (n, critics, signals) → (n, signals)."""
        if self.combined_by is None:
            return values[:, 0]
        if self.combined_by == "mean":
            return values.mean(1)
        return values.amax(1) if self.combined_by == "max" else values.amin(1)

    def baseline(self, values: torch.Tensor) -> torch.Tensor:
        """Return the baseline of the advantages: (n, critics, signals) → (n, signals)."""
        return self.combined(values)

    def _values(
        self,
        features: torch.Tensor | None,
        observations: Sequence[torch.Tensor],
        parts: list[torch.Tensor | None],
        length: int = 1,
        previous: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Of all critics; `features` are the actor's, which a shared critic reads."""
        if self._critics:
            features = self._critics[0](observations, parts[1], length, actions=previous)[0]
        values = [self.value_head(features)]
        if self.second_critic is not None and self.second_value_head is not None:
            second = self.second_critic(observations, parts[2], length, actions=previous)[0]
            values.append(self.second_value_head(second))
        return torch.stack(values, 1)

    @property
    def _critics(self) -> list[NetworkBody]:
        """The bodies of the separate critics."""
        return [critic for critic in (self.critic, self.second_critic) if critic is not None]

    def _split(self, memory: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the actor's part of the memory and that of each separate critic."""
        size = self.body.state_size
        return [*torch.split(memory, size, 1)] if size else [None] * (1 + len(self._critics))

    @torch.no_grad()
    def refresh_memory(self, rollout: Rollout) -> None:
        """Renew a rollout's memory with the present weights; see `Rollout.refresh_memory`."""
        length = self.settings.sequence_length

        def after(batch: Batch) -> torch.Tensor:
            previous = self.previous_actions(batch.actions)
            parts = [
                body(batch.inputs(self.body), part, length, actions=previous)[1]
                for body, part in zip([self.body, *self._critics], self._split(batch.memory), strict=True)
            ]
            return torch.cat(parts, 1)

        rollout.refresh_memory(length, after)

    def _copy_without(self, parts: Iterable[Any]) -> Self:
        twin = super()._copy_without([*parts, self.distribution])  # which has tensors of the last decisions
        twin.distribution = ActionDistribution(self.columns.spec.action_spec)
        return twin

    def _learning_parts(self) -> list[Any]:
        return [self.critic, self.value_head, self.second_critic, self.second_value_head]

    def _bounded(self, numbers: torch.Tensor) -> torch.Tensor:
        if self.action_scaling == "unity":
            return numbers.clamp(-CONTINUOUS_LIMIT, CONTINUOUS_LIMIT) / CONTINUOUS_LIMIT
        low, high = (torch.as_tensor(bound).to(numbers) for bound in (self.columns.low, self.columns.high))
        clipped = torch.minimum(torch.maximum(numbers, low), high)
        scaled = (clipped - (high + low) / 2) / ((high - low) / 2)
        return torch.where(torch.isfinite(high - low), scaled, clipped)

    def environment_actions(self, actions: Array) -> ActionTuple:
        """Raw actions (n, columns) → what the environment gets."""
        size = self.columns.spec.action_spec.continuous_size
        raw, low, high = actions[:, :size], self.columns.low, self.columns.high
        if self.action_scaling == "unity":
            scaled = np.clip(raw, -CONTINUOUS_LIMIT, CONTINUOUS_LIMIT) / CONTINUOUS_LIMIT
            continuous = (high + low) / 2 + scaled * ((high - low) / 2)
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
