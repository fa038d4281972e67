"""POCA: its numbers against a float64 reference, its life as an SB3 algorithm, and what it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import configure
from village import ACTIONS, SCALE, Village, make

from sb3_ext import POCA
from unity_gym.specs import Array

EPSILON, BETA, GAMMA, LAMBDA = 0.2, 0.01, 0.9, 0.8
GROUPS = (1, 2, 3, 4, 5, 6, 7, 0, 0)
WIDTH = 16


def numbers(layer: torch.nn.Linear) -> tuple[Array, Array]:
    return layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()


def dense(layer: torch.nn.Linear, x: Array) -> Array:
    weight, bias = numbers(layer)
    return x @ weight.T + bias


def swish(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def layers(net: torch.nn.Sequential, x: Array) -> Array:
    for layer in net:
        x = dense(layer, x) if isinstance(layer, torch.nn.Linear) else swish(x)
    return x


def layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def features(model: POCA, seen: list[Array], done: list[Array | None]) -> Array:
    """Of one group, head by head; `done` has None for who is only seen."""
    body, size = model.policy.group_body, ACTIONS.continuous_size
    embedded = dense(body.embed_state, np.array(seen, np.float64))
    for member, action in enumerate(done):
        if action is not None:
            chosen = zip(ACTIONS.discrete_branches, action[size:].astype(int), strict=True)
            one_hot = [np.eye(n)[choice] for n, choice in chosen]
            embedded[member] += dense(body.embed_action, np.concatenate([action[:size], *one_hot]))
    members = layer_norm(swish(embedded))
    query, key, value = np.split(dense(body.attention_parts, members), [64, 128], 1)
    heads = []
    for q, k, v in zip(*(np.split(part, 4, 1) for part in (query, key, value)), strict=True):
        weights = np.exp(q @ k.T / 4)
        heads.append(weights / weights.sum(1, keepdims=True) @ v)
    return layers(body.layers, layer_norm((members + np.concatenate(heads, 1)).mean(0)))


def head(model: POCA, x: Array, members: int) -> float:
    return float(dense(model.policy.value_head, np.append(x, np.log(members)))[0])


class Reference:
    """What POCA should make of a rollout of a village."""

    def __init__(self, village: Village, rollout: Any) -> None:
        self.village, self.model, self.rollout = village, village.model, rollout
        self.decisions = np.rint(rollout.observations[0][:, 0].numpy() / SCALE).astype(int)
        self.states: dict[tuple[int, ...], Array] = {}

    def state(self, number: int) -> Array:
        members = tuple(self.village.decisions[number].members)
        if members not in self.states:
            seen = [self.village.decisions[member].seen for member in members]
            self.states[members] = features(self.model, seen, [None] * len(seen))
        return self.states[members]

    def others(self, number: int) -> Array:
        """What the baseline of a decision knows."""
        members = self.village.decisions[number].members
        known = [self.village.decisions[member] for member in members]
        done = [None if member == number else each.action for member, each in zip(members, known, strict=True)]
        return features(self.model, [each.seen for each in known], done)

    def size(self, number: int) -> int:
        return len(self.village.decisions[number].members)

    def end(self, number: int) -> tuple[Array, int]:
        seen = self.village.decisions[number].end
        assert seen
        return features(self.model, seen, [None] * len(seen)), len(seen)

    def estimates(self, values: Array, ends: dict[int, float]) -> Array:
        """λ-returns, trajectory by trajectory and backwards."""
        returns, row = np.zeros(len(values)), len(values) - 1
        for length in reversed(self.rollout.lengths):
            for step in range(length):
                decision = self.village.decisions[self.decisions[row]]
                if step == 0:
                    assert decision.follows is None
                    returns[row] = decision.reward + GAMMA * (0 if decision.is_over else ends[self.decisions[row]])
                else:
                    assert decision.follows == self.decisions[row + 1]
                    mixed = (1 - LAMBDA) * values[row + 1] + LAMBDA * returns[row + 1]
                    returns[row] = decision.reward + GAMMA * mixed
                row -= 1
        return returns

    def loss(self, chosen: Array, epsilon: float, beta: float) -> float:
        """L^CLIP, the two value losses and the entropy, of some rows of the rollout."""
        policy, rollout = self.model.policy, self.rollout
        x = layers(policy.body.layers, rollout.observations[0].double().numpy()[chosen])
        actions, masks = rollout.actions.double().numpy()[chosen], rollout.action_masks.numpy()[chosen]
        log_std = policy.head.log_std.detach().double().numpy()
        z = (actions[:, :1] - dense(policy.head.mean, x)) / np.exp(log_std)
        log_probs = [-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)]
        entropy = 0.5 * np.log(2 * np.pi * np.e) + log_std
        logits = dense(policy.head.logits, x)
        for branch, part in enumerate((slice(0, 3), slice(3, 5))):
            weight = np.where(masks[:, part], np.exp(logits[:, part]), 0)
            p = weight / weight.sum(1, keepdims=True)
            log_p = np.log(np.where(p > 0, p, 1))
            log_probs.append(log_p[np.arange(len(p)), actions[:, 1 + branch].astype(int)][:, np.newaxis])
            entropy = entropy - (p * log_p).sum(1)
        ratio = np.exp(np.concatenate(log_probs, 1) - rollout.log_probs.double().numpy()[chosen])
        advantage = rollout.advantages.double().numpy()[chosen, np.newaxis]
        surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - epsilon, 1 + epsilon) * advantage).mean()
        old, target = rollout.values.double().numpy()[chosen], rollout.returns.double().numpy()[chosen]
        mine = self.decisions[chosen]
        new = np.array(
            [[head(self.model, of(number), self.size(number)) for of in (self.state, self.others)] for number in mine]
        )
        error = (target - new) ** 2
        if self.model.clip_value:
            near = old + np.clip(new - old, -epsilon, epsilon)
            error = np.maximum(error, (target - near) ** 2)
        of_states, of_baselines = error.mean(0)
        return float(-surrogate + 0.5 * (of_states + 0.5 * of_baselines) - beta * entropy.mean())


def village(seed: int = 0, **options: Any) -> Village:
    network = {"hidden_units": WIDTH, **options.pop("network", {})}
    numbers = {"buffer_size": 250, "batch_size": 90, "n_epochs": 2, "time_horizon": 6, "learning_rate": 3e-3}
    model = make(
        **numbers | options,
        gae_lambda=LAMBDA,
        clip_range=EPSILON,
        ent_coef=BETA,
        learning_rate_schedule="constant",
        policy_kwargs=network,
    )
    (signal,) = model._signals()
    signal.gamma = GAMMA
    model.set_logger(configure(None, []))
    return Village(model, GROUPS, seed)


@pytest.mark.parametrize("options", [{"rollout": "trajectories", "clip_value": True}, {"rollout": "cut"}])
def test_values_baselines_returns_advantages_and_losses_agree_with_a_float64_reference(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = village(**options)
    model, losses = place.model, []
    estimate, evaluate, backward = model._estimate, model.policy.evaluate, torch.Tensor.backward
    sizes: set[int] = set()

    def checked_estimate(rollout: Any) -> None:
        estimate(rollout)
        reference = Reference(place, rollout)
        values = np.array([head(model, reference.state(n), reference.size(n)) for n in reference.decisions])
        baselines = np.array([head(model, reference.others(n), reference.size(n)) for n in reference.decisions])
        lasts = reference.decisions[np.cumsum(rollout.lengths) - 1]
        returns = reference.estimates(values, {number: head(model, *reference.end(number)) for number in lasts})
        np.testing.assert_allclose(rollout.values, np.stack([values, baselines], 1), atol=1e-5)
        np.testing.assert_allclose(rollout.returns, np.stack([returns, returns], 1), atol=1e-5)
        advantages = returns - baselines
        normal = (advantages - advantages.mean()) / advantages.std()
        np.testing.assert_allclose(rollout.advantages, normal, atol=1e-5)
        sizes.update(map(reference.size, reference.decisions))

    def checked_evaluate(batch: Any) -> Any:
        if hasattr(batch.rollout, "advantages"):
            losses.append(Reference(place, batch.rollout).loss(batch.index.numpy(), EPSILON, BETA))
        return evaluate(batch)

    def checked_backward(loss: torch.Tensor) -> None:
        assert loss.item() == pytest.approx(losses[-1], abs=1e-5)
        backward(loss)

    monkeypatch.setattr(model, "_estimate", checked_estimate)
    monkeypatch.setattr(model.policy, "evaluate", checked_evaluate)
    monkeypatch.setattr(torch.Tensor, "backward", checked_backward)
    place.live(updates=3)
    assert len(losses) >= 12
    assert sizes >= set(range(1, 8))
    assert min(place.happened.values()) >= 3
    assert len(place.happened) == 6
