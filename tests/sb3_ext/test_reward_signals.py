"""Curiosity, RND and GAIL: losses against float64 references, learning checks, saving and loading."""

from __future__ import annotations

import copy
import math
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ext import GAIL, POCA, PPO, RND, SAC, Curiosity, Extrinsic, UnityVecEnv
from sb3_ext.expert import Expert
from sb3_ext.learn import main
from sb3_ext.reward_signals import LearnedSignal, RewardSignal
from sb3_ext.reward_signals.updates import SignalUpdates
from sb3_ext.rollout import Batch, Decisions, Rollout
from stand_ins import all_sensors_player
from unity_gym import demonstrations
from unity_gym.demonstrations import DemonstrationWriter, load
from unity_gym.errors import DemonstrationError, UnityGymError
from unity_gym.specs import ActionSpec, ActionTuple, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

NONE, VARIABLE = DimensionProperty.NONE, DimensionProperty.VARIABLE_SIZE
DEFAULT, GOAL = ObservationType.DEFAULT, ObservationType.GOAL_SIGNAL


def sensor(name: str, *shape: int, kind: ObservationType = DEFAULT) -> ObservationSpec:
    return ObservationSpec(shape, ((VARIABLE if len(shape) == 2 else NONE), *(NONE,) * (len(shape) - 1)), kind, name)


VECTORS = BehaviorSpec([sensor("a", 3), sensor("b", 2)], ActionSpec(2, ()))
CAMERA = BehaviorSpec([sensor("eye", 3, 20, 20), sensor("a", 3)], ActionSpec(0, (3, 2)))
HYBRID = BehaviorSpec([sensor("herd", 4, 2), sensor("a", 3), sensor("wish", 2, kind=GOAL)], ActionSpec(2, (3,)))
SPECS = {"vectors": VECTORS, "camera": CAMERA, "hybrid": HYBRID}
SIZE = 16


def observe(spec: BehaviorSpec, rng: np.random.Generator, n: int) -> list[np.ndarray]:
    arrays = []
    for each in spec.observation_specs:
        if each.is_visual:
            arrays.append(rng.integers(0, 256, (n, *each.shape), np.uint8))
        else:
            arrays.append(rng.normal(size=(n, *each.shape)).astype(np.float32))
            if len(each.shape) == 2:
                arrays[-1][:, 2:] = 0  # absent
    return arrays


def make_rollout(spec: BehaviorSpec, seed: int = 0, lengths: tuple[int, ...] = (5, 3, 7, 1)) -> Rollout:
    """Return trajectories of random data, every second one terminated; raw actions are three times the clipped ones."""
    rng, n = np.random.default_rng(seed), sum(lengths)
    size = spec.action_spec.continuous_size
    choices = [rng.integers(0, branch, (n, 1)) for branch in spec.action_spec.discrete_branches]
    arrays = {
        "action": np.concatenate([rng.uniform(-3, 3, (n, size)), *choices], 1).astype(np.float32),
        "log_prob": np.zeros((n, 0), np.float32),
        "mask": np.ones((n, sum(spec.action_spec.discrete_branches)), bool),
        "memory": np.zeros((n, 0), np.float32),
        "reward": rng.normal(size=n).astype(np.float32),
        "group_reward": np.zeros(n, np.float32),
    } | {f"observation_{index}": array for index, array in enumerate(observe(spec, rng, n))}
    rollout = Rollout(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        np.array(lengths),
        [torch.from_numpy(array) for array in observe(spec, rng, len(lengths))],
        torch.zeros(len(lengths), 0),
        np.arange(len(lengths)) % 2 == 0,
    )
    rollout.environment_actions = rollout.actions.clone()
    rollout.environment_actions[:, :size] /= 3
    return rollout


def filled_up(rollout: Rollout) -> Batch:
    """Return the whole rollout in sequences of 4, some of them padded."""
    decisions, valid = rollout.sequences(4)
    return Batch(rollout, decisions, valid.reshape(-1))


def record(path: Path, spec: BehaviorSpec, episodes: int = 3, seed: int = 1, length: int = 6) -> Path:
    """Return a demonstration of random data."""
    rng = np.random.default_rng(seed)
    with DemonstrationWriter(path, "Toy", spec) as writer:
        for _ in range(episodes):
            for step in range(length):
                seen = [array[0] for array in observe(spec, rng, 1)]
                action = ActionTuple(
                    rng.uniform(-1, 1, (1, spec.action_spec.continuous_size)),
                    np.array([[rng.integers(0, branch) for branch in spec.action_spec.discrete_branches]], np.int32),
                )
                over = step == length - 1
                writer.add(seen, None if over else action, reward=1.0, terminated=over)
    return path


