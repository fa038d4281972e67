"""Action distributions against formulas written out in float64."""

import numpy as np
import pytest
import torch

from sb3_ext.distributions import ActionDistribution, ActionHead, SquashedActionHead
from unity_gym.specs import ActionSpec

SPECS = [ActionSpec(3, ()), ActionSpec(0, (4,)), ActionSpec(0, (3, 2)), ActionSpec(2, (3, 4))]


def reference(
    spec: ActionSpec, mean: np.ndarray, log_std: np.ndarray, logits: np.ndarray, masks: np.ndarray, actions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probabilities and entropies, each (n, dimensions)."""
    size = spec.continuous_size
    log_probs, entropies = [], []
    for column in range(size):
        z = (actions[:, column] - mean[:, column]) / np.exp(log_std[column])
        log_probs.append(-0.5 * z**2 - log_std[column] - 0.5 * np.log(2 * np.pi))
        entropies.append(np.full(len(z), 0.5 * np.log(2 * np.pi * np.e) + log_std[column]))
    start = 0
    for column, branch in enumerate(spec.discrete_branches):
        allowed = masks[:, start : start + branch]
        weights = np.where(allowed, np.exp(logits[:, start : start + branch]), 0)
        log_p = np.log(np.maximum(weights, 1e-300)) - np.log(weights.sum(1, keepdims=True))
        log_probs.append(log_p[np.arange(len(log_p)), actions[:, size + column].astype(int)])
        entropies.append(-np.where(allowed, np.exp(log_p) * np.where(allowed, log_p, 0), 0).sum(1))
        start += branch
    return np.stack(log_probs, 1), np.stack(entropies, 1)


@pytest.mark.parametrize("spec", SPECS)
def test_distributions_agree_with_the_formulas(spec: ActionSpec) -> None:
    rng = np.random.default_rng(0)
    n, size, width = 200, spec.continuous_size, sum(spec.discrete_branches)
    mean, log_std, logits = rng.normal(size=(n, size)), rng.normal(size=size), rng.normal(size=(n, width))
    masks = rng.random((n, width)) < 0.6
    masks[:, np.cumsum([0, *spec.discrete_branches])[:-1]] = True
    head = [torch.from_numpy(x).float() for x in (mean, log_std, logits)]
    distribution = ActionDistribution(spec).proba_distribution(*head, torch.from_numpy(masks))
    torch.manual_seed(0)
    actions = distribution.sample()
    assert actions.shape == (n, size + spec.discrete_size)
    log_probs, entropies = reference(spec, mean, log_std, logits, masks, actions.double().numpy())
    np.testing.assert_allclose(distribution.log_probs_per_dimension(actions), log_probs, atol=1e-5)
    np.testing.assert_allclose(distribution.entropies_per_dimension(), entropies, atol=1e-5)
    np.testing.assert_allclose(distribution.log_prob(actions), log_probs.sum(1), atol=2e-5)
    np.testing.assert_allclose(distribution.entropy(), entropies.sum(1), atol=2e-5)
    unity = entropies[:, size:].sum(1) + (entropies[:, :size].mean(1) if size else 0)
    np.testing.assert_allclose(distribution.unity_entropy(), unity, atol=1e-5)


def test_a_whole_number_is_an_initial_log_standard_deviation() -> None:
    assert ActionHead(4, ActionSpec(2, ()), log_std_init=-2).log_std.tolist() == [-2.0, -2.0]


def test_masked_discrete_actions_are_never_sampled_and_the_mode_is_the_most_likely_allowed() -> None:
    spec = ActionSpec(0, (3, 2))
    logits = torch.tensor([[5.0, 1.0, 0.0, 9.0, 0.0]]).repeat(1000, 1)
    masks = torch.tensor([[False, True, True, False, True]]).repeat(1000, 1)
    distribution = ActionDistribution(spec).proba_distribution(None, torch.zeros(0), logits, masks)
    samples = distribution.sample()
    assert set(samples[:, 0].tolist()) == {1, 2}
    assert set(samples[:, 1].tolist()) == {1}
    assert distribution.mode()[0].tolist() == [1, 1]


def test_the_mode_of_continuous_actions_is_their_mean() -> None:
    mean = torch.randn(4, 2)
    logits = torch.tensor([[0.0, 1.0, 0.5]] * 4)
    distribution = ActionDistribution(ActionSpec(2, (3,))).proba_distribution(mean, torch.zeros(2), logits)
    torch.testing.assert_close(distribution.mode(), torch.cat([mean, torch.ones(4, 1)], 1))


def test_heads_start_small_and_with_a_standard_deviation_of_one() -> None:
    torch.manual_seed(0)
    head = ActionDistribution(ActionSpec(300, (200, 100))).proba_distribution_net(400)
    assert head.mean.weight.std().item() == pytest.approx(0.2 / 20, rel=0.03)
    assert head.logits.weight.std().item() == pytest.approx(0.1 / 20, rel=0.03)
    assert not head.log_std.any()
    squashed = SquashedActionHead(400, ActionSpec(300, (200, 100)))
    for layer, gain in ((squashed.mean, 0.2), (squashed.log_std, 0.2), (squashed.logits, 0.1)):
        assert layer is not None
        assert layer.weight.std().item() == pytest.approx(gain / 20, rel=0.03)
        assert not layer.bias.any()
