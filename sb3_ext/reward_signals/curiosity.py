"""Curiosity: rewards for outcomes of the agent's actions that a model does not predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sb3_ext.networks import NetworkBody
from sb3_ext.networks.actions import action_features
from sb3_ext.networks.layers import linear, swish_layers
from sb3_ext.reward_signals.signal import LearnedSignal
from sb3_ext.rollout import Decisions
from unity_gym.specs import BehaviorSpec

_WIDTH = 256  # width of the hidden layers of both models
_FORWARD_WEIGHT = 0.2  # β of the paper
_LOSS_WEIGHT = 10.0


class Curiosity(LearnedSignal):
    """Intrinsic curiosity module: the reward is the error of a forward model in a space of learned features.

    Paper: https://arxiv.org/abs/1705.05363. φ encodes an observation. The inverse model predicts the action from φ(s)
    and φ(s'), so that φ represents what the agent can influence. The forward model predicts φ(s') from φ(s) and the
    action. With Unity's weights, the loss is 10 (0.2 L_F + 0.8 L_I), where L_F = ½‖φ̂(s') − φ(s')‖². L_I is the squared
    error of the raw continuous actions plus the cross-entropies of the branches. The reward is L_F of a decision, at
    most 1 / `strength`, and 0 before the first update of the models. Returns are non-episodic.

    :param gamma: Discount of future rewards.
    :param strength: Factor of the rewards.
    :param learning_rate: Learning rate of all three networks.
    :param network: Parameters of φ as in `NetworkSettings`, except `memory_size`.
    :raises UnityGymError: If `gamma` is not in `[0, 1]`, or `memory_size` is given.
    """

    name = "curiosity"
    non_episodic = True
    has_learned: torch.Tensor

    def __init__(self, gamma: float = 0.99, strength: float = 1.0, learning_rate: float = 3e-4, **network: Any) -> None:
        super().__init__(gamma, strength, learning_rate, **network)

    def _build(self, spec: BehaviorSpec) -> None:
        actions = self._actions = spec.action_spec
        discrete_size = sum(actions.discrete_branches)
        self.encoder = NetworkBody(spec, self.settings)
        size = self.encoder.features
        self.inverse_model = swish_layers(2 * size, _WIDTH, 1)
        self.inverse_model.append(linear(_WIDTH, actions.continuous_size + discrete_size))
        self.forward_model = swish_layers(size + actions.continuous_size + discrete_size, _WIDTH, 1)
        self.forward_model.append(linear(_WIDTH, size))
        self.register_buffer("has_learned", torch.zeros((), dtype=torch.bool))

    def update_normalization(self, observations: Sequence[torch.Tensor]) -> None:
        """Add observations, (n, *shape) per sensor, to the statistics of φ's vector observations, if any."""
        self.encoder.update_normalization(observations)

    @torch.no_grad()
    def rewards(self, batch: Decisions) -> torch.Tensor:
        """Return the forward model's errors, a float tensor (m,)."""
        before, after = self._encode(batch.observations, batch.next_observations)
        errors = self._forward_errors(batch.actions, before, after) * self.has_learned
        return errors.clamp(max=1 / self.strength) if self.strength else errors

    def update(self, batch: Decisions) -> dict[str, torch.Tensor]:
        """Make one gradient step, and return both parts of the loss."""
        inputs = [*batch.observations, *batch.next_observations, batch.actions]
        if batch.valid is None:
            return self._repeated(lambda tensors: self._learn(batch, tensors), inputs)
        return self._learn(batch, inputs)

    def _learn(self, batch: Decisions, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        *observations, actions = inputs
        sensors = len(observations) // 2
        before, after = self._encode(observations[:sensors], observations[sensors:])
        forward_loss = batch.mean(self._forward_errors(actions, before, after))
        inverse_loss = batch.mean(self._inverse_errors(actions, before, after))
        self._descend(_LOSS_WEIGHT * (_FORWARD_WEIGHT * forward_loss + (1 - _FORWARD_WEIGHT) * inverse_loss))
        self.has_learned.fill_(True)
        return {"forward_loss": forward_loss.detach(), "inverse_loss": inverse_loss.detach()}

    def _encode(
        self, observations: Sequence[torch.Tensor], next_observations: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return φ(s) and φ(s'), (m, features) each."""
        both = [torch.cat(pair) for pair in zip(observations, next_observations, strict=True)]
        before, after = self.encoder(both)[0].chunk(2)
        return before, after

    def _forward_errors(self, actions: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Return ½‖φ̂(s') − φ(s')‖², (m,)."""
        predicted = self.forward_model(torch.cat([before, action_features(actions, self._actions)], 1))
        errors: torch.Tensor = 0.5 * (predicted - after).square().sum(1)
        return errors

    def _inverse_errors(self, actions: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Return ‖â − a‖² of the continuous actions plus −ln p(a) of each discrete action, (m,)."""
        size = self._actions.continuous_size
        continuous, *branches = self.inverse_model(torch.cat([before, after], 1)).split(
            [size, *self._actions.discrete_branches], 1
        )
        errors: torch.Tensor = (continuous - actions[:, :size]).square().sum(1)
        for logits, chosen in zip(branches, actions[:, size:].to(torch.int64).unbind(1), strict=True):
            errors = errors + nn.functional.cross_entropy(logits, chosen, reduction="none")
        return errors