def every_signal(path: Path, **network: Any) -> list[LearnedSignal]:
    return [
        Curiosity(strength=0.1, hidden_units=SIZE, **network),
        RND(hidden_units=SIZE, **network),
        GAIL(path, hidden_units=SIZE, use_actions=True, **network),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# References in float64, written from the papers. Only φ, the body that encodes the sensors, is the package's.


def double(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    return [array.double() / 255 if array.dtype == torch.uint8 else array.double() for array in arrays]


def dense(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Apply dense layers with swish between them."""
    for layer in module if isinstance(module, torch.nn.Sequential) else [module]:
        x = x @ layer.weight.T + layer.bias if isinstance(layer, torch.nn.Linear) else x / (1 + torch.exp(-x))
    return x


def one_hot(actions: torch.Tensor, spec: ActionSpec) -> torch.Tensor:
    rows = []
    for row in actions.double():
        parts = [row[: spec.continuous_size]]
        for branch, choice in zip(spec.discrete_branches, row[spec.continuous_size :], strict=True):
            parts.append(torch.tensor([1.0 if index == int(choice) else 0.0 for index in range(branch)]).double())
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def icm(net: Any, batch: Batch, spec: ActionSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Return forward and inverse error of each decision: Pathak et al. (2017), equations 5 and 3."""
    here, there = net.encoder(double(batch.observations))[0], net.encoder(double(batch.next_observations))[0]
    guess = dense(net.forward_model, torch.cat([here, one_hot(batch.actions, spec)], 1))
    forward = 0.5 * ((guess - there) ** 2).sum(1)
    predicted = dense(net.inverse_model, torch.cat([here, there], 1))
    size = spec.continuous_size
    inverse = ((predicted[:, :size] - batch.actions[:, :size].double()) ** 2).sum(1)
    first = size
    for branch, choices in zip(spec.discrete_branches, batch.actions[:, size:].long().T, strict=True):
        weights = torch.exp(predicted[:, first : first + branch])
        chosen = weights[torch.arange(len(weights)), choices] / weights.sum(1)
        inverse = inverse - torch.log(chosen)
        first += branch
    return forward, inverse


class ReferenceGAIL:
    """Ho & Ermon (2016), equation 17, with D for the expert; Gulrajani et al. (2017); Peng et al. (2019)."""

    def __init__(self, net: Any, spec: ActionSpec) -> None:
        self.net, self.spec = net, spec

    def inputs(self, batch: Batch) -> list[torch.Tensor]:
        inputs = double(batch.observations)
        if self.net.use_actions:
            ends = torch.tensor([[1.0 if over else 0.0] for over in batch.terminated]).double()
            inputs.append(torch.cat([one_hot(batch.environment_actions, self.spec), ends], 1))
        return inputs

    def mean(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        extra = inputs.pop() if self.net.use_actions else None
        features = self.net.body(inputs, extra=extra)[0]
        return dense(self.net.mean, features) if self.net.use_vail else features

    def estimate(self, inputs: list[torch.Tensor], noise: torch.Tensor | None = None) -> torch.Tensor:
        z = self.mean(list(inputs))
        if noise is not None:
            z = z + noise.double() * self.net.std
        return 1 / (1 + torch.exp(-dense(self.net.logit, z)[:, 0]))

    def rewards(self, batch: Batch) -> torch.Tensor:
        return -torch.log(1 - self.estimate(self.inputs(batch)) * (1 - 1e-7))

    def losses(self, batch: Batch, seed: int) -> dict[str, torch.Tensor]:
        """Return the loss and its parts, with the random numbers of the seed."""
        valid = torch.ones(len(batch), dtype=torch.bool) if batch.valid is None else batch.valid
        policy = [array[valid] for array in self.inputs(batch)]
        count = len(policy[0])
        torch.manual_seed(seed)
        shown = self.net.expert
        expert = self.inputs(Batch(shown, torch.randint(len(shown), (count, 1)), None))
        vail = self.net.use_vail
        noise = torch.randn(2 * count, 128).chunk(2) if vail else (None, None)
        of_expert, of_policy = self.estimate(expert, noise[0]), self.estimate(policy, noise[1])
        loss = -torch.log(of_expert + 1e-7).mean() - torch.log(1 - of_policy + 1e-7).mean()
        between = []
        for expert_array, policy_array in zip(expert, policy, strict=True):
            share = torch.rand(expert_array.shape).double()
            between.append(((1 - share) * expert_array + share * policy_array).requires_grad_())
        noise = torch.randn(count, 128) if vail else None
        norms = []
        for row in range(count):  # one by one: ∇D of a row over everything that D reads of it
            one = [array[row : row + 1] for array in between]
            value = self.estimate(one, None if noise is None else noise[row : row + 1])
            parts = torch.autograd.grad(value[0], one, create_graph=True)
            norms.append(torch.sqrt(torch.cat([part.flatten() for part in parts]).square().sum() + 1e-7))
        penalty = 10 * ((torch.stack(norms) - 1) ** 2).mean()
        logged = {"loss": loss, "grad_mag_loss": penalty}
        logged |= {"policy_estimate": of_policy.mean(), "expert_estimate": of_expert.mean(), "total": loss + penalty}
        if vail:
            variance = self.net.std**2
            logged["kl_loss"] = sum(
                0.5 * (self.mean(list(side)) ** 2 + variance - 1 - torch.log(variance)).sum(1).mean()
                for side in (expert, policy)
            )
            logged["beta"] = self.net.beta.double()
            logged["total"] = logged["total"] + logged["beta"] * (logged["kl_loss"] - 0.5)
        return logged


def agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def in_double(signal: LearnedSignal) -> Any:
    net = copy.deepcopy(signal).double()
    net.expert = getattr(signal, "_expert", None)
    return net


def check_gradients(signal: LearnedSignal, net: Any, loss: torch.Tensor) -> None:
    """Compare the gradients that the optimizer of `signal` received with the reference."""
    loss.backward()
    for (name, actual), (_, reference) in zip(signal.named_parameters(), net.named_parameters(), strict=True):
        if reference.grad is not None:
            scale = max(1.0, float(reference.grad.abs().max()))
            difference = float((actual.grad.double() - reference.grad).abs().max())
            assert difference / scale < 1e-5, (name, difference, scale)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_curiosity_agrees_with_a_float64_reference(spec: BehaviorSpec, normalize: bool) -> None:
    torch.manual_seed(0)
    signal, rollout = Curiosity(hidden_units=SIZE, normalize=normalize), make_rollout(spec)
    signal.setup(spec)
    signal.update_normalization(rollout.observations)
    batch = filled_up(rollout)
    assert signal.rewards(batch).tolist() == [0] * len(batch)  # no statistics yet
    for _ in range(3):
        net = in_double(signal)
        forward, inverse = icm(net, batch, spec.action_spec)
        valid = batch.valid
        logged = signal.update(batch)
        agree(logged["forward_loss"], forward[valid].mean())
        agree(logged["inverse_loss"], inverse[valid].mean())
        check_gradients(signal, net, 10 * (0.2 * forward[valid].mean() + 0.8 * inverse[valid].mean()))
    errors, _ = icm(in_double(signal), batch, spec.action_spec)
    cap = errors.detach().median()
    signal.strength = 1 / cap.item()
    agree(signal.rewards(batch), torch.minimum(errors, cap).detach())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_rnd_agrees_with_a_float64_reference(spec: BehaviorSpec) -> None:
    torch.manual_seed(0)
    signal, rollout = RND(hidden_units=SIZE, normalize=True), make_rollout(spec)
    signal.setup(spec)
    signal.update_normalization(rollout.observations)
    batch = filled_up(rollout)
    for _ in range(3):
        net = in_double(signal)
        seen = double(batch.observations)
        errors = ((net.predictor(seen)[0] - net.target(seen)[0]) ** 2).sum(1)
        agree(signal.rewards(batch), errors.detach())
        agree(signal.update(batch)["loss"], errors[batch.valid].mean())
        check_gradients(signal, net, errors[batch.valid].mean())


@pytest.mark.parametrize("use_vail", [False, True])
@pytest.mark.parametrize("use_actions", [False, True])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_gail_agrees_with_a_float64_reference(
    spec: BehaviorSpec, use_actions: bool, use_vail: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    expert = record(tmp_path / "toy.demo", spec)
    signal = GAIL(expert, use_actions=use_actions, use_vail=use_vail, hidden_units=SIZE, normalize=True)
    signal.setup(spec)
    batch = filled_up(make_rollout(spec))
    for seed in range(3):
        net = in_double(signal)
        reference = ReferenceGAIL(net, spec.action_spec)
        agree(signal.rewards(batch), reference.rewards(batch).detach())
        expected = reference.losses(batch, seed)
        torch.manual_seed(seed)
        logged = signal.update(batch)
        total = expected.pop("total")
        assert logged.keys() == expected.keys()
        for name, value in logged.items():
            agree(value, expected[name].detach())
        check_gradients(signal, net, total)
        if use_vail:
            risen = net.beta.double() + 0.0005 * (expected["kl_loss"].detach() - 0.5)
            agree(signal.beta, risen.clamp(min=0))


def test_the_gradient_penalty_equals_finite_differences_over_every_input(tmp_path: Path) -> None:
    signal = GAIL(record(tmp_path / "toy.demo", HYBRID), use_actions=True, hidden_units=SIZE)
    signal.setup(HYBRID)
    reference = ReferenceGAIL(in_double(signal), HYBRID.action_spec)
    policy = signal._inputs(filled_up(make_rollout(HYBRID, lengths=(4,))))
    assert [array.shape for array in policy] == [(4, 4, 2), (4, 3), (4, 2), (4, 2 + 3 + 1)]
    inputs, squares, step = double(policy), torch.zeros(4, dtype=torch.float64), 1e-6
    with torch.no_grad():
        for index, array in enumerate(inputs):
            flat = array.flatten(1)
            for place in range(flat.shape[1]):
                sides = []
                for sign in (1, -1):
                    moved = flat.clone()
                    moved[:, place] += sign * step
                    changed = [moved.reshape(array.shape) if index == k else each for k, each in enumerate(inputs)]
                    if array.ndim == 3:  # absent entities must stay absent
                        changed[index] = torch.where(array == 0, 0.0, changed[index])
                    sides.append(reference.estimate(changed))
                squares += ((sides[0] - sides[1]) / (2 * step)) ** 2
    expected = ((squares.sqrt() - 1) ** 2).mean()
    penalty = signal._gradient_penalty(policy, None)
    torch.testing.assert_close(penalty.double(), expected, atol=1e-4, rtol=0)


def test_rewards_of_gail_keep_their_precision_where_the_discriminator_saturates(tmp_path: Path) -> None:
    signal = GAIL(record(tmp_path / "toy.demo", VECTORS), hidden_units=SIZE)
    signal.setup(VECTORS)
    batch = filled_up(make_rollout(VECTORS))
    for logit in (-30.0, 0.0, 12.0, 40.0):
        with torch.no_grad():
            signal.logit.weight.zero_()
            signal.logit.bias.fill_(logit)
        certain = 1 / (1 + math.exp(-logit))
        assert signal.rewards(batch)[0].item() == pytest.approx(-math.log(1 - certain * (1 - 1e-7)), abs=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Learning


def ring(rng: np.random.Generator, places: int, n: int = 64, size: int = 8) -> Rollout:
    """Steps to either side on the first `places` of a ring of `size`; every step is a trajectory."""
    spec = BehaviorSpec([sensor("place", size)], ActionSpec(0, (2,)))
    here, action = rng.integers(0, places, n), rng.integers(0, 2, n)
    rollout = make_rollout(spec, lengths=(1,) * n)
    rollout.actions = torch.from_numpy(action[:, np.newaxis].astype(np.float32))
    rollout.observations = [torch.eye(size)[here]]
    rollout.end_observations = [torch.eye(size)[(here + 2 * action - 1) % size]]
    return rollout


@pytest.mark.parametrize("kind", [Curiosity, RND])
def test_frequent_observations_are_predicted_and_no_longer_rewarded(kind: type[Curiosity] | type[RND]) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    signal = kind(learning_rate=1e-3, hidden_units=32)
    signal.setup(BehaviorSpec([sensor("place", 8)], ActionSpec(0, (2,))))
    everywhere = Batch(ring(rng, 8, 512), torch.arange(512).unsqueeze(1), None)
    near = everywhere.observations[0].argmax(1) < 4
    name = "forward_loss" if kind is Curiosity else "loss"
    losses = []
    for _ in range(600):
        losses.append(signal.update(Batch(ring(rng, 4), torch.arange(64).unsqueeze(1), None))[name].item())
        if len(losses) == 1:
            first = signal.rewards(everywhere)
    last = signal.rewards(everywhere)
    assert np.mean(losses[-20:]) < 0.1 * losses[0]
    assert last[near].mean() < 0.1 * first[near].mean()
    assert last[~near].mean() > 3 * last[near].mean()


def test_gail_separates_policy_and_expert_and_converges_when_they_become_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    spec = BehaviorSpec([sensor("place", 2)], ActionSpec(1, ()))
    rng = np.random.default_rng(0)
    with DemonstrationWriter(tmp_path / "toy.demo", "Toy", spec) as writer:
        for _ in range(500):
            writer.add([rng.normal(1, 0.3, 2).astype(np.float32)], spec.action_spec.random_action(1, rng))
    signal = GAIL(tmp_path / "toy.demo", learning_rate=1e-3, hidden_units=32)
    signal.setup(spec)

    def learn(mean: float, updates: int) -> tuple[dict[str, float], torch.Tensor]:
        logged = []
        for _ in range(updates):
            rollout = make_rollout(spec, lengths=(64,))
            rollout.observations = [torch.from_numpy(rng.normal(mean, 0.3, (64, 2)).astype(np.float32))]
            batch = Batch(rollout, torch.arange(64).unsqueeze(1), None)
            logged.append(signal.update(batch))
        means = {name: float(np.mean([each[name].item() for each in logged[-50:]])) for name in logged[0]}
        return means, signal.rewards(batch).mean()

    apart, poor = learn(-1, 400)
    assert apart["expert_estimate"] > 0.75
    assert apart["policy_estimate"] < 0.25
    together, good = learn(1, 800)
    assert abs(together["expert_estimate"] - together["policy_estimate"]) < 0.05
    assert good > 2 * poor


@pytest.mark.slow
def test_gail_alone_learns_3dball_and_its_estimates_separate_then_converge(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def expert(seen: np.ndarray) -> np.ndarray:
        """A noisy policy that moves the ball to the middle and slows it."""
        wanted = np.array([0.07, -0.07]) * seen[[2, 4]] + np.array([0.14, -0.14]) * seen[[5, 7]]
        return np.clip(11.5 * (wanted - seen[:2]) + rng.uniform(-0.5, 0.5, 2), -1, 1).astype(np.float32)

    with gym.make("Unity-3DBall-v0") as alone:
        demonstrations.record(alone, expert, tmp_path / "ball.demo", n_episodes=1, seed=0)
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    model = PPO(
        "UnityPolicy",
        env,
        learning_rate=1e-3,
        buffer_size=4096,
        batch_size=64,
        time_horizon=256,
        reward_signals=[GAIL(tmp_path / "ball.demo", use_actions=True, normalize=True, hidden_units=64)],
        policy_kwargs={"hidden_units": 64, "normalize": True},
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    distances: list[float] = []

    class Distances(BaseCallback):
        """Records the distance of the estimates after each update."""

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            logged = self.logger.name_to_value
            if "train/gail_expert_estimate" in logged:
                distances.append(logged["train/gail_expert_estimate"] - logged["train/gail_policy_estimate"])

    model.learn(35 * 4096, callback=Distances())  # with a constant learning rate, the policy would not stay at its best
    mean, _ = evaluate_policy(model, env, 12, warn=False)
    env.close()
    assert max(distances) > 0.4
    assert np.mean(distances[-5:]) < 0.2
    assert mean > 90


# ---------------------------------------------------------------------------------------------------------------------
# In an algorithm


def test_each_observation_is_counted_once_by_curiosity_and_rnds_target_stays_fixed(tmp_path: Path) -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    demonstration = record(tmp_path / "ball.demo", env.table.spec)
    signals = every_signal(demonstration, normalize=True)
    model = PPO("UnityPolicy", env, buffer_size=600, batch_size=50, time_horizon=20, reward_signals=signals, seed=0)
    curiosity, rnd, gail = model._signals()
    seen, targets, rollouts = 0, [], []
    take = model._take_rollout
    model._take_rollout = lambda: rollouts.append(take()) or rollouts[-1]  # type: ignore[method-assign]
    probe = model.policy.tensors(observe(env.table.spec, np.random.default_rng(0), 5))
    of_expert = gail.body.normalization.mean.clone()
    for _ in range(4):
        model.learn(600, reset_num_timesteps=False)
        seen += len(rollouts[-1])
        assert curiosity.encoder.normalization.count.item() == 1 + seen
        targets.append(rnd.target(probe)[0])
    assert len(rollouts) == 4
    assert targets[1].ne(targets[0]).any()
    assert targets[2].equal(targets[1])
    assert targets[3].equal(targets[1])
    assert rnd.target.normalization.count.item() == 1 + len(rollouts[0]) + len(rollouts[1]) > 1000
    assert rnd.predictor.normalization is rnd.target.normalization
    torch.testing.assert_close(of_expert, gail._expert.observations[0].double().sum(0) / (1 + len(gail._expert)))
    assert gail.body.normalization.mean.equal(of_expert)
    env.close()


def test_gail_compares_actions_as_the_environment_receives_them(tmp_path: Path) -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    signal = GAIL(record(tmp_path / "ball.demo", env.table.spec), use_actions=True, hidden_units=SIZE)
    model = PPO("UnityPolicy", env, buffer_size=200, batch_size=50, time_horizon=20, reward_signals=[signal], seed=0)
    sent: list[np.ndarray] = []
    step = env.step_once
    env.step_once = lambda actions: sent.append(actions.continuous.copy()) or step(actions)  # type: ignore[method-assign]
    rollouts = []
    take = model._take_rollout
    model._take_rollout = lambda: rollouts.append(take()) or rollouts[-1]  # type: ignore[method-assign]
    model.learn(200)
    rollout = rollouts[0]
    got = {tuple(row) for row in np.concatenate(sent)}
    assert {tuple(row) for row in rollout.environment_actions.cpu().numpy()} <= got
    assert rollout.actions.abs().max() > 2
    torch.testing.assert_close(rollout.environment_actions, rollout.actions.clamp(-3, 3) / 3)
    batch = next(rollout.in_order(50))
    gail = model.signals["gail"]
    before = gail.rewards(batch)
    rollout.actions = rollout.actions + 1
    assert gail.rewards(batch).equal(before)
    rollout.environment_actions = rollout.environment_actions + 1
    assert gail.rewards(batch).ne(before).any()
    env.close()


ALGORITHMS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "PPO": (PPO, "UnityPolicy", {"buffer_size": 60, "time_horizon": 6}),
    "POCA": (POCA, "UnityPOCAPolicy", {"buffer_size": 60, "time_horizon": 6}),
    "SAC": (SAC, "UnitySACPolicy", {"buffer_size": 500, "steps_per_update": 10}),
}


@pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")
@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_with_all_reward_signals_sensors_masks_hybrid_actions_and_memory(
    tmp_path: Path, algorithm: str, memory: int
) -> None:
    kind, policy, options = ALGORITHMS[algorithm]
    env = UnityVecEnv("Unity-v0", file_name=all_sensors_player.launcher(tmp_path), num_envs=4, seed=0)
    demonstration = record(tmp_path / "cow.demo", env.table.spec)
    model = kind(
        policy,
        env,
        batch_size=40,
        reward_signals=[Extrinsic(), *every_signal(demonstration)],
        demonstrations=demonstration,
        policy_kwargs={"hidden_units": 16, "memory_size": memory, "sequence_length": 4},
        seed=0,
        **options,
    )
    model.set_logger(configure(None, []))
    model.learn(150)
    logged = model.logger.name_to_value
    for name in ("curiosity_forward_loss", "curiosity_inverse_loss", "rnd_loss", "gail_loss", "gail_grad_mag_loss"):
        assert np.isfinite(logged[f"train/{name}"])
    assert np.isfinite(logged["train/cloning_loss"])
    if algorithm != "SAC":  # SAC computes the reward each time it samples a decision, not once
        for name in ("curiosity", "rnd", "gail"):
            assert logged[f"rollout/{name}_reward"] > 0
            assert np.isfinite(logged[f"rollout/{name}_value_estimate"])
    assert all(torch.isfinite(parameter).all() for parameter in model.signals.parameters())
    env.close()


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in flat(tree[key])]
    return [leaf for part in tree for leaf in flat(part)] if isinstance(tree, (list, tuple)) else [tree]


def same(actual: Any, expected: Any) -> bool:
    pairs = list(zip(flat(actual), flat(expected), strict=True))
    return all(a.equal(b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("which", range(4))
def test_a_saved_signal_continues_exactly(which: int, tmp_path: Path) -> None:
    path = record(tmp_path / "toy.demo", VECTORS)
    batch = filled_up(make_rollout(VECTORS))
    first, second = ([*every_signal(path), GAIL(path, use_vail=True)][which] for _ in range(2))
    for signal in (first, second):
        signal.setup(VECTORS)
    for _ in range(4):
        first.update(batch)
    torch.save(first.state_dict(), tmp_path / "state")
    second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for signal in (first, second):
        torch.manual_seed(0)
        for _ in range(4):
            signal.update(batch)
    assert same(first.state_dict(), second.state_dict())
    assert second.state_dict()["_extra_state"]["state"][0]["step"] == 8


def ppo(env: UnityVecEnv, signals: Sequence[RewardSignal]) -> PPO:
    """Return a model whose first update is due after 200 timesteps."""
    numbers = {"buffer_size": 200, "batch_size": 50, "time_horizon": 20}
    return PPO("UnityPolicy", env, **numbers, reward_signals=signals, seed=0, device="cpu")


def learn_3dball(signals: Sequence[RewardSignal], in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> PPO:
    monkeypatch.setattr(PPO, "signals_learn_in_thread", in_thread)
    monkeypatch.setattr("sb3_ext.hardware._may_choose_threads", lambda: False)
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    model = ppo(env, signals)
    try:
        model.learn(700)
    finally:
        env.close()
    return model


def test_signals_that_learn_next_to_the_policy_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = UnityVecEnv("Unity-3DBall-v0")
    demonstration = record(tmp_path / "ball.demo", env.table.spec)
    env.close()
    apart, after = (learn_3dball(every_signal(demonstration), in_thread, monkeypatch) for in_thread in (True, False))
    assert same(apart.signals.state_dict(), after.signals.state_dict())
    assert same(apart.policy.state_dict(), after.policy.state_dict())
    assert apart._n_updates == after._n_updates


class Failing(Curiosity):
    """Curiosity that fails in its fifth update."""

    updates = 0

    def update(self, batch: Decisions) -> dict[str, torch.Tensor]:
        """Update, and note the thread."""
        type(self).updates += 1
        if type(self).updates == 5:
            raise ZeroDivisionError(threading.current_thread().name)
        return super().update(batch)


def test_a_failing_update_next_to_the_policy_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError, match="signals"):
        learn_3dball([Failing(hidden_units=SIZE)], True, monkeypatch)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("signals")]


@pytest.mark.parametrize("in_thread", [True, False])
def test_an_update_that_fails_after_the_last_epoch_has_started_raises(in_thread: bool) -> None:
    class FailsAtOnce(Curiosity):
        def update(self, batch: Decisions) -> dict[str, torch.Tensor]:
            raise ZeroDivisionError(f"with {len(batch)} decisions")

    batch = filled_up(make_rollout(VECTORS))
    with (
        pytest.raises(ZeroDivisionError, match=f"with {len(batch)} decisions"),
        SignalUpdates([FailsAtOnce()], defaultdict(list), in_thread) as updates,
    ):
        updates.add(batch)


def test_an_interrupt_of_the_policy_cancels_the_updates_of_signals() -> None:
    started, release, log = threading.Event(), threading.Event(), defaultdict(list)

    class Slow(Curiosity):
        def update(self, batch: Decisions) -> dict[str, torch.Tensor]:  # noqa: ARG002
            started.set()
            release.wait(10)
            return {"loss": torch.zeros(())}

    batch = filled_up(make_rollout(VECTORS))
    with pytest.raises(KeyboardInterrupt), SignalUpdates([Slow()], log, in_thread=True) as updates:  # noqa: PT012
        for _ in range(5):
            updates.add(batch)
        started.wait(10)
        threading.Timer(0.1, release.set).start()
        raise KeyboardInterrupt
    assert len(log["curiosity_loss"]) == 1


def test_a_saved_model_keeps_signals_and_optimizers_and_needs_a_demonstration_only_to_learn(
    tmp_path: Path,
) -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    demonstration = record(tmp_path / "ball.demo", env.table.spec)
    model = ppo(env, every_signal(demonstration))
    model.learn(300)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=env, device="cpu")
    assert same(model.signals.state_dict(), loaded.signals.state_dict())
    loaded.learn(300, reset_num_timesteps=False)
    assert not same(model.signals.state_dict(), loaded.signals.state_dict())
    demonstration.unlink()
    loaded = PPO.load(tmp_path / "model", env=env, device="cpu")
    loaded.predict(env.reset())
    with pytest.raises(DemonstrationError, match=r"no demonstration .*ball\.demo"):
        loaded.learn(300)
    env.close()


def test_a_signal_keeps_its_learning_rate_after_loading() -> None:
    old, new = RND(learning_rate=1e-3), RND(learning_rate=1e-5)
    for signal in (old, new):
        signal.setup(VECTORS)
    new.load_state_dict(old.state_dict())
    assert [group["lr"] for group in new.optimizer.param_groups] == [1e-5]


# ---------------------------------------------------------------------------------------------------------------------
# Demonstrations and errors


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_expert_data_are_a_rollout_of_the_demonstration(spec: BehaviorSpec, tmp_path: Path) -> None:
    path = record(tmp_path / "toy.demo", spec, episodes=4)
    shown, expert = load(path), Expert(path, spec, memory_size=6)
    assert len(expert) == len(shown) == 4 * 5
    assert expert.lengths.tolist() == [5] * 4
    everything = next(expert.in_order(100))
    for actual, expected in zip(everything.observations, shown.observations, strict=True):
        np.testing.assert_array_equal(actual, expected)
    for actual, expected in zip(everything.next_observations, shown.next_observations, strict=True):
        np.testing.assert_array_equal(actual, expected)
    size = spec.action_spec.continuous_size
    np.testing.assert_array_equal(everything.actions[:, :size], shown.actions.continuous)
    np.testing.assert_array_equal(everything.actions[:, size:], shown.actions.discrete)
    assert everything.environment_actions.equal(everything.actions)
    np.testing.assert_array_equal(everything.terminated, shown.terminated)
    np.testing.assert_array_equal(everything.action_masks, shown.action_masks)
    assert everything.memory.shape == (20, 6)
    drawn = expert.sample(1000).index
    assert set(drawn.tolist()) == set(range(20))


def test_a_demonstration_of_another_behavior_raises_with_each_differing_sensor(tmp_path: Path) -> None:
    path = record(tmp_path / "toy.demo", CAMERA)
    signal = GAIL(path)
    with pytest.raises(DemonstrationError) as raised:
        signal.setup(HYBRID)
    text = str(raised.value)
    assert "sensor 0: (3, 20, 20) 'eye' against (4, 2) 'herd': DIFFERENT" in text
    assert "sensor 1: (3,) 'a' against (3,) 'a': equal" in text
    assert "sensor 2: none against (2,) 'wish': DIFFERENT" in text
    assert "actions: (0, (3, 2)) against (2, (3,)): DIFFERENT" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GAIL("missing.demo"), "no demonstration missing.demo"),
        (lambda: Curiosity(gamma=2), "gamma"),
        (lambda: RND(memory_size=4), "no memory"),
        (lambda: Curiosity(hidden_units=0), "hidden_units"),
    ],
)
def test_invalid_signals_raise(make: Callable[[], LearnedSignal], words: str) -> None:
    with pytest.raises(UnityGymError, match=words):
        make()


def configuration(folder: Path, **signals: Any) -> str:
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 64, "buffer_size": 500},
        "reward_signals": signals,
        "max_steps": 1200,
        "summary_freq": 600,
        "time_horizon": 100,
    }
    tree = {"behaviors": {"3DBall": behavior}, "env_settings": {"env_path": "embedded:3DBall", "seed": 3}}
    path = folder / "ball.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


def test_unity_learn_trains_from_signals_alone_and_logs_unitys_names(tmp_path: Path) -> None:
    spec = BehaviorSpec([sensor("ball", 8)], ActionSpec(2, ()))
    path = configuration(
        tmp_path,
        curiosity={"strength": 0.02, "network_settings": {"hidden_units": 32}},
        rnd={"strength": 0.01},
        gail={"strength": 0.5, "use_vail": True, "demo_path": str(record(tmp_path / "ball.demo", spec))},
    )
    results = ["--results-dir", str(tmp_path / "results"), "--run-id", "signals"]
    assert main([path, *results]) == 0
    assert main([path, *results, "--resume"]) == 0
    events = EventAccumulator(str(tmp_path / "results" / "signals" / "3DBall"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    for title in ("Curiosity", "Gail", "Rnd"):
        assert {f"Policy/{title} Reward", f"Policy/{title} Value Estimate"} <= names
    losses = "Curiosity Forward Loss|Curiosity Inverse Loss|RND Loss|GAIL Loss|GAIL KL Loss"
    assert {f"Losses/{name}" for name in losses.split("|")} <= names
    estimates = "GAIL Policy Estimate|GAIL Expert Estimate|GAIL Grad Mag Loss|GAIL Beta"
    assert {f"Policy/{name}" for name in estimates.split("|")} <= names
    assert "Environment/Cumulative Reward" in names
    assert "Policy/Extrinsic Reward" not in names


def test_a_missing_demonstration_is_reported_in_one_line_before_any_player_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configuration(tmp_path, gail={"demo_path": "missing.demo"})
    assert main([path, "--results-dir", str(tmp_path / "results")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "behaviors.3DBall.reward_signals.gail.demo_path is 'missing.demo'" in line
    assert not (tmp_path / "results").exists()
