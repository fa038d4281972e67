"""Behavioral cloning: an imitation loss in addition to the loss of an algorithm."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import torch

from sb3_ext.distributions import Branches
from sb3_ext.expert import DemonstrationSource, Expert, demonstration_exists, require_demonstration
from sb3_ext.networks.actions import first_actions
from sb3_ext.optimizer import Adam
from sb3_ext.policies import AgentPolicy
from sb3_ext.rollout import Batch, Rollout
from unity_gym.errors import UnityGymError


class Comparison(NamedTuple):
    """Comparison of an actor's actions with the expert's in the same m decisions."""

    error: torch.Tensor | None
    """Mean of the environment's action before clipping, minus the expert's action in `[-1, 1]`, (m, continuous size).

    None without continuous actions."""
    log_probs: torch.Tensor | None
    """Log-probabilities of the expert's discrete actions under the mask, (m, branches); None without branches."""
    agrees: torch.Tensor | None
    """Whether the expert's discrete action is the most likely, bool (m, branches); None without branches."""


def compare(policy: AgentPolicy, batch: Batch) -> Comparison:
    """Compare an actor with decisions of an expert; the expert's discrete actions count as allowed in any mask.

    :param policy: Policy with the actor.
    :param batch: Batch of sequences, with continuous actions in `[-1, 1]` and the actor's recurrent states.
    """
    spec = policy.adapter.spec.action_spec
    memory = batch.memory if policy.settings.memory_size else None
    previous = policy.previous_actions(batch.actions, raw=False)
    mean, _, logits = policy.head(policy.body(batch.observations, memory, batch.length, actions=previous)[0])
    continuous, discrete = batch.actions.tensor_split([spec.continuous_size], dim=1)
    error = log_probs = agrees = None
    if mean is not None:
        error = policy.mean_actions(mean) - continuous.clamp(-1, 1)
    if logits is not None:
        sizes = spec.discrete_branches
        places = discrete.to(torch.int64) + first_actions(sizes, discrete.device)
        branches = Branches(sizes, logits, batch.action_masks.scatter(1, places, True))
        log_probs = torch.cat(branches.log_probs_per_branch(discrete), 1)
        agrees = torch.cat(branches.mode(), 1) == discrete
    return Comparison(error, log_probs, agrees)


def imitation_loss(comparison: Comparison, batch: Batch) -> torch.Tensor:
    """Return the mean of error² over valid continuous actions plus the mean of −log π(action) over valid branches."""
    parts = []
    if comparison.error is not None:
        parts.append(batch.mean(comparison.error.square()))
    if comparison.log_probs is not None:
        parts.append(-batch.mean(comparison.log_probs))
    return torch.stack(parts).sum()


def sequence_length(policy: AgentPolicy) -> int:
    """Return the length of the sequences through which an actor learns; 1 without recurrent state."""
    return policy.settings.sequence_length if policy.settings.memory_size else 1


@torch.no_grad()
def refresh_memory(policy: AgentPolicy, rollout: Rollout) -> None:
    """Recompute a rollout's recurrent states, which are the actor's; see `Rollout.refresh_memory`."""
    length = sequence_length(policy)

    def after(batch: Batch) -> torch.Tensor:
        previous = policy.previous_actions(batch.actions, raw=False)
        memory: torch.Tensor = policy.body(batch.observations, batch.memory, length, actions=previous)[1]
        return memory

    if policy.settings.memory_size:
        rollout.refresh_memory(length, after)


