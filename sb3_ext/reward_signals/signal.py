"""What every reward signal has in common, and the scene's own reward."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from sb3_ext.experience import Batch
from unity_gym.errors import UnityGymError
from unity_gym.specs import BehaviorSpec


class RewardSignal(nn.Module):
    """Gives each decision a reward, and may learn from every minibatch that the algorithm learns from.

    An algorithm copies the signals that it is given, calls `setup` once, `rewards` for every rollout, and `update` for
    every minibatch of an update. It saves and loads the `state_dict`.

    :param gamma: discount of future rewards
    :param strength: factor of the rewards
    :raises UnityGymError: a discount outside 0…1
    """

    name: ClassVar[str]
    """Of the value head and in the log."""

    outlasts_episodes: ClassVar[bool] = False
    """The value of what follows counts also where an episode came to its end."""

    def __init__(self, gamma: float = 0.99, strength: float = 1.0) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise UnityGymError(f"the gamma of a reward signal lies in 0…1; got {gamma}")
        self.gamma, self.strength = gamma, strength

    def setup(self, spec: BehaviorSpec) -> None:
        """Build what depends on the behavior's sensors and actions: nothing, unless overridden."""

    def rewards(self, batch: Batch) -> torch.Tensor:
        """float (m,), the rewards of the batch's decisions before `strength`."""
        raise NotImplementedError

    def update(self, batch: Batch) -> dict[str, float]:  # noqa: ARG002
        """Learn from a minibatch (where `batch.valid` holds): the losses by name. Nothing, unless overridden."""
        return {}


class Extrinsic(RewardSignal):
    """The reward of the scene: the agent's own and its group's."""

    name = "extrinsic"

    def rewards(self, batch: Batch) -> torch.Tensor:
        """What the environment gave."""
        return batch.rewards + batch.group_rewards
