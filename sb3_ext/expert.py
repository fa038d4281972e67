"""Load `.demo` files as tensors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from sb3_ext.rollout import Batch, Rollout
from unity_gym.demonstrations import Demonstration, fit, load
from unity_gym.errors import DemonstrationError
from unity_gym.specs import BehaviorSpec

DemonstrationSource = str | os.PathLike[str] | Demonstration
"""A `.demo` file, a folder of such files, or the result of `unity_gym.demonstrations.load`."""


class Expert(Rollout):
    """Demonstration as a rollout: each episode is a trajectory, for `shuffled`, `sequences` and `in_order`.

    The actions are those of the environment: continuous ones in `[-1, 1]`, then the index of each branch. There are no
    log-probabilities (n, 0), and the recurrent state is zero.

    :param demonstration: Source of the demonstration.
    :param spec: Specification of the behavior to train.
    :param memory_size: Size of the recurrent state.
    :param device: Device of the tensors.
    :raises DemonstrationError: If there is no such demonstration, or it does not fit the behavior; the message compares
        the sensors of both.
    """

    def __init__(
        self,
        demonstration: DemonstrationSource,
        spec: BehaviorSpec,
        memory_size: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        require_demonstration(demonstration)
        shown = demonstration if isinstance(demonstration, Demonstration) else load(Path(demonstration))
        shown = fit(shown, spec)
        n, (first, after) = len(shown), shown.episodes.T
        arrays = {
            "action": np.concatenate([shown.actions.continuous, shown.actions.discrete.astype(np.float32)], 1),
            "log_prob": np.zeros((n, 0), np.float32),
            "mask": shown.action_masks,
            "memory": np.zeros((n, memory_size), np.float32),
            "reward": shown.rewards,
            "group_reward": shown.group_rewards,
        } | {f"observation_{index}": array for index, array in enumerate(shown.observations)}
        super().__init__(
            {name: torch.tensor(array, device=device) for name, array in arrays.items()},
            lengths=after - first,
            end_observations=[torch.tensor(array[after - 1], device=device) for array in shown.next_observations],
            end_memory=torch.zeros((len(first), memory_size), device=device),
            terminated=shown.terminated[after - 1],
        )

    def sample(self, size: int) -> Batch:
        """Return `size` decisions, sampled with replacement (torch's global generator)."""
        return Batch(self, torch.randint(len(self), (size, 1)), None)


def demonstration_exists(demonstration: DemonstrationSource) -> bool:
    """Return whether there is such a file or folder."""
    return isinstance(demonstration, Demonstration) or Path(demonstration).exists()


def require_demonstration(demonstration: DemonstrationSource) -> None:
    """Check that there is a demonstration, without reading it.

    :raises DemonstrationError: If there is no such file or folder.
    """
    if not demonstration_exists(demonstration):
        raise DemonstrationError(
            f"there is no demonstration {demonstration} (seen from {Path.cwd()}): name a .demo file or a folder of "
            "them, or record one"
        )
