"""Random network distillation: rewards for rarely seen observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sb3_ext.networks import NetworkBody
from sb3_ext.reward_signals.signal import LearnedSignal
from sb3_ext.rollout import Decisions
from unity_gym.specs import BehaviorSpec

_ENOUGH = 1000  # observations


class RND(LearnedSignal):
    """Random network distillation: the reward is a network's error in predicting the output of a random, fixed one.

    Paper: https://arxiv.org/abs/1810.12894. The reward is ‖f̂(s) − f(s)‖², and the loss its mean; f and f̂ have the same
    size. With `normalize`, both networks scale vector observations by the statistics of the first 1000 or more. These
    then stay constant, so that f and the rewards of known observations do not change. Returns are non-episodic.

    :param gamma: Discount of future rewards.
    :param strength: Factor of the rewards.
    :param learning_rate: Learning rate of f̂.
    :param network: Parameters of both networks as in `NetworkSettings`, except `memory_size`.
    :raises UnityGymError: If `gamma` is not in `[0, 1]`, or `memory_size` is given.
    """

    name = "rnd"
    non_episodic = True

    def __init__(self, gamma: float = 0.99, strength: float = 1.0, learning_rate: float = 1e-4, **network: Any) -> None:
        super().__init__(gamma, strength, learning_rate, **network)

    def _build(self, spec: BehaviorSpec) -> None:
        self.target = NetworkBody(spec, self.settings).requires_grad_(False)
        self.predictor = NetworkBody(spec, self.settings, self.target.normalization)

    def update_normalization(self, observations: Sequence[torch.Tensor]) -> None:
        """Add observations, (n, *shape) per sensor, to the statistics until they contain more than 1000."""
        statistics = self.target.normalization
        if statistics is not None and statistics.count <= _ENOUGH:
            self.target.update_normalization(observations)

    @torch.no_grad()
    def rewards(self, batch: Decisions) -> torch.Tensor:
        """Return the errors, a float tensor (m,)."""
        return self._errors(batch.observations)

    def update(self, batch: Decisions) -> dict[str, torch.Tensor]:
        """Make one gradient step, and return the loss."""
        if batch.valid is None:
            return self._repeated(lambda observations: self._learn(batch, observations), batch.observations)
        return self._learn(batch, batch.observations)

    def _learn(self, batch: Decisions, observations: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = batch.mean(self._errors(observations))
        self._descend(loss)
        return {"loss": loss.detach()}

    def _errors(self, observations: Sequence[torch.Tensor]) -> torch.Tensor:
        errors: torch.Tensor = (self.predictor(observations)[0] - self.target(observations)[0]).square().sum(1)
        return errors
