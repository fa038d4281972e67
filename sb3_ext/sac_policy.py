"""`UnitySACPolicy`: actor, critics and entropy coefficients of SAC, over the sensors of a behavior."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from sb3_ext.agents import SpaceAdapter
from sb3_ext.distributions import SquashedActionHead, SquashedActions
from sb3_ext.networks import NetworkBody
from sb3_ext.networks.twin import TwinCritic
from sb3_ext.optimizer import Adam
from sb3_ext.policies import AgentPolicy, Tensors
from sb3_ext.replay import ReplayBatch
from sb3_ext.sb3_names import SB3_NETWORKS
from unity_gym.errors import UnityGymError
from unity_gym.specs import ActionTuple, Array

if TYPE_CHECKING:
    from typing_extensions import Self


class UnitySACPolicy(AgentPolicy):
    """Actor, two critics with targets, and entropy coefficients for the continuous actions and for each branch.

    Continuous actions of the policy are in `[-1, 1]`; the environment's are scaled to the bounds of its space. The
    recurrent state, if any, is one vector per agent: the actor's part, then the critics'.

    :param observation_space: Observation space of one agent.
    :param action_space: Action space of one agent.
    :param lr_schedule: Learning rate as a function of the remaining progress (1 → 0).
    :param adapter: Adapter between the spaces and the arrays of the networks; by default derived from the spaces.
    :param value_heads: Names of the reward signals.
    :param init_entcoef: Initial value of the entropy coefficients, at least 0.
    :param optimizer_class: Class of the optimizer, one for actor, critics and entropy coefficients.
    :param optimizer_kwargs: Parameters of the optimizer except the learning rate (default: `fused=True` for Adam).
    :param network: Parameters as in `UnityPolicy`; the critics in `net_arch` are "qf".
    :raises UnityGymError: If continuous actions have no bounds.
    """

    action_scaling = "tanh"
    head: SquashedActionHead

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        adapter: SpaceAdapter | None = None,
        value_heads: Sequence[str] = ("extrinsic",),
        init_entcoef: float = 1.0,
        optimizer_class: type[torch.optim.Optimizer] = Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **network: Any,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            adapter=adapter,
            network=network,
            critic="qf",
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            value_heads=tuple(value_heads),
            init_entcoef=init_entcoef,
        )
        low, high = self.adapter.low, self.adapter.high
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UnityGymError(
                f"SAC stretches its actions to the bounds of the action space, and {low.tolist()} to {high.tolist()} "
                "are none: bound the space (gymnasium.wrappers.RescaleAction, or low and high of the Box)"
            )
        spec = self.adapter.spec
        action = spec.action_spec
        self.body = NetworkBody(spec, self.settings)
        self.head = SquashedActionHead(self.body.features, action)
        critics = [TwinCritic(spec, self.critic_settings, len(value_heads), self.body.normalization) for _ in range(2)]
        self.critic, self.critic_target = critics
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.critic_target.requires_grad_(False)
        coefficients = action.discrete_size + bool(action.continuous_size)
        self.log_ent_coef = nn.Parameter(torch.full((coefficients,), init_entcoef).log())
        """Logarithms of the entropy coefficients: of the continuous actions, if any, then of each branch."""
        self.memory_size = 2 * self.body.state_size
        self.actor_parameters = [*self.body.parameters(), *self.head.parameters()]
        self._critic_parameters = list(self.critic.parameters())
        self._target_parameters = list(self.critic_target.parameters())
        learned = [*self.actor_parameters, *self._critic_parameters, self.log_ent_coef]
        self.optimizer = optimizer_class(learned, lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def act(
        self,
        observations: Tensors,
        masks: torch.Tensor | None,
        memory: torch.Tensor,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Select the actions of n agents; see `AgentPolicy.act`. The log-probabilities are empty, (n, 0)."""
        actor_memory, critic_memory = self.split(memory)
        features, after = self.body(observations, actor_memory)
        if after is not None:
            memory = after
            if self.critic is not None:
                critic_memory = self.critic.observe(observations, critic_memory)[1]
                assert critic_memory is not None
                memory = torch.cat([after, critic_memory], 1)
        actions = self._actions(features, masks).act(deterministic, generator)
        return actions, actions[:, :0], self._with_actions(memory, actions)

    def _copy_without(self, parts: Iterable[Any]) -> Self:
        lists = (self.actor_parameters, self._critic_parameters, self._target_parameters)
        return super()._copy_without([*parts, self.critic_target, self.log_ent_coef, *lists])

    def _learning_parts(self) -> list[Any]:
        return [self.critic]

    def actions_of(self, batch: ReplayBatch) -> tuple[SquashedActions, SquashedActions]:
        """Return the distributions of a batch's decisions, and of the next ones, which have no gradient."""
        masks = following_masks = None
        if self.adapter.spec.action_spec.discrete_size:
            masks, following_masks = batch.action_masks, batch.next_action_masks
        if self.body.memory is None:
            current = self.body(batch.inputs)[0]
            with torch.no_grad():
                following = self.body(batch.next_inputs)[0]
        else:
            # The LSTM runs through each sequence and the state after its last decision.
            memory, previous = self.split(batch.memory)[0], self.previous_actions(batch.actions)
            states = self.body(batch.state_inputs, memory, batch.length + 1, actions=previous)[0]
            states = states.view(batch.sequences, batch.length + 1, -1)
            current, following = states[:, :-1].flatten(0, 1), states[:, 1:].flatten(0, 1).detach()
        with torch.no_grad():
            next_actions = self._actions(following, following_masks)
        return self._actions(current, masks), next_actions

    def _actions(self, features: torch.Tensor, masks: torch.Tensor | None) -> SquashedActions:
        mean, log_std, logits = self.head(features)
        return SquashedActions(self.adapter.spec.action_spec, mean, log_std, logits, masks)

    def move_target(self, tau: float) -> None:
        """Move the target critics towards the critics by the fraction `tau`."""
        move = get_ema_multi_avg_fn(1 - tau)  # type: ignore[no-untyped-call]
        move(self._target_parameters, self._critic_parameters, None)

    def split(self, memory: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the actor's and the critics' part of the recurrent state (n, memory size)."""
        size = self.body.state_size
        return (memory[:, :size], memory[:, size:]) if size else (None, None)

    def _bounded(self, continuous: torch.Tensor) -> torch.Tensor:
        return continuous

    def mean_actions(self, mean: torch.Tensor) -> torch.Tensor:
        """Return the environment's continuous actions of the head's means; see `AgentPolicy`."""
        return mean.tanh()

    def environment_actions(self, actions: Array) -> ActionTuple:
        """Return the actions for the environment from actions (n, act_dim) of `act`."""
        size = self.adapter.spec.action_spec.continuous_size
        low, high = self.adapter.low, self.adapter.high
        continuous = low + (actions[:, :size] + 1) * ((high - low) / 2)
        return ActionTuple(np.clip(continuous, low, high), actions[:, size:].astype(np.int32))


_SIZE = {"net_arch": [256, 256], "activation_fn": nn.ReLU}


class MlpSACPolicy(UnitySACPolicy):
    """`UnitySACPolicy` with the network of Stable-Baselines3's `MlpPolicy` of SAC: 256 and 256 units, ReLU."""

    network_defaults: ClassVar[dict[str, Any]] = SB3_NETWORKS["MlpPolicy"] | _SIZE


class CnnSACPolicy(UnitySACPolicy):
    """`UnitySACPolicy` with the network of Stable-Baselines3's `CnnPolicy` of SAC."""

    network_defaults: ClassVar[dict[str, Any]] = SB3_NETWORKS["CnnPolicy"] | _SIZE


class MultiInputSACPolicy(UnitySACPolicy):
    """`UnitySACPolicy` with the network of Stable-Baselines3's `MultiInputPolicy` of SAC."""

    network_defaults: ClassVar[dict[str, Any]] = SB3_NETWORKS["MultiInputPolicy"] | _SIZE


POLICY_ALIASES: dict[str, type[BasePolicy]] = {
    "UnityPolicy": UnitySACPolicy,
    "UnitySACPolicy": UnitySACPolicy,
    "MlpPolicy": MlpSACPolicy,
    "CnnPolicy": CnnSACPolicy,
    "MultiInputPolicy": MultiInputSACPolicy,
}
