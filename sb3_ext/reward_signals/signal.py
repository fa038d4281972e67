"""Base classes of reward signals, and the reward of the scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from sb3_ext.cuda_graphs import Repeated
from sb3_ext.networks import NetworkSettings
from sb3_ext.optimizer import Adam
from sb3_ext.rollout import Decisions
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec


class RewardSignal(nn.Module):
    """Base class of reward signals: a reward for each decision, which may be learned from the algorithm's minibatches.

    An algorithm copies the given signals and calls `setup` once. It calls `update_normalization` once for all new
    observations, before `rewards` for them, and `update` for each minibatch of an update. It saves and loads the
    `state_dict`.

    :param gamma: Discount of future rewards.
    :param strength: Factor of the rewards.
    :raises UnityGymError: If `gamma` is not in `[0, 1]`.
    """

    name: ClassVar[str]
    """Name of the value head and in the log."""

    non_episodic: ClassVar[bool] = False
    """Whether returns are non-episodic: bootstrap from the next state even after termination."""

    def __init__(self, gamma: float = 0.99, strength: float = 1.0) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise UnityGymError(f"the gamma of a reward signal must be in [0, 1], got {gamma}")
        self.gamma, self.strength = gamma, strength

    @property
    def learns(self) -> bool:
        """Whether `update` does anything."""
        return type(self).update is not RewardSignal.update

    def setup(self, spec: BehaviorSpec) -> None:
        """Build the parts that depend on the behavior's sensors and actions; the base class has none."""

    def update_normalization(self, observations: Sequence[torch.Tensor]) -> None:
        """Add observations, (n, *shape) per sensor, to running statistics; the base class has none."""

    def rewards(self, batch: Decisions) -> torch.Tensor:
        """Return the rewards of the batch's decisions before `strength`, a float tensor (m,)."""
        raise NotImplementedError

    def update(self, batch: Decisions) -> Mapping[str, float | torch.Tensor]:  # noqa: ARG002
        """Learn from the valid decisions of a minibatch, and return logger values by name; the base class has none.

        PPO and POCA may call it in a thread of its own, one minibatch after the other, while the policy learns from the
        same minibatches.
        """
        return {}


class Extrinsic(RewardSignal):
    """Reward of the scene: the sum of individual and group reward."""

    name = "extrinsic"

    def rewards(self, batch: Decisions) -> torch.Tensor:
        """Return the environment's rewards."""
        return batch.rewards + batch.group_rewards


class LearnedSignal(RewardSignal):
    """Base class of rewards from networks, which learn with a separate Adam optimizer at a constant learning rate.

    The state of the optimizer is part of the `state_dict`.

    :param gamma: Discount of future rewards.
    :param strength: Factor of the rewards.
    :param learning_rate: Learning rate of the networks.
    :param network: Parameters of `NetworkSettings`, except `memory_size`.
    :raises UnityGymError: If `gamma` is not in `[0, 1]`, or `memory_size` is given.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, gamma: float, strength: float, learning_rate: float, **network: Any) -> None:
        super().__init__(gamma, strength)
        self.learning_rate = learning_rate
        self.settings = NetworkSettings(**network)
        if self.settings.memory_size:
            raise UnityGymError(f"reward signals have no memory: leave memory_size {self.settings.memory_size} out")

    def setup(self, spec: BehaviorSpec) -> None:
        """Build the networks and their optimizer."""
        self._build(spec)
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        self.optimizer = Adam(learned, lr=self.learning_rate, fused=True)
        self._repeated = Repeated(self, self.optimizer)

    def _build(self, spec: BehaviorSpec) -> None:
        raise NotImplementedError

    def _descend(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of the optimizer; see `torch.nn.Module.get_extra_state`."""
        return self.optimizer.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load a state of the optimizer, but keep the learning rate of this signal."""
        self.optimizer.load_state_dict(state)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
