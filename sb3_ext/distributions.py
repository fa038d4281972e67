"""Distributions of continuous, discrete and hybrid actions, with masks.

An action is one row: first the raw (unbounded) continuous actions, then the branch index of each discrete action. Each
dimension has its own log-probability: Unity's PPO clips each separately, Stable-Baselines3's clips their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from stable_baselines3.common.distributions import Distribution
from torch import nn

from sb3_ext.networks.layers import kaiming, linear
from unity_gym.specs import ActionSpec

CONTINUOUS_LIMIT = 3.0  # raw actions of ±3 are Unity's ±1
_LOG_STD_MIN, _LOG_STD_MAX = -20, 2
FORBIDDEN_LOGIT = -1e8  # logit of discrete actions that the mask forbids
_LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class ActionHead(nn.Module):
    """Network from features to the parameters of an `ActionDistribution`: means, log standard deviations and logits.

    :param features: Number of input features.
    :param spec: Action specification.
    :param log_std_init: Initial log standard deviation, which does not depend on the state.
    """

    def __init__(self, features: int, spec: ActionSpec, log_std_init: float = 0.0) -> None:
        super().__init__()
        self.mean = linear(features, spec.continuous_size, kaiming(0.2)) if spec.continuous_size else None
        self.log_std = nn.Parameter(torch.full((spec.continuous_size,), float(log_std_init)))
        self.logits = linear(features, sum(spec.discrete_branches), kaiming(0.1)) if spec.discrete_size else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """Map (n, features) to means (n, continuous), log_stds (continuous,) and logits (n, sum of branches)."""
        return (
            None if self.mean is None else self.mean(x),
            self.log_std,
            None if self.logits is None else self.logits(x),
        )


class Branches:
    """Independent masked categorical distributions, one per branch.

    sb3-contrib's `MaskableMultiCategoricalDistribution` is equivalent, but takes five times as long for few rows.

    :param sizes: Size of each branch.
    :param logits: Logits (n, sum of branches).
    :param masks: Action masks, bool (n, sum of branches), True = allowed; None allows everything.
    """

    def __init__(self, sizes: Sequence[int], logits: torch.Tensor, masks: torch.Tensor | None = None) -> None:
        if masks is not None:
            logits = logits.masked_fill(~masks, FORBIDDEN_LOGIT)
        parts = torch.split(logits, list(sizes), 1) if len(sizes) > 1 else [logits]
        self.log_probs = [branch.log_softmax(1) for branch in parts]
        """Log-probabilities, one (n, branch size) per branch; of forbidden actions, about −1e8."""

    def log_probs_per_branch(self, chosen: torch.Tensor) -> list[torch.Tensor]:
        """Return the log-probabilities of branch indices (n, branches), one (n, 1) per branch."""
        indices = chosen.long().split(1, 1)  # type: ignore[no-untyped-call]
        return [branch.gather(1, index) for branch, index in zip(self.log_probs, indices, strict=True)]

    def entropies_per_branch(self) -> list[torch.Tensor]:
        """Return the entropies in nats, one (n, 1) per branch."""
        return [-(branch.exp() * branch).sum(1, keepdim=True) for branch in self.log_probs]

    def sample(self, generator: torch.Generator | None = None) -> list[torch.Tensor]:
        """Return sampled branch indices, one (n, 1) per branch; by default from torch's global generator."""
        return [torch.multinomial(branch.exp(), 1, replacement=True, generator=generator) for branch in self.log_probs]

    def mode(self) -> list[torch.Tensor]:
        """Return the most likely branch indices, one (n, 1) per branch."""
        return [branch.argmax(1, keepdim=True) for branch in self.log_probs]


