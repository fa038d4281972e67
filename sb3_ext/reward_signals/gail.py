"""Generative adversarial imitation learning: rewards for behavior like the expert's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sb3_ext.expert import DemonstrationSource, Expert, demonstration_exists, require_demonstration
from sb3_ext.networks import NetworkBody
from sb3_ext.networks.actions import action_features
from sb3_ext.networks.layers import kaiming, linear
from sb3_ext.reward_signals.signal import LearnedSignal
from sb3_ext.rollout import Decisions
from unity_gym.specs import BehaviorSpec

_EPSILON = 1e-7  # keeps logarithms and the root finite
_PENALTY_WEIGHT = 10.0
_BOTTLENECK_SIZE = 128
_INFORMATION = 0.5  # I_c, in nats
_BETA_STEP = 0.0005


class GAIL(LearnedSignal):
    """Generative adversarial imitation learning: rewards from a discriminator D between expert and policy.

    Paper: https://arxiv.org/abs/1606.03476. D approaches 1 for decisions of the expert. The reward is −ln(1 − D), and
    the loss −E_expert[ln D] − E_policy[ln(1 − D)] + 10 E[(‖∇D‖ − 1)²]. The last term is the gradient penalty of
    Gulrajani et al. (2017), over all inputs together, at random points between those of the expert and of the policy.
    Each minibatch of the policy is paired with as many decisions of the expert, sampled with replacement.

    `use_vail` adds the variational bottleneck of Peng et al. (2019), https://arxiv.org/abs/1810.00821. D then reads
    z ~ N(μ(s), σ²), and the loss includes β (KL − 0.5). KL is the sum of the divergences of z from N(0, 1) for expert
    and policy. β follows by dual gradient ascent. Rewards use z = μ(s).

    With `normalize`, vector observations are scaled by the expert's statistics.

    :param demonstrations: Path of a `.demo` file or a folder of them, or a loaded demonstration of the behavior.
    :param gamma: Discount of future rewards.
    :param strength: Factor of the rewards.
    :param learning_rate: Learning rate of the discriminator.
    :param use_actions: Whether D also reads the environment's action and whether the episode terminated.
    :param use_vail: Whether to add the bottleneck.
    :param network: Parameters of the discriminator as in `NetworkSettings`, except `memory_size`.
    :raises DemonstrationError: If the demonstration does not exist.
    :raises UnityGymError: If `gamma` is not in `[0, 1]`, or `memory_size` is given.
    """

    name = "gail"
    beta: torch.Tensor

    def __init__(
        self,
        demonstrations: DemonstrationSource,
        gamma: float = 0.99,
        strength: float = 1.0,
        learning_rate: float = 3e-4,
        *,
        use_actions: bool = False,
        use_vail: bool = False,
        **network: Any,
    ) -> None:
        super().__init__(gamma, strength, learning_rate, **network)
        require_demonstration(demonstrations)
        self.demonstrations = demonstrations
        self.use_actions, self.use_vail = use_actions, use_vail
        self._expert: Expert | None = None

    def setup(self, spec: BehaviorSpec) -> None:
        """Build the discriminator and its optimizer, and read the demonstration.

        If a loaded model's demonstration no longer exists, only learning raises an error.

        :raises DemonstrationError: If the demonstration cannot be read, or is incompatible with the behavior spec.
        """
        super().setup(spec)
        self._spec = spec
        if demonstration_exists(self.demonstrations):
            self._expert = Expert(self.demonstrations, spec)
            self.body.update_normalization(self._expert.observations)

    def _build(self, spec: BehaviorSpec) -> None:
        actions = spec.action_spec
        extra = actions.continuous_size + sum(actions.discrete_branches) + 1 if self.use_actions else 0
        self.body = NetworkBody(spec, self.settings, extra_size=extra)
        size = self.body.features
        if self.use_vail:
            self.mean = linear(size, _BOTTLENECK_SIZE, kaiming(0.1))
            self.std = nn.Parameter(torch.ones(_BOTTLENECK_SIZE))
            self.register_buffer("beta", torch.zeros(()))
            size = _BOTTLENECK_SIZE
        self.logit = linear(size, 1, lambda weight: nn.init.xavier_uniform_(weight, gain=0.2))

    @torch.no_grad()
    def rewards(self, batch: Decisions) -> torch.Tensor:
        """Return −ln(1 − D (1 − 1e-7)), a float tensor (m,)."""
        features = self._features(self._inputs(batch))
        logit = self.logit(self.mean(features) if self.use_vail else features).squeeze(1)
        # 1 − D (1 − ε) = (1 − D) + ε D, which stays precise for D near 1
        return -(torch.sigmoid(-logit) + _EPSILON * torch.sigmoid(logit)).log()

    def update(self, batch: Decisions) -> dict[str, torch.Tensor]:
        """Make one gradient step, and return the parts of the loss and the means of D for expert and policy."""
        shown = self._inputs(batch)
        if batch.valid is not None:
            shown = [array[batch.valid] for array in shown]
        expert = self._inputs(self._expert_on(shown[0].device).sample(len(shown[0])))
        inputs = [*expert, *shown, *self._random_numbers(expert)]
        return self._repeated(self._learn, inputs) if batch.valid is None else self._learn(inputs)

    def _random_numbers(self, expert: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the places between expert and policy per input, and with VAIL the noise of z, of all and between."""
        count, device = len(expert[0]), expert[0].device
        noise = [torch.randn((2 * count, _BOTTLENECK_SIZE), device=device)] if self.use_vail else []
        places = [torch.rand_like(tensor) for tensor in expert]
        if self.use_vail:
            noise.append(torch.randn((count, _BOTTLENECK_SIZE), device=device))
        return [*places, *noise]

    def _learn(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Make one gradient step.

        :param tensors: Inputs of expert and policy, and the random numbers.
        """
        inputs = len(tensors) // 3
        expert, shown, places = tensors[:inputs], tensors[inputs : 2 * inputs], tensors[2 * inputs : 3 * inputs]
        noise = tensors[3 * inputs :] or (None, None)
        count = len(shown[0])
        logit, mean = self._discriminate([torch.cat(pair) for pair in zip(expert, shown, strict=True)], noise[0])
        of_expert, of_policy = torch.sigmoid(logit[:count]), torch.sigmoid(logit[count:])
        not_policy = torch.sigmoid(-logit[count:])
        discrimination = -((of_expert + _EPSILON).log() + (not_policy + _EPSILON).log()).mean()
        between = [torch.lerp(*three) for three in zip(expert, shown, places, strict=True)]
        penalty = _PENALTY_WEIGHT * self._gradient_penalty(between, noise[1])
        loss = discrimination + penalty
        log = {
            "loss": discrimination,
            "policy_estimate": of_policy.mean(),
            "expert_estimate": of_expert.mean(),
            "grad_mag_loss": penalty,
        }
        if mean is not None:
            # KL(z of the expert ‖ N(0, 1)) + KL(z of the policy ‖ N(0, 1)), where both have as many rows
            variance = self.std.square()
            divergence = (mean.square() - 1 - variance.log() + variance).sum(1).mean()
            loss = loss + self.beta * (divergence - _INFORMATION)
            log |= {"kl_loss": divergence, "beta": self.beta.clone()}
        self._descend(loss)
        if self.use_vail:
            self.beta.add_(_BETA_STEP * (log["kl_loss"].detach() - _INFORMATION)).clamp_(min=0)
        return {name: value.detach() for name, value in log.items()}

    def _expert_on(self, device: torch.device) -> Expert:
        if self._expert is None or self._expert.actions.device != device:
            self._expert = Expert(self.demonstrations, self._spec, device=device)
        return self._expert

    def _inputs(self, batch: Decisions) -> list[torch.Tensor]:
        """Return the inputs of D.

        One float tensor (m, *shape) per sensor, images in `[0, 1]`, and with `use_actions` one of action features and
        termination (m, features + 1).
        """
        inputs = [array / 255 if array.dtype == torch.uint8 else array for array in batch.observations]
        if self.use_actions:
            actions = action_features(batch.environment_actions, self._spec.action_spec)
            inputs.append(torch.cat([actions, batch.terminated.to(actions.dtype).unsqueeze(1)], 1))
        return inputs

    def _features(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        if not self.use_actions:
            return self.body(inputs)[0]  # type: ignore[no-any-return]
        return self.body(inputs[:-1], extra=inputs[-1])[0]  # type: ignore[no-any-return]

    def _discriminate(
        self, inputs: list[torch.Tensor], noise: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the logits (m,) of D during learning, and the means (m, bottleneck) of z.

        :param inputs: Inputs of D.
        :param noise: Standard normal noise of z, (m, bottleneck), with VAIL.
        """
        features, mean = self._features(inputs), None
        if noise is not None:
            mean = self.mean(features)
            features = mean + noise * self.std
        return self.logit(features).squeeze(1), mean

    def _gradient_penalty(self, between: list[torch.Tensor], noise: torch.Tensor | None) -> torch.Tensor:
        """Return the mean of (‖∇D‖ − 1)² at points between the inputs of expert and policy."""
        between = [tensor.requires_grad_() for tensor in between]
        logit, _ = self._discriminate(between, noise)
        gradients = torch.autograd.grad(torch.sigmoid(logit).sum(), between, create_graph=True)
        squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
        return ((squares + _EPSILON).sqrt() - 1).square().mean()