class BehavioralCloning:
    """Imitation of demonstrations by the actor of an algorithm, after each update of the algorithm.

    The algorithm takes a shallow copy, calls `setup` once and `update` after each of its own updates, and saves
    `state_dict`. The loss is `imitation_loss`. A separate Adam optimizer updates the actor, but not the critic, except
    for a shared body. The actor's recurrent states in the demonstration are computed with its current weights.

    :param demonstrations: Path of a `.demo` file or a folder of them, or a loaded demonstration of the behavior.
    :param strength: Factor of the learning rate.
    :param steps: Decisions of the algorithm over which the learning rate decreases to 0, where cloning stops; 0 for a
        constant learning rate.
    :param learning_rate: Learning rate before `strength`; by default the initial one of the algorithm.
    :param n_epochs: Epochs over the demonstration per update.
    :param batch_size: Decisions per minibatch; by default that of the algorithm.
    :param samples_per_update: Maximum number of decisions per epoch, a random part of the demonstration; 0 for all.
    :raises DemonstrationError: If the demonstration does not exist.
    :raises UnityGymError: If a hyperparameter is out of range.
    """

    def __init__(
        self,
        demonstrations: DemonstrationSource,
        strength: float = 1.0,
        steps: int = 0,
        *,
        learning_rate: float | None = None,
        n_epochs: int = 3,
        batch_size: int | None = None,
        samples_per_update: int = 0,
    ) -> None:
        require_demonstration(demonstrations)
        for name, number, least in (
            ("strength", strength, 0),
            ("steps", steps, 0),
            ("n_epochs", n_epochs, 1),
            ("batch_size", batch_size, 1),
            ("samples_per_update", samples_per_update, 0),
        ):
            if number is not None and number < least:
                raise UnityGymError(f"{name} of behavioral cloning must be at least {least}, got {number}")
        self.demonstrations = demonstrations
        self.strength, self.steps, self.learning_rate = strength, steps, learning_rate
        self.n_epochs, self.batch_size, self.samples_per_update = n_epochs, batch_size, samples_per_update
        self._expert: Expert | None = None

    def setup(self, policy: AgentPolicy, learning_rate: float, batch_size: int) -> None:
        """Set up the optimizer for the actor of a policy, and read the demonstration.

        If a loaded model's demonstration no longer exists, only learning raises an error.

        :param policy: Policy on its device.
        :param learning_rate: Learning rate of the algorithm, the default.
        :param batch_size: Batch size of the algorithm, the default.
        :raises DemonstrationError: If the demonstration cannot be read, or is incompatible with the behavior spec. The
            message compares both, sensor by sensor.
        """
        self._policy = policy
        self._initial = self.strength * (learning_rate if self.learning_rate is None else self.learning_rate)
        self._size = batch_size if self.batch_size is None else self.batch_size
        actor = [*policy.body.parameters(), *policy.head.parameters()]
        self.optimizer: torch.optim.Adam = Adam(actor, lr=self._initial, fused=True)
        if demonstration_exists(self.demonstrations):
            self._read()

    def _read(self) -> Expert:
        if self._expert is None:
            policy = self._policy
            self._expert = Expert(self.demonstrations, policy.adapter.spec, policy.body.state_size, policy.device)
        return self._expert

    def learning_rate_at(self, num_timesteps: int) -> float:
        """Return the learning rate after this number of decisions of the algorithm."""
        return self._initial * max(0.0, 1 - num_timesteps / self.steps) if self.steps else self._initial

    def update(self, num_timesteps: int) -> dict[str, torch.Tensor]:
        """Learn from the demonstration, unless the learning rate is 0.

        :param num_timesteps: Decisions of the algorithm so far.
        :return: Logger values by name.
        :raises DemonstrationError: If the demonstration no longer exists.
        """
        learning_rate = self.learning_rate_at(num_timesteps)
        if learning_rate <= 0:
            return {}
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        expert, length = self._read(), sequence_length(self._policy)
        most = max(self.samples_per_update // self._size, 1) if self.samples_per_update else None
        losses = []
        for _ in range(self.n_epochs):
            refresh_memory(self._policy, expert)
            for batch in islice(expert.shuffled(self._size, length, drop_last=False), most):
                loss = imitation_loss(compare(self._policy, batch), batch)
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                losses.append(loss.detach())
        return {"loss": torch.stack(losses).mean()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:  # noqa: ARG002
        """Load a state of the optimizer; `strict` has no effect, but SB3 passes it."""
        self.optimizer.load_state_dict(state)


def checked_cloning(demonstrations: DemonstrationSource | BehavioralCloning | None) -> BehavioralCloning | None:
    """Return the behavioral cloning that the user gave, or that of a demonstration with Unity's defaults.

    :raises DemonstrationError: If the demonstration does not exist.
    """
    if demonstrations is None or isinstance(demonstrations, BehavioralCloning):
        return demonstrations
    return BehavioralCloning(demonstrations)