class ActionDistribution(Distribution):
    """Diagonal Gaussian for the continuous actions and an independent masked categorical for each branch.

    It has the methods of an SB3 distribution: `log_prob` and `entropy` sum over the dimensions.
    `log_probs_per_dimension` and `entropies_per_dimension` do not, and `unity_entropy` is the entropy as Unity's
    trainer computes it.

    :param spec: Action specification.
    """

    _branches: Branches | None
    generator: torch.Generator | None = None
    """Source of the samples; None for torch's global generator."""

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spec = spec

    def proba_distribution_net(self, features: int, log_std_init: float = 0.0) -> ActionHead:
        """Return the layer before this distribution."""
        return ActionHead(features, self.spec, log_std_init)

    def proba_distribution(
        self,
        mean: torch.Tensor | None,
        log_std: torch.Tensor,
        logits: torch.Tensor | None,
        masks: torch.Tensor | None = None,
    ) -> ActionDistribution:
        """Set the parameters, which `ActionHead` returns.

        :param masks: Action masks, bool (n, sum of branches), True = allowed; None allows everything.
        """
        self._mean, self._log_std = mean if self.spec.continuous_size else None, log_std
        self._branches = None
        if logits is not None and self.spec.discrete_size:
            self._branches = Branches(self.spec.discrete_branches, logits, masks)
        return self

    def log_probs_per_dimension(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the log-density or log-probability of each dimension of `actions`, (n, dimensions)."""
        size = self.spec.continuous_size
        dimensions = []
        if self._mean is not None:
            standardized = (actions[:, :size] - self._mean) / self._log_std.exp()
            dimensions.append(-0.5 * standardized.square() - self._log_std - _LOG_ROOT_2_PI)
        if self._branches is not None:
            dimensions += self._branches.log_probs_per_branch(actions[:, size:])
        return concatenate(dimensions)

    def entropies_per_dimension(self) -> torch.Tensor:
        """Return the entropies in nats, (n, dimensions)."""
        dimensions = []
        if self._mean is not None:
            dimensions.append(self._continuous_entropies().expand_as(self._mean))
        if self._branches is not None:
            dimensions += self._branches.entropies_per_branch()
        return concatenate(dimensions)

    def _continuous_entropies(self) -> torch.Tensor:
        """Return the entropies of the continuous dimensions in nats, (size,), which do not depend on the state."""
        return self._log_std + (_LOG_ROOT_2_PI + 0.5)

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of the whole actions, (n,). Those of a single branch may be flat, too."""
        return self.log_probs_per_dimension(actions.reshape(len(actions), -1)).sum(1)

    def entropy(self) -> torch.Tensor:
        """Return the entropies of the whole actions in nats, (n,)."""
        return self.entropies_per_dimension().sum(1)

    def unity_entropy(self) -> torch.Tensor:
        """Return the entropies (n,) as Unity's trainer: mean over continuous actions plus sum over branches."""
        discrete = None
        if self._branches is not None:
            discrete = concatenate(self._branches.entropies_per_branch()).sum(1)
        if self._mean is None:
            assert discrete is not None
            return discrete
        continuous = self._continuous_entropies().mean()
        return continuous.expand(self._mean.shape[0]) if discrete is None else continuous + discrete

    def sample(self) -> torch.Tensor:
        """Return sampled raw actions (n, dimensions)."""
        mean = self._mean
        continuous = []
        if mean is not None:
            noise = torch.randn(mean.shape, generator=self.generator, device=mean.device)
            continuous = [torch.addcmul(mean, self._log_std.exp(), noise)]
        return self._join(continuous, [] if self._branches is None else self._branches.sample(self.generator))

    def mode(self) -> torch.Tensor:
        """Return the most likely raw actions (n, dimensions)."""
        continuous = [] if self._mean is None else [self._mean]
        return self._join(continuous, [] if self._branches is None else self._branches.mode())

    @staticmethod
    def _join(continuous: list[torch.Tensor], discrete: list[torch.Tensor]) -> torch.Tensor:
        return concatenate([*continuous, *(branch.to(torch.float32) for branch in discrete)])

    def actions_from_params(self, *params: torch.Tensor, deterministic: bool = False) -> torch.Tensor:
        """Set the parameters, and return a sample or the mode."""
        return self.proba_distribution(*params).get_actions(deterministic)

    def log_prob_from_params(self, *params: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Set the parameters, and return a sample and its log-probability."""
        actions = self.actions_from_params(*params)
        return actions, self.log_prob(actions)


def concatenate(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors (n, …) along their second dimension; a single one is returned unchanged."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)


class SquashedActionHead(nn.Module):
    """Network from features to the parameters of `SquashedActions`: means, log standard deviations and logits.

    :param features: Number of input features.
    :param spec: Action specification.
    """

    def __init__(self, features: int, spec: ActionSpec) -> None:
        super().__init__()
        size = spec.continuous_size
        self.mean = linear(features, size, kaiming(0.2)) if size else None
        self.log_std = linear(features, size, kaiming(0.2)) if size else None
        self.logits = linear(features, sum(spec.discrete_branches), kaiming(0.1)) if spec.discrete_size else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Map (n, features) to means and log_stds (n, continuous), and logits (n, sum of branches)."""
        return (
            None if self.mean is None else self.mean(x),
            None if self.log_std is None else self.log_std(x).clamp(_LOG_STD_MIN, _LOG_STD_MAX),
            None if self.logits is None else self.logits(x),
        )


class SquashedActions:
    """Diagonal Gaussian squashed by tanh for the continuous actions, and a masked categorical for each branch.

    SAC needs samples with gradients and their exact density, also where tanh saturates (SB3's
    `SquashedDiagGaussianDistribution` adds 1e-6 there). It also needs the probabilities of all discrete actions, to
    compute expectations.

    :param spec: Action specification.
    :param mean: Means before tanh, (n, continuous).
    :param log_std: Log standard deviations before tanh, (n, continuous).
    :param logits: Logits (n, sum of branches).
    :param masks: Action masks, bool (n, sum of branches), True = allowed; None allows everything.
    """

    def __init__(
        self,
        spec: ActionSpec,
        mean: torch.Tensor | None,
        log_std: torch.Tensor | None,
        logits: torch.Tensor | None,
        masks: torch.Tensor | None = None,
    ) -> None:
        self.spec, self.mean, self.log_std = spec, mean, log_std
        self.log_probs: torch.Tensor | None = None
        """Log-probabilities of all discrete actions, (n, sum of branches); of forbidden ones, about −1e8."""
        self._branches: Branches | None = None
        if logits is not None:
            self._branches = Branches(spec.discrete_branches, logits, masks)
            self.log_probs = concatenate(self._branches.log_probs)

    def rsample(self, noise: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return sampled continuous actions (n, continuous) in `[-1, 1]`, and their log-density (n, 1).

        :param noise: Standard normal noise (n, continuous).
        """
        if self.mean is None or self.log_std is None:
            return None, None
        raw = torch.addcmul(self.mean, self.log_std.exp(), noise)
        # log N(raw) − Σ log(1 − tanh²(raw)), where log(1 − tanh²(x)) = 2 (log 2 − x − softplus(−2 x))
        correction = 2 * (raw + nn.functional.softplus(-2 * raw))
        log_prob = (correction - 0.5 * noise.square() - self.log_std).sum(1, keepdim=True)
        constant = 2 * math.log(2) + _LOG_ROOT_2_PI
        return raw.tanh(), log_prob - constant * self.spec.continuous_size

    def act(self, deterministic: bool = False, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return actions (n, dimensions): a sample, or the squashed mean and the most likely branch indices."""
        dimensions = []
        if self.mean is not None and self.log_std is not None:
            raw = self.mean if deterministic else torch.normal(self.mean, self.log_std.exp(), generator=generator)
            dimensions.append(raw.tanh())
        if self._branches is not None:
            branches = self._branches.mode() if deterministic else self._branches.sample(generator)
            dimensions += [branch.to(torch.float32) for branch in branches]
        return concatenate(dimensions)
