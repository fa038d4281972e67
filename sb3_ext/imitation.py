"""Behavioral cloning: the part that moves an actor towards what an expert did, whatever else it learns from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch

from sb3_ext.distributions import CONTINUOUS_LIMIT, Branches
from sb3_ext.expert import DemonstrationSource, Expert, demonstration_exists, require_demonstration
from sb3_ext.networks.actions import action_features
from sb3_ext.policies import AgentPolicy
from sb3_ext.rollout import Batch, Rollout
from unity_gym.errors import UnityGymError

_SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "unity": lambda mean: mean / CONTINUOUS_LIMIT,
    "clip": lambda mean: mean,
    "tanh": torch.tanh,
}  # from what the head gives to what the environment gets, by `action_scaling`


class Comparison(NamedTuple):
    """Actions of an actor, and those of the expert in the same m decisions."""

    error: torch.Tensor | None
    """(m, continuous), the mean that the environment gets, before it is clipped, less the expert's number in −1…1; None
    without continuous actions."""
    log_probs: torch.Tensor | None
    """(m, branches), log π of the expert's choice under the mask; None without branches."""
    agrees: torch.Tensor | None
    """bool (m, branches), whether the expert's choice is the most likely; None without branches."""


def compare(policy: AgentPolicy, batch: Batch) -> Comparison:
    """Ask an actor about decisions of an expert, whose choices count as allowed whatever the mask says.

    :param batch: of sequences; the continuous actions lie in −1…1, and the memory is that of the actor
    """
    spec = policy.columns.spec.action_spec
    memory = batch.memory if policy.settings.memory_size else None
    previous = _previous_actions(policy, batch)
    mean, _, logits = policy.head(policy.body(batch.observations, memory, batch.length, actions=previous)[0])
    numbers, choices = batch.actions.tensor_split([spec.continuous_size], dim=1)
    error = log_probs = agrees = None
    if mean is not None:
        error = _SCALES[policy.action_scaling](mean) - numbers.clamp(-1, 1)
    if logits is not None:
        sizes = spec.discrete_branches
        places = choices.to(torch.int64) + torch.tensor([0, *accumulate(sizes[:-1])], device=choices.device)
        branches = Branches(sizes, logits, batch.action_masks.scatter(1, places, True))
        log_probs = torch.cat(branches.log_prob_columns(choices), 1)
        agrees = torch.cat(branches.mode(), 1) == choices
    return Comparison(error, log_probs, agrees)


def _previous_actions(policy: AgentPolicy, batch: Batch) -> torch.Tensor | None:
    """Return the expert's actions as `AgentPolicy.previous_actions` does those of the actor."""
    if not policy.body.action_size:
        return None
    spec = policy.columns.spec.action_spec
    numbers, choices = batch.actions.tensor_split([spec.continuous_size], dim=1)
    return action_features(torch.cat([numbers.clamp(-1, 1), choices], 1), spec)


def imitation_loss(comparison: Comparison, batch: Batch) -> torch.Tensor:
    """Return the mean of error² over valid continuous actions plus that of −log π(action) over valid branches."""
    parts = []
    if comparison.error is not None:
        parts.append(batch.mean(comparison.error.square()))
    if comparison.log_probs is not None:
        parts.append(-batch.mean(comparison.log_probs))
    return torch.stack(parts).sum()


def sequence_length(policy: AgentPolicy) -> int:
    """Of the sequences through which an actor learns; 1 without memory."""
    return policy.settings.sequence_length if policy.settings.memory_size else 1


@torch.no_grad()
def refresh_memory(policy: AgentPolicy, rollout: Rollout) -> None:
    """Renew a rollout's memory, which is that of the actor alone; see `Rollout.refresh_memory`."""
    length = sequence_length(policy)

    def after(batch: Batch) -> torch.Tensor:
        previous = _previous_actions(policy, batch)
        memory: torch.Tensor = policy.body(batch.observations, batch.memory, length, actions=previous)[1]
        return memory

    if policy.settings.memory_size:
        rollout.refresh_memory(length, after)


class BehavioralCloning:
    """Moves the actor of an algorithm towards what an expert recorded, after each update of the algorithm.

    The algorithm takes a shallow copy, calls `setup` once and `update` after each of its own updates, and saves
    `state_dict`. The loss is `imitation_loss`; an Adam of its own changes the actor, never the critic (except for a
    body that they share). The actor's memory in the demonstration is computed with its present weights.

    :param demonstrations: a `.demo` file, a folder of them, or a loaded demonstration of the behavior
    :param strength: factor of the learning rate
    :param steps: decisions of the algorithm over which the learning rate falls to 0, where cloning ends; 0 for never
    :param learning_rate: before `strength`; by default the first one of the algorithm
    :param n_epochs: passes over the demonstration an update
    :param batch_size: decisions a minibatch; by default that of the algorithm
    :param samples_per_update: most decisions of a pass, which then are a random part of the demonstration; 0 for all
    :raises DemonstrationError: no such demonstration
    :raises UnityGymError: a number that makes no sense
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
                raise UnityGymError(f"{name} of behavioral cloning is at least {least}; got {number}")
        self.demonstrations = demonstrations
        self.strength, self.steps, self.learning_rate = strength, steps, learning_rate
        self.n_epochs, self.batch_size, self.samples_per_update = n_epochs, batch_size, samples_per_update
        self._expert: Expert | None = None

    def setup(self, policy: AgentPolicy, learning_rate: float, batch_size: int) -> None:
        """Take the actor of a policy, and read the demonstration.

        A demonstration that is gone, as it may be where a saved model is loaded, is missed only when the model learns.

        :param policy: on its device
        :param learning_rate: of the algorithm, where this has none of its own
        :param batch_size: of the algorithm, where this has none of its own
        :raises DemonstrationError: If the demonstration cannot be read, or does not fit the behavior; the message shows
            both, sensor by sensor
        """
        self._policy = policy
        self._initial = self.strength * (learning_rate if self.learning_rate is None else self.learning_rate)
        self._size = batch_size if self.batch_size is None else self.batch_size
        actor = [*policy.body.parameters(), *policy.head.parameters()]
        self.optimizer = torch.optim.Adam(actor, lr=self._initial, fused=True)
        if demonstration_exists(self.demonstrations):
            self._read()

    def _read(self) -> Expert:
        if self._expert is None:
            policy = self._policy
            self._expert = Expert(self.demonstrations, policy.columns.spec, policy.body.state_size, policy.device)
        return self._expert

    def learning_rate_at(self, num_timesteps: int) -> float:
        """Return the learning rate after so many decisions of the algorithm."""
        return self._initial * max(0.0, 1 - num_timesteps / self.steps) if self.steps else self._initial

    def update(self, num_timesteps: int) -> dict[str, torch.Tensor]:
        """Learn from the demonstration: numbers for the log, by name; none once the learning rate is 0.

        :param num_timesteps: decisions of the algorithm until now
        :raises DemonstrationError: the demonstration is not there
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
        """Go on with this state of the optimizer; `strict` is there as SB3 passes it."""
        self.optimizer.load_state_dict(state)


def checked_cloning(demonstrations: DemonstrationSource | BehavioralCloning | None) -> BehavioralCloning | None:
    """How an algorithm is to learn from what the user gave: from a demonstration, with Unity's defaults.

    :raises DemonstrationError: there is no such demonstration
    """
    if demonstrations is None or isinstance(demonstrations, BehavioralCloning):
        return demonstrations
    return BehavioralCloning(demonstrations)
