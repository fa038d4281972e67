"""Behavioral cloning as an addition to another algorithm: its loss against a float64 reference, updates and saving."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import configure

from sb3_ext import PPO, BehavioralCloning, UnityVecEnv
from sb3_ext.agents import SpaceAdapter
from sb3_ext.expert import Expert
from sb3_ext.imitation import compare, imitation_loss, refresh_memory
from sb3_ext.policies import AgentPolicy, UnityPolicy
from sb3_ext.sac_policy import UnitySACPolicy
from unity_gym.demonstrations import Demonstration, DemonstrationWriter, load
from unity_gym.errors import DemonstrationError, UnityGymError
from unity_gym.spaces import ObservationLayout, action_space
from unity_gym.specs import ActionSpec, ActionTuple, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

SENSORS = [
    ObservationSpec((size,), (DimensionProperty.NONE,), ObservationType.DEFAULT, name)
    for name, size in (("place", 3), ("wind", 2))
]
ACTIONS = {"continuous": ActionSpec(2, ()), "branches": ActionSpec(0, (3, 2)), "hybrid": ActionSpec(2, (3, 2))}
LENGTHS = (7, 1, 12, 4)


def write(path: Path, action: ActionSpec, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Path:
    """Return a demonstration of random decisions; masks forbid some actions, sometimes also the expert's."""
    spec = BehaviorSpec(SENSORS, action)
    rng = np.random.default_rng(seed)
    with DemonstrationWriter(path, "Toy", spec) as writer:
        for length in lengths:
            for step in range(length + 1):
                ended = step == length
                chosen = spec.action_spec.random_action(1, rng)
                writer.add(
                    [rng.normal(size=sensor.shape).astype(np.float32) for sensor in SENSORS],
                    None if ended else ActionTuple(1.4 * chosen.continuous, chosen.discrete),
                    terminated=ended,
                    action_mask=rng.random(sum(action.discrete_branches)) < 0.7,
                )
    return path


def make_policy(kind: type[AgentPolicy], action: ActionSpec, space: Any = None, **options: Any) -> Any:
    spec = BehaviorSpec(SENSORS, action)
    layout = ObservationLayout(spec)
    space = action_space(action) if space is None else space
    adapter = SpaceAdapter(layout.space, space, (spec, layout))
    torch.manual_seed(0)
    return kind(layout.space, space, lambda _: 1e-3, adapter=adapter, hidden_units=16, **options)  # type: ignore[call-arg]


def reference(policy: AgentPolicy, shown: Demonstration, scale: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return squared errors (n, continuous) and log π (n, branches) in float64, decision by decision."""
    policy = copy.deepcopy(policy).double()
    spec = shown.spec.action_spec
    outputs: list[list[np.ndarray]] = []
    for first, after in shown.episodes:
        memory = torch.zeros((1, policy.settings.memory_size), dtype=torch.float64)
        for row in range(first, after):
            observations = [torch.from_numpy(array[row : row + 1]).double() for array in shown.observations]
            with torch.no_grad():
                features, memory = policy.body(observations, memory)
                mean, _, logits = policy.head(features)
            outputs.append([np.zeros(0) if part is None else part.numpy()[0] for part in (mean, logits)])
    means, logits = (np.stack(parts) for parts in zip(*outputs, strict=True))
    errors = (scale(means) - np.clip(shown.actions.continuous, -1, 1)) ** 2
    log_probs = []
    for index, part in enumerate(np.split(np.arange(logits.shape[1]), np.cumsum(spec.discrete_branches)[:-1])):
        if len(part):
            choice = shown.actions.discrete[:, index]
            allowed = shown.action_masks[:, part] | (np.arange(len(part)) == choice[:, None])
            weight = np.where(allowed, np.exp(logits[:, part]), 0)
            log_probs.append(np.log(weight[np.arange(len(weight)), choice] / weight.sum(1)))
    return errors, np.array(log_probs).T


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("kind", ["unity", "clip", "tanh"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_the_loss_agrees_with_a_float64_reference(tmp_path: Path, actions: str, kind: str, memory: int) -> None:
    action = ACTIONS[actions]
    shown = load(write(tmp_path / "toy.demo", action))
    network = {"memory_size": memory, "sequence_length": 5, "normalize": True}
    if kind == "tanh":
        policy = make_policy(UnitySACPolicy, action, **network)
    else:
        policy = make_policy(UnityPolicy, action, action_scaling=kind, **network)
    expert = Expert(shown, shown.spec, memory)
    policy.body.update_normalization(expert.observations)
    refresh_memory(policy, expert)
    errors, log_probs = reference(
        policy, shown, {"unity": lambda mean: mean / 3, "clip": lambda mean: mean, "tanh": np.tanh}[kind]
    )
    if action.discrete_size:
        assert not np.take_along_axis(
            shown.action_masks, shown.actions.discrete + np.array([0, 3]), 1
        ).all()  # the mask forbids some of the expert's actions
    for batch in expert.shuffled(10, 5 if memory else 1, drop_last=False):
        rows = (batch.index if batch.valid is None else batch.index[batch.valid]).numpy()
        expected = (errors[rows].mean() if action.continuous_size else 0) - (
            log_probs[rows].mean() if action.discrete_size else 0
        )
        assert imitation_loss(compare(policy, batch), batch).item() == pytest.approx(expected, abs=1e-5)


def test_a_mask_excludes_forbidden_discrete_actions_from_the_loss(tmp_path: Path) -> None:
    shown = load(write(tmp_path / "toy.demo", ACTIONS["branches"]))
    policy = make_policy(UnityPolicy, shown.spec.action_spec)
    with torch.no_grad():
        policy.head.logits.bias[2] = 9  # the most likely action without a mask
    expert = Expert(shown, shown.spec)
    (batch,) = expert.in_order(100)
    comparison = compare(policy, batch)
    choice, may = shown.actions.discrete[:, 0], shown.action_masks[:, 2]
    assert comparison.log_probs is not None
    assert comparison.agrees is not None
    assert (comparison.log_probs[(choice != 2) & may, 0] < -5).all()
    assert (comparison.log_probs[(choice != 2) & ~may, 0] > -5).all()
    assert comparison.agrees[choice == 2, 0].all()


def test_an_update_changes_only_the_actor_with_the_given_hyperparameters(tmp_path: Path) -> None:
    shown = load(write(tmp_path / "toy.demo", ACTIONS["hybrid"]))
    policy = make_policy(UnityPolicy, shown.spec.action_spec)
    cloning = BehavioralCloning(
        shown, strength=0.5, steps=1000, learning_rate=4e-3, n_epochs=2, batch_size=5, samples_per_update=11
    )
    cloning.setup(policy, 1.0, 99)
    before = copy.deepcopy(policy.state_dict())
    losses = [cloning.update(steps)["loss"].item() for steps in range(0, 1000, 10)]
    assert losses[-1] < losses[0] - 0.1
    assert {int(state["step"]) for state in cloning.optimizer.state.values()} == {100 * 2 * 2}
    assert [group["lr"] for group in cloning.optimizer.param_groups] == pytest.approx([2e-3 * 10 / 1000])
    changed = {
        name.partition(".")[0] for name, value in policy.state_dict().items() if not torch.equal(before[name], value)
    }
    assert changed == {"body", "head"}
    assert torch.equal(before["head.log_std"], policy.head.log_std)
    assert [cloning.learning_rate_at(steps) for steps in (0, 250, 1000, 2000)] == pytest.approx([2e-3, 1.5e-3, 0, 0])
    end = copy.deepcopy(policy.state_dict())
    assert cloning.update(1000) == {}
    assert all(torch.equal(end[name], value) for name, value in policy.state_dict().items())


def test_without_its_own_hyperparameters_cloning_uses_those_of_the_algorithm_and_does_not_end(tmp_path: Path) -> None:
    shown = load(write(tmp_path / "toy.demo", ACTIONS["branches"]))
    cloning = BehavioralCloning(shown, strength=0.5)
    cloning.setup(make_policy(UnityPolicy, shown.spec.action_spec), 1e-2, 8)
    assert cloning.learning_rate_at(10**9) == 5e-3
    cloning.update(10**9)
    assert {int(state["step"]) for state in cloning.optimizer.state.values()} == {3 * 3}  # 3 epochs over 24 decisions


def test_a_cloned_policy_acts_at_the_demonstrated_scale(tmp_path: Path) -> None:
    spec = BehaviorSpec(SENSORS, ActionSpec(2, ()))
    with DemonstrationWriter(tmp_path / "toy.demo", "Toy", spec) as writer:
        for _ in range(100):
            writer.add([np.zeros(3, np.float32), np.zeros(2, np.float32)], ActionTuple(np.array([[0.9, -0.6]])))
    wide = gym.spaces.Box(np.float32([-2, -1]), np.float32([6, 3]))  # a wrapper's, whose bounds Unity gets as -1 and 1
    kinds: list[tuple[type[AgentPolicy], dict[str, Any]]] = [
        (UnityPolicy, {}),
        (UnityPolicy, {"action_scaling": "clip"}),
        (UnitySACPolicy, {}),
    ]
    for (kind, options), space in itertools.product(kinds, (None, wide)):
        policy = make_policy(kind, spec.action_spec, space, **options)
        cloning = BehavioralCloning(tmp_path / "toy.demo", learning_rate=2e-2, n_epochs=200)
        cloning.setup(policy, 1.0, 50)
        cloning.update(0)
        chosen, _ = policy.predict(np.zeros((1, 5), np.float32), deterministic=True)
        expected = [[0.9, -0.6]] if space is None else [[2 + 4 * 0.9, 1 - 2 * 0.6]]
        np.testing.assert_allclose(chosen, expected, atol=0.04)
        raw, *_ = policy.act([torch.randn(9, 3), torch.randn(9, 2)], None, torch.zeros((9, 0)))
        performed = policy.environment_actions(raw.detach().numpy()).continuous
        scaled = performed if space is None else (performed - [2, 1]) / [4, 2]
        np.testing.assert_allclose(policy.bounded_actions(raw).detach(), scaled, atol=1e-6)


def recorded_basic(path: Path) -> Path:
    """Write a demonstration of Basic's optimal policy: always right."""
    spec = BehaviorSpec(
        [ObservationSpec((20,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "")], ActionSpec(0, (3,))
    )
    with DemonstrationWriter(path, "Basic", spec) as writer:
        for _ in range(5):
            for step in range(8):
                seen = np.eye(20, dtype=np.float32)[10 + step]
                writer.add([seen], None if step == 7 else ActionTuple(discrete=np.array([[2]])), terminated=step == 7)
    return path


def test_ppo_imitates_while_it_learns_and_its_saved_model_continues(tmp_path: Path) -> None:
    path = recorded_basic(tmp_path / "basic.demo")
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    model = PPO(
        "UnityPolicy",
        env,
        3e-3,
        buffer_size=60,
        batch_size=20,
        n_epochs=2,
        time_horizon=8,
        demonstrations=path,
        policy_kwargs={"hidden_units": 16},
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    model.learn(70)
    first = model.logger.name_to_value["train/cloning_loss"]
    model.learn(1000, reset_num_timesteps=False)
    assert model.logger.name_to_value["train/cloning_loss"] < 0.5 * first
    right = np.eye(20, dtype=np.float32)[10:17]
    assert (model.predict(right, deterministic=True)[0] == 2).all()
    model.save(tmp_path / "model")
    env.close()

    path.rename(tmp_path / "moved.demo")  # needed only for learning
    loaded = PPO.load(tmp_path / "model", device="cpu")
    assert model.cloning is not None
    assert loaded.cloning is not None
    for actual, expected in zip(
        model.cloning.state_dict()["state"].values(), loaded.cloning.state_dict()["state"].values(), strict=True
    ):
        assert actual["step"] == expected["step"] > 0
        assert torch.equal(actual["exp_avg"], expected["exp_avg"])
    with pytest.raises(DemonstrationError, match=r"no demonstration .*basic\.demo"):
        loaded.cloning.update(0)
    (tmp_path / "moved.demo").rename(path)
    assert loaded.cloning.update(0)["loss"] < 0.5 * first


def test_a_loaded_model_starts_or_stops_imitating(tmp_path: Path) -> None:
    path = recorded_basic(tmp_path / "basic.demo")
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    options: dict[str, Any] = {"buffer_size": 60, "batch_size": 20, "time_horizon": 8, "device": "cpu"}
    PPO("UnityPolicy", env, demonstrations=path, **options).save(tmp_path / "imitates")
    PPO("UnityPolicy", env, **options).save(tmp_path / "plain")
    stopped = PPO.load(tmp_path / "imitates", env=env, demonstrations=None)
    assert stopped.cloning is None
    stopped.learn(130)
    started = PPO.load(tmp_path / "plain", env=env, demonstrations=path)
    started.set_logger(configure(None, []))
    started.learn(130)
    assert started.logger.name_to_value["train/cloning_loss"] > 0
    env.close()


def test_a_demonstration_of_another_behavior_raises_with_each_differing_sensor(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.demo", ACTIONS["branches"])
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    with pytest.raises(DemonstrationError) as caught:
        PPO("UnityPolicy", env, demonstrations=path, device="cpu")
    env.close()
    assert "sensor 0: (3,) 'place' against (20,)" in str(caught.value)
    assert "sensor 1: (2,) 'wind' against none: DIFFERENT" in str(caught.value)
    assert "actions: (0, (3, 2)) against (0, (3,)): DIFFERENT" in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"strength": -1}, {"steps": -1}, {"n_epochs": 0}, {"batch_size": 0}, {"samples_per_update": -1}]
)
def test_invalid_hyperparameters_raise(tmp_path: Path, wrong: dict[str, float]) -> None:
    path = recorded_basic(tmp_path / "basic.demo")
    (name,) = wrong
    with pytest.raises(UnityGymError, match=name):
        BehavioralCloning(path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DemonstrationError, match="no demonstration"):
        BehavioralCloning(tmp_path / "nothing.demo")
