"""PPO: losses against float64 references and plain SB3, its interface as an SB3 algorithm, and learning checks."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from random_experience import model_of, trajectories
from stable_baselines3 import PPO as PlainPPO  # noqa: N811
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize
from torch import nn

from sb3_ext import PPO, SAC, SB3_COMPAT, Curiosity, Extrinsic, OnnxPolicy, UnityVecEnv
from sb3_ext.experience import TrajectoryBuffer
from sb3_ext.policies import UnityPolicy
from sb3_ext.reward_signals import RewardSignal
from sb3_ext.rollout import Rollout
from stand_ins import all_sensors_player
from stand_ins.toy_environments import HYBRID, SPACES, Bits, assert_the_same_predictions, make_toys
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.pool import PlayerPool

EPSILON, BETA = 0.2, 0.01


def reference_losses(model: PPO, rollout: Any, decisions: np.ndarray, epsilon: float, beta: float) -> float:
    """Compute the loss of some decisions in float64, from weights and formulas."""
    policy = model.policy
    spec = policy.adapter.spec.action_spec
    size = spec.continuous_size

    def dense(layers: torch.nn.Sequential, x: np.ndarray) -> np.ndarray:
        for layer in layers:
            if isinstance(layer, torch.nn.Linear):
                x = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
            else:
                x = x / (1 + np.exp(-x))
        return x

    def body(net: Any, x: np.ndarray) -> np.ndarray:
        x = dense(net.layers, x)
        if net.memory is None:
            return x
        return lstm(net.memory.lstm, x, start(net))

    def start(net: Any) -> np.ndarray:
        size = policy.settings.memory_size
        place = [policy.body, policy.critic, policy.second_critic].index(net) * size
        return rollout.memory.double().numpy()[:, place : place + size]

    def lstm(cell: torch.nn.LSTM, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Run the LSTM step by step; sequences start every `sequence_length` decisions of a trajectory."""
        hidden = cell.hidden_size
        weights = [getattr(cell, name).detach().double().numpy() for name in ("weight_ih_l0", "weight_hh_l0")]
        bias = (cell.bias_ih_l0 + cell.bias_hh_l0).detach().double().numpy()
        out = np.zeros((len(x), hidden))
        first = 0
        for length in rollout.lengths:
            for step in range(length):
                row = first + step
                if step % policy.settings.sequence_length == 0:
                    h, c = memory[row, :hidden], memory[row, hidden:]
                gates = weights[0] @ x[row] + weights[1] @ h + bias
                i, f, g, o = gates.reshape(4, hidden)
                sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
                out[row] = h
            first += length
        return out

    x = np.concatenate([array.double().numpy() for array in rollout.observations], 1)
    if policy.body.normalization is not None:
        norm = policy.body.normalization
        x = np.clip((x - norm.mean.numpy()) / np.sqrt(norm.squares.numpy() / norm.count.numpy()), -5, 5)
    features = body(policy.body, x)
    actions = rollout.actions.double().numpy()
    log_probs, entropy = [], np.zeros(len(x))
    if size:
        mean, log_std = dense([policy.head.mean], features), policy.head.log_std.detach().double().numpy()
        z = (actions[:, :size] - mean) / np.exp(log_std)
        log_probs.append(-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi))
        entropy += (0.5 * np.log(2 * np.pi * np.e) + log_std).mean()
    if spec.discrete_size:
        logits, masks = dense([policy.head.logits], features), rollout.action_masks.numpy()
        for index, part in enumerate(np.split(np.arange(logits.shape[1]), np.cumsum(spec.discrete_branches)[:-1])):
            weight = np.where(masks[:, part], np.exp(logits[:, part]), 0)
            p = weight / weight.sum(1, keepdims=True)
            log_p = np.log(np.where(p > 0, p, 1))
            log_probs.append(log_p[np.arange(len(p)), actions[:, size + index].astype(int)][:, np.newaxis])
            entropy -= (p * log_p).sum(1)
    critics = [(policy.critic, policy.value_head), (policy.second_critic, policy.second_value_head)]
    values = np.concatenate([dense([head], body(net, x)) for net, head in critics if net is not None], 1)
    ratio = np.exp(np.concatenate(log_probs, 1) - rollout.log_probs.double().numpy())[decisions]
    advantage = rollout.advantages.double().numpy()[decisions, np.newaxis]
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - epsilon, 1 + epsilon) * advantage).mean()
    old, target = (x.double().numpy()[decisions, :, 0] for x in (rollout.values, rollout.returns))
    new = values[decisions]
    near = old + np.clip(new - old, -epsilon, epsilon) if model.clip_range_vf else new
    errors = (target - near) ** 2
    value_loss = (errors if model.value_clipping == "clipped" else np.maximum((target - new) ** 2, errors)).mean()
    return float(-surrogate + 0.5 * value_loss - beta * entropy[decisions].mean())


def reference_estimates(
    model: PPO, rollout: Any, values: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute returns and normalized advantages backwards per trajectory."""
    rewards = (rollout.rewards + rollout.group_rewards).double().numpy()
    gamma, decay = 0.9, 0.9 * model.gae_lambda
    estimates, first = np.zeros(len(rewards)), 0
    for trajectory, length in enumerate(rollout.lengths):
        following, carried = 0.0 if rollout.terminated[trajectory] else ends[trajectory], 0.0
        for row in reversed(range(first, first + length)):
            carried = rewards[row] + gamma * following - values[row] + decay * carried
            following = values[row]
            estimates[row] = carried
        first += length
    return estimates + values, (estimates - estimates.mean()) / (estimates.std() + 1e-10)


NUMBERS, BRANCHES = spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 2])


@pytest.mark.parametrize(
    ("actions", "memory", "second_critic", "clip_value"),
    [
        *itertools.product([NUMBERS, BRANCHES, HYBRID], [0, 8], [None], [None]),
        (BRANCHES, 0, None, "larger"),
        (NUMBERS, 0, "max", None),
        (BRANCHES, 8, "min", None),
        (HYBRID, 8, "mean", "clipped"),
    ],
)
def test_losses_returns_and_advantages_agree_with_a_float64_reference(
    monkeypatch: pytest.MonkeyPatch,
    actions: spaces.Space,
    memory: int,
    second_critic: str | None,
    clip_value: str | None,
) -> None:
    env = make_toys(actions)
    model = PPO(
        "UnityPolicy",
        env,
        buffer_size=90,
        batch_size=40,
        n_epochs=2,
        time_horizon=7,
        clip_range=EPSILON,
        ent_coef=BETA,
        learning_rate=3e-3,
        learning_rate_schedule="constant",
        reward_signals=[Extrinsic(gamma=0.9)],
        second_critic=second_critic,
        clip_range_vf=EPSILON if clip_value else None,
        value_clipping=clip_value or "larger",
        advantage_normalization="buffer",
        policy_kwargs={"normalize": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 3},
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    losses: list[float] = []
    expected: list[float] = []
    estimate, evaluate, backward = model._estimate, model.policy.evaluate, torch.Tensor.backward

    def checked_estimate(rollout: Any) -> None:
        estimate(rollout)
        with torch.no_grad():
            both = model.policy.critic_values(rollout.observations, rollout.memory).double().numpy()[..., 0]
            ends = model.policy.critic_values(rollout.end_observations, rollout.end_memory).double().numpy()[..., 0]
        combine = {None: np.max, "max": np.max, "min": np.min, "mean": np.mean}[second_critic]
        returns, normalized = reference_estimates(model, rollout, combine(both, 1), combine(ends, 1))
        np.testing.assert_allclose(rollout.values[..., 0], both, atol=1e-5)
        np.testing.assert_allclose(rollout.returns[:, 0, 0], returns, atol=1e-5)
        assert both.shape[1] == (1 if second_critic is None else 2)
        assert second_critic is None or np.abs(both[:, 0] - both[:, 1]).max() > 1e-3
        np.testing.assert_allclose(rollout.advantages, normalized, atol=1e-5)
        assert set(rollout.terminated) == {True, False}

    def checked_evaluate(batch: Any) -> Any:
        values, log_probs, distribution = evaluate(batch)
        if hasattr(batch.rollout, "advantages"):
            decisions = (batch.index if batch.valid is None else batch.index[batch.valid]).numpy()
            # the update recomputed the recurrent states after an epoch, also in the rollout that the reference reads
            expected.append(reference_losses(model, batch.rollout, decisions, EPSILON, BETA))
        return values, log_probs, distribution

    def noted_backward(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
        losses.append(loss.item())
        backward(loss, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "backward", noted_backward)
    model._estimate = checked_estimate  # type: ignore[method-assign]
    model.policy.evaluate = checked_evaluate  # type: ignore[method-assign]
    model.learn(350)
    assert len(losses) >= 8
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_each_update_equals_plain_ppo(env_id: str) -> None:
    numbers = {"batch_size": 32, "n_epochs": 4, "gae_lambda": 0.9, "clip_range": 0.2, "ent_coef": 0.01, "seed": 3}

    def make() -> DummyVecEnv:
        return DummyVecEnv([lambda: gym.make(env_id, max_episode_steps=15)] * 4)

    plain = PlainPPO(
        "MlpPolicy",
        make(),
        n_steps=20,
        policy_kwargs={"net_arch": [16, 16], "activation_fn": torch.nn.SiLU},
        device="cpu",
        **numbers,
    )
    ours = PPO(
        "UnityPolicy",
        make(),
        buffer_size=80,
        policy_kwargs={"hidden_units": 16, "optimizer_kwargs": {"eps": 1e-5}},
        device="cpu",
        **numbers,
        **SB3_COMPAT,
    )
    pairs = [
        (plain.policy.mlp_extractor.policy_net, ours.policy.body.layers),
        (plain.policy.mlp_extractor.value_net, ours.policy.critic.layers),
        (plain.policy.action_net, ours.policy.head.logits or ours.policy.head.mean),
        (plain.policy.value_net, ours.policy.value_head),
    ]
    for reference, actual in pairs:
        actual.load_state_dict(reference.state_dict())
    before = plain.policy.action_net.weight.detach().clone()
    for model in (plain, ours):
        model.set_logger(configure(None, []))
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        model.learn(5 * 80)
        assert model.num_timesteps == 400
        assert model._n_updates == 20
    for reference, actual in pairs:
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(actual.state_dict()[name], value, atol=1e-5, rtol=0)
    if env_id == "Pendulum-v1":
        torch.testing.assert_close(ours.policy.head.log_std, plain.policy.log_std, atol=1e-5, rtol=0)
    assert (plain.policy.action_net.weight - before).abs().max() > 1e-3
    observations = np.random.default_rng(0).normal(size=(50, *plain.observation_space.shape)).astype(np.float32)
    expected, _ = plain.predict(observations, deterministic=True)
    np.testing.assert_allclose(ours.predict(observations, deterministic=True)[0], expected, atol=1e-5)


def recurrent_model(normalize: bool = False, **options: Any) -> tuple[PPO, list]:
    """Return a recurrent model and the list of its rollouts."""
    network = {"hidden_units": 16, "memory_size": 8, "sequence_length": 3, "normalize": normalize}
    env = make_toys(spaces.Discrete(2))
    model = PPO(
        "UnityPolicy",
        env,
        1e-2,
        buffer_size=60,
        batch_size=30,
        time_horizon=7,
        device="cpu",
        seed=0,
        policy_kwargs=network,
        **options,
    )
    rollouts: list[Any] = []
    take = model._take_rollout
    model._take_rollout = lambda: rollouts.append(take()) or rollouts[-1]  # type: ignore[method-assign]
    return model, rollouts


@pytest.mark.parametrize("normalize", [False, True])
def test_each_agent_has_its_own_recurrent_state_which_starts_with_its_episode(normalize: bool) -> None:
    """Also with the statistics of observations that come from the first rollout itself."""
    model, rollouts = recurrent_model(normalize, n_epochs=1, rollout="cut")
    policy, checked = model.policy, []
    estimate = model._estimate

    def checking(rollout: Any) -> None:
        estimate(rollout)
        with torch.no_grad():
            _, _, after = policy.act(rollout.observations, None, rollout.memory)
        inner = ~rollout.is_last[:-1]
        torch.testing.assert_close(rollout.memory[1:][inner], after[:-1][inner])
        torch.testing.assert_close(rollout.end_memory, after[rollout.is_last])
        assert after[:, :8].ne(after[:, 8:]).any()  # the critic has its own
        checked.append(rollout)

    model._estimate = checking  # type: ignore[method-assign]
    model.learn(61)
    (rollout, *_) = checked
    starts = torch.from_numpy(np.cumsum(rollout.lengths) - rollout.lengths)
    assert (rollout.memory[starts] == 0).all(1).sum() >= 3
    assert rollouts


def test_recurrent_states_are_recomputed_with_the_new_weights_between_epochs() -> None:
    model, rollouts = recurrent_model()
    model.learn(200)
    rollout, policy = rollouts[-1], model.policy
    policy.refresh_memory(rollout)
    decisions, _ = rollout.sequences(3)
    for sequence, following in itertools.pairwise(decisions):
        if rollout.trajectory[sequence[0]] != rollout.trajectory[following[0]]:
            continue
        memory = rollout.memory[sequence[:1]]
        for decision in sequence:
            with torch.no_grad():
                _, _, memory = policy.act([rollout.observations[0][decision : decision + 1]], None, memory)
        torch.testing.assert_close(rollout.memory[following[0]], memory[0])


class SlowPPO(PPO):
    """A PPO whose updates last until something waits for them. `events` contains start, act and end in their order."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.events: list[str] = []
        self.awaited = threading.Event()
        super().__init__(*arguments, **options)

    def _start_update(self, update: Callable[[], None]) -> None:
        self.events.append("start")  # not in the update's thread, which may take a while to run
        super()._start_update(update)

    def _update(self, *arguments: Any) -> None:
        assert self.awaited.wait(30)
        super()._update(*arguments)
        self.events.append("end")

    def finish_update(self, wait: bool = True) -> None:
        if wait:
            self.awaited.set()
        super().finish_update(wait)
        if wait:
            self.awaited.clear()

    def select_actions(self, *arguments: Any, **options: Any) -> Any:
        if self._running is not None:
            self.events.append("act")
        return super().select_actions(*arguments, **options)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "awaited"]


@pytest.fixture
def slow() -> Iterator[SlowPPO]:
    env = make_toys(NUMBERS)
    model = SlowPPO(
        "UnityPolicy",
        env,
        1e-2,
        buffer_size=60,
        batch_size=20,
        n_epochs=2,
        rollout="cut",
        threaded=True,
        device="cpu",
        seed=0,
        policy_kwargs={"normalize": True, "hidden_units": 16},
    )
    model.set_logger(configure(None, []))
    yield model
    env.close()


def test_agents_act_with_the_previous_policy_until_the_update_ends_or_the_next_is_due(slow: SlowPPO) -> None:
    model, events = slow, slow.events
    policy, rollouts, acting = model.policy, [], []
    take, estimate = model._take_rollout, model._estimate

    def taking() -> Any:
        rollouts.append(take())
        acting.append(policy.acting_copy())  # from here on, as each update lasts until the next is due
        return rollouts[-1]

    def checked(rollout: Any) -> None:
        (batch,) = rollout.in_order(len(rollout))
        assert model._records["rollout/experience_age"] == (len(rollouts) > 1)
        if len(rollouts) > 1:
            torch.testing.assert_close(acting[-2].log_probs(batch), rollout.log_probs)
            assert (policy.log_probs(batch) - rollout.log_probs).abs().max() > 1e-3
        estimate(rollout)

    model._take_rollout, model._estimate = taking, checked  # type: ignore[method-assign]
    model.learn(300)
    assert [len(rollout) for rollout in rollouts] == [60] * 5
    changes = [event for event, _ in itertools.groupby(events)]
    assert changes == [*["start", "act", "end"] * 4, "start", "end"]
    assert policy.body.normalization is not None
    assert policy.body.normalization.count == 1 + 300
    assert model._n_updates == 10
    assert model.logger.name_to_value.keys() >= {"train/value_loss", "train/learning_rate", "rollout/extrinsic_reward"}


class Once(BaseCallback):
    """A callback that calls a function once, while an update runs."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self.function: Callable[[], None] | None = function

    def _on_step(self) -> bool:
        if self.function is not None and self.model._running is not None:
            function, self.function = self.function, None
            function()
        return True


class NewObservations(BaseCallback):
    """A callback that compares `new_obs` with the current observations."""

    def _on_step(self) -> bool:
        env = self.training_env.unwrapped
        np.testing.assert_array_equal(self.locals["new_obs"], env.layout.select(env.table.observations))
        return True


def test_a_callback_gets_the_current_observations() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", num_envs=4, seed=0)
    PPO("UnityPolicy", env, buffer_size=80, batch_size=40).learn(80, NewObservations())
    env.close()


class Stop(BaseCallback):
    """A callback that stops the training at its n-th call."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def _on_step(self) -> bool:
        return self.n_calls < self.calls


def test_during_an_update_the_old_policy_predicts_and_saving_waits_for_the_new_one(
    slow: SlowPPO, tmp_path: Path
) -> None:
    model, events = slow, slow.events
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)

    def look() -> None:
        old, _ = model.predict(observations, deterministic=True)
        np.testing.assert_array_equal(model.acting_policy.predict(observations, deterministic=True)[0], old)
        assert events[-1] == "act"
        model.save(tmp_path / "model")
        assert events[-1] == "end"
        new, _ = model.predict(observations, deterministic=True)
        assert np.abs(new - old).max() > 1e-3
        loaded = PPO.load(tmp_path / "model", device="cpu")
        np.testing.assert_array_equal(loaded.predict(observations, deterministic=True)[0], new)
        assert (loaded.threaded, loaded._n_updates) == (True, 2)

    once = Once(look)
    model.learn(200, once)
    assert once.function is None


def test_an_exception_during_an_update_ends_learning_after_the_update(slow: SlowPPO) -> None:
    model, events = slow, slow.events

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(1000, Once(interrupt))
    assert events[-1] == "end"
    assert model._running is None
    model.n_epochs = "two"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="'str'"):
        model.learn(1000, reset_num_timesteps=False)
    assert model._running is None
    model.n_epochs = 2
    updates = model._n_updates
    model.learn(100, reset_num_timesteps=False)
    assert model._n_updates > updates


@pytest.mark.parametrize("memory", [0, 8])
def test_agents_of_unity_act_while_updates_run(tmp_path: Path, memory: int) -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    network = {"normalize": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 4}
    model = PPO(
        "UnityPolicy", env, buffer_size=240, batch_size=64, time_horizon=50, threaded=True, policy_kwargs=network,
        seed=0, device="cpu",
    )  # fmt: skip
    model.learn(1200, CheckpointCallback(40, str(tmp_path)))
    assert len(list(tmp_path.glob("*.zip"))) >= 2
    assert model._n_updates >= 9
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("name", SPACES)
def test_save_and_load_keep_every_action_and_learning_continues(name: str, memory: int, tmp_path: Path) -> None:
    actions, observations = SPACES[name]
    if isinstance(actions, spaces.MultiBinary):
        env = DummyVecEnv([lambda: Bits(actions, observations)] * 2)
    else:
        env = make_toys(actions, observations, 2)
    network = {"normalize": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 4}
    model = PPO("UnityPolicy", env, buffer_size=30, batch_size=16, policy_kwargs=network, seed=0, device="cpu")
    model.learn(100)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env, device="cpu")
    assert loaded.num_timesteps == model.num_timesteps
    for actual, expected in zip(
        model.policy.optimizer.state_dict()["state"].values(),
        loaded.policy.optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        assert torch.equal(actual["exp_avg_sq"], expected["exp_avg_sq"])
    assert_the_same_predictions(model, loaded, actions, memory)
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps >= model.num_timesteps + 60
    alone = tmp_path / "policy.pt"
    model.policy.save(alone)
    lone = UnityPolicy.load(alone, device="cpu")
    for key, value in model.policy.state_dict().items():
        assert torch.equal(lone.state_dict()[key], value)
    env.close()


def test_predict_respects_the_mask() -> None:
    env = make_toys(spaces.MultiDiscrete([3, 2]))
    model = PPO("UnityPolicy", env, device="cpu")
    masks = np.tile([False, True, False, False, True], (40, 1))
    chosen, _ = model.predict(np.zeros((40, 4), np.float32), action_masks=masks)
    for wrong in (masks[0], masks[:, :1], masks[:, :4]):
        with pytest.raises(InvalidValueError, match=r"action_masks must have the shape \(40, 5\)"):
            model.predict(np.zeros((40, 4), np.float32), action_masks=wrong)
    np.testing.assert_array_equal(chosen, [[1, 1]] * 40)
    env.close()


@pytest.mark.parametrize(("scaling", "expected"), [("unity", [-2, 0, 4, 6]), ("clip", [-2, -2, 3, 6])])
def test_raw_continuous_actions_reach_the_environment_as_configured(scaling: str, expected: list) -> None:
    space = spaces.Box(-2, 6, (1,), np.float32)
    policy = UnityPolicy(spaces.Box(-1, 1, (2,)), space, lambda _: 1e-3, action_scaling=scaling)
    raw = np.array([[-9.0], [-1.5 if scaling == "unity" else -2.5], [1.5 if scaling == "unity" else 3], [7.0]])
    np.testing.assert_allclose(policy.environment_actions(raw).continuous[:, 0], expected)


def test_a_rollout_of_trajectories_exceeds_the_buffer_size_and_a_cut_one_equals_it() -> None:
    sizes = {}
    for rollout in ("trajectories", "cut"):
        env = make_toys(spaces.Discrete(2))
        model = PPO("UnityPolicy", env, buffer_size=60, batch_size=20, time_horizon=5, rollout=rollout, device="cpu")
        taken = sizes[rollout] = []
        take = model._take_rollout
        model._take_rollout = lambda take=take, taken=taken: taken.append(take()) or taken[-1]  # type: ignore[method-assign]
        model.learn(400)
        env.close()
        assert sum(len(rollout) for rollout in taken) == model.num_timesteps
    assert all(len(rollout) > 60 for rollout in sizes["trajectories"][:-1])
    # Three agents act at a time; the last rollout is what is left of the 400 timesteps.
    assert [len(rollout) for rollout in sizes["cut"]] == [60] * 6 + [42]


@pytest.mark.parametrize(
    ("memory_size", "options", "expected"),
    [
        (8, {}, "trajectories"),
        (0, {}, "cut"),
        (8, {"time_horizon": None}, "cut"),
        (8, SB3_COMPAT, "cut"),
        (8, {"rollout": "cut"}, "cut"),
    ],
)
def test_updates_wait_for_trajectories_where_the_policy_has_memory(
    memory_size: int, options: dict, expected: str
) -> None:
    env = make_toys(spaces.Discrete(2))
    network = {"memory_size": memory_size, "sequence_length": 3}
    model = PPO("UnityPolicy", env, buffer_size=60, batch_size=30, policy_kwargs=network, device="cpu", **options)
    env.close()
    assert model.rollout == expected


def test_advantages_of_small_buffers_are_normalized_by_the_statistics_of_1024_decisions() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [3.0 * torch.randn(size, generator=generator, dtype=torch.float64) + size for size in (5, 1000, 700, 500)]
    env = make_toys(spaces.Discrete(2))
    for normalization, kept in (("recent", (1, 2, 2, 2)), ("buffer", (1, 1, 1, 1))):
        model = PPO("UnityPolicy", env, advantage_normalization=normalization, device="cpu")
        for newest, count in enumerate(kept, 1):
            reference = torch.cat(parts[newest - count : newest])
            expected = (parts[newest - 1] - reference.mean()) / reference.std(correction=0)
            torch.testing.assert_close(model._normalized(parts[newest - 1]), expected)
    env.close()


def test_a_large_buffer_is_normalized_alone() -> None:
    env = make_toys(spaces.Discrete(2))
    model = PPO("UnityPolicy", env, device="cpu")
    model._normalized(torch.full((1023,), 9.0, dtype=torch.float64))
    large = torch.arange(1024, dtype=torch.float64)
    torch.testing.assert_close(model._normalized(large), (large - large.mean()) / large.std(correction=0))
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
def test_the_first_ratio_of_every_update_is_one(memory: int) -> None:
    env = make_toys(spaces.Box(-1, 1, (2,), np.float32))
    model = PPO(
        "UnityPolicy", env, buffer_size=60, batch_size=1000, n_epochs=1, rollout="cut", device="cpu",
        policy_kwargs={"normalize": True, "memory_size": memory, "sequence_length": 4},
    )  # fmt: skip
    model.set_logger(configure(None, []))
    kls = []
    train = model.train

    def noting() -> None:
        train()
        kls.append(model.logger.name_to_value["train/approx_kl"])

    model.train = noting  # type: ignore[method-assign]
    model.learn(300)
    np.testing.assert_allclose(kls, 0, atol=1e-6)
    env.close()


def test_a_minibatch_with_one_valid_decision_is_not_normalized() -> None:
    """A sequence of a single decision has no standard deviation; its padding does not count."""
    env = make_toys(spaces.Discrete(4))  # episodes of 3 to 11 decisions
    model = PPO(
        "UnityPolicy", env, n_steps=64, batch_size=4, n_epochs=1, device="cpu",
        policy_kwargs={"hidden_units": 8, "memory_size": 8, "sequence_length": 4}, **SB3_COMPAT,
    )  # fmt: skip
    model.learn(192)
    assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
    env.close()


@pytest.mark.parametrize("ratio", ["dimension", "action"])
def test_decisions_of_an_older_policy_are_weighted_and_clipped_around_the_present_one(
    ratio: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(PPO, buffer_size=60, batch_size=60, n_epochs=1, ratio=ratio, threaded=True)
    experience = trajectories(np.random.default_rng(0), [60])
    model.add(experience)
    model.train()
    model.finish_update()  # statistics of the observations exist from now on

    rollout = Rollout.from_trajectories(experience)
    with torch.no_grad():
        now = model.policy.log_probs(next(rollout.in_order(60)))
    weights = now - rollout.log_probs
    weights = (weights.sum(1, keepdim=True) if ratio == "action" else weights).exp()
    estimated = []
    estimate = model._estimate
    monkeypatch.setattr(model, "_estimate", lambda rollout: estimated.append(estimate(rollout) or rollout.advantages))
    model.add(experience)
    model.train()
    model.finish_update()
    loss = -(estimated[0].unsqueeze(1) * weights).mean().item()
    assert model._records["train/policy_gradient_loss"] == pytest.approx(loss, rel=1e-5)
    assert model._records["train/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert model._records["train/clip_fraction"] == 0


class Other(RewardSignal):
    """An environment with reward 1 per decision and no end, for a model that counts its updates."""

    name = "other"
    non_episodic = True

    def setup(self, spec: Any) -> None:
        assert spec.observation_specs
        self.updates = torch.nn.Parameter(torch.zeros(()), requires_grad=False)

    def rewards(self, batch: Any) -> torch.Tensor:
        assert batch.next_observations[0].shape == batch.observations[0].shape
        return torch.ones(len(batch))

    def update(self, batch: Any) -> dict[str, float]:
        assert len(batch) == 20
        self.updates += 1
        return {"loss": 0.0}


def test_every_reward_signal_has_its_head_discount_and_updates(tmp_path: Path) -> None:
    env = make_toys(spaces.Discrete(2))
    signals = [Extrinsic(gamma=0.9), Other(gamma=0.5, strength=2.0)]
    model = PPO(
        "UnityPolicy",
        env,
        3e-3,
        buffer_size=60,
        batch_size=20,
        n_epochs=2,
        time_horizon=None,
        gae_lambda=1.0,
        reward_signals=signals,
        advantage_normalization="buffer",
        device="cpu",
        seed=0,
    )
    estimate = model._estimate

    def checked(rollout: Any) -> None:
        estimate(rollout)
        with torch.no_grad():
            ends = model.policy.state_values(rollout.end_observations, rollout.end_memory)
        last = rollout.is_last
        following = torch.from_numpy(~rollout.terminated) * ends[:, 0]
        torch.testing.assert_close(rollout.returns[last, 0, 0], rollout.rewards[last] + 0.9 * following)
        torch.testing.assert_close(rollout.returns[last, 0, 1], 2 + 0.5 * ends[:, 1])  # also for terminated episodes
        each = (rollout.returns - rollout.values)[:, 0]
        combined = each.mean(1)
        torch.testing.assert_close(rollout.advantages, (combined - combined.mean()) / combined.std(correction=0))

    model._estimate = checked  # type: ignore[method-assign]
    model.set_logger(configure(None, []))
    model.learn(300)
    assert model.logger.name_to_value["rollout/other_reward"] == 2
    assert model.signals["other"].updates >= 3 * model._n_updates
    del model._estimate
    model.save(tmp_path / "model")
    assert PPO.load(tmp_path / "model").signals["other"].updates == model.signals["other"].updates > 0
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
def test_a_second_critic_estimates_every_reward_signal_and_is_saved(memory: int, tmp_path: Path) -> None:
    env = make_toys(spaces.Discrete(2))
    model = PPO(
        "UnityPolicy",
        env,
        3e-3,
        buffer_size=60,
        batch_size=20,
        n_epochs=2,
        time_horizon=None,
        reward_signals=[Extrinsic(), Other(gamma=0.5)],
        device="cpu",
        seed=0,
        second_critic="min",
        policy_kwargs={"hidden_units": 16, "memory_size": memory, "sequence_length": 4},
    )
    model.learn(120)
    policy = model.policy
    assert policy.memory_size == 3 * memory
    observations, before = [torch.randn(5, 4)], torch.randn(5, 3 * memory)
    each = policy.critic_values(observations, before)
    critics = [(policy.critic, policy.value_head), (policy.second_critic, policy.second_value_head)]
    for index, (critic, head) in enumerate(critics):
        own = before[:, (index + 1) * memory : (index + 2) * memory] if memory else None
        torch.testing.assert_close(each[:, index], head(critic(observations, own)[0]))
    torch.testing.assert_close(policy.state_values(observations, before), torch.minimum(each[:, 0], each[:, 1]))
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env, device="cpu")
    assert loaded.second_critic == "min"
    torch.testing.assert_close(loaded.policy.critic_values(observations, before), each, rtol=0, atol=0)
    loaded.learn(60, reset_num_timesteps=False)
    model.export_onnx(tmp_path / "model.onnx")
    observation = np.ones(4, np.float32)
    expected, _ = model.predict(observation, deterministic=True)
    np.testing.assert_array_equal(
        OnnxPolicy(tmp_path / "model.onnx").predict(observation, deterministic=True)[0], expected
    )
    env.close()


@pytest.mark.parametrize("memory", [0, 8])
def test_a_shared_critic_reads_the_actors_features(memory: int, tmp_path: Path) -> None:
    network = {"shared_critic": True, "hidden_units": 16, "memory_size": memory, "sequence_length": 4}
    env = make_toys(spaces.Discrete(2))
    model = PPO("UnityPolicy", env, buffer_size=60, batch_size=20, policy_kwargs=network, device="cpu", seed=0)
    model.learn(130)
    assert model.policy.critic is None
    assert model.policy.memory_size == memory
    observations, before = [torch.randn(5, 4)], torch.randn(5, memory)
    features, _ = model.policy.body(observations, before if memory else None)
    torch.testing.assert_close(model.policy.state_values(observations, before), model.policy.value_head(features))
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", device="cpu")
    torch.testing.assert_close(loaded.policy.state_values(observations, before), model.policy.value_head(features))
    env.close()


def test_a_model_rejects_agents_of_another_behavior(tmp_path: Path) -> None:
    env = UnityVecEnv("Unity-v0", file_name=all_sensors_player.launcher(tmp_path), num_envs=4)
    model = PPO("UnityPolicy", env, device="cpu")
    same_spaces = make_toys(env.action_space, env.observation_space, 4)  # but one vector instead of two sensors
    model.set_env(same_spaces)
    with pytest.raises(UnityGymError, match="incompatible with the behavior spec"):
        model.learn(10)
    same_spaces.close()
    env.close()


def test_schedules_decrease_to_unitys_minimum_and_functions_are_kept() -> None:
    env = make_toys(spaces.Discrete(2))
    model = PPO("UnityPolicy", env, 1e-3, clip_range=0.3, ent_coef=lambda progress: progress, device="cpu")
    assert [model.lr_schedule(p) for p in (1, 0.5, 0)] == pytest.approx([1e-3, 5e-4, 1e-10])
    assert [model._limits(p)[0] for p in (1, 0.5, 0, -1)] == pytest.approx([0.3, 0.2, 0.1, 0.1])
    assert model._limits(0.25)[1:] == (0.25, None)
    small = PPO("UnityPolicy", env, clip_range=0.05, ent_coef_schedule="constant", device="cpu")
    assert small._limits(0) == (0.05, 5e-3, None)  # ε does not grow
    env.close()


def test_learning_that_a_linear_learning_rate_prevents_is_reported() -> None:
    env = make_toys(spaces.Discrete(2))
    options: dict[str, Any] = {"buffer_size": 64, "batch_size": 32, "device": "cpu"}
    model = PPO("UnityPolicy", env, **options)
    with pytest.warns(UserWarning, match="64 timesteps of this learning suffice for one update.*nothing is learned"):
        model.learn(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(128)  # from the start, as in Stable-Baselines3
    with pytest.warns(UserWarning, match=r"several short learnings.*pass learning_rate_schedule='constant'"):
        model.learn(128, reset_num_timesteps=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in (PPO("UnityPolicy", env, learning_rate_schedule="constant", **options), SAC("UnityPolicy", env)):
            other.learn(64)
            other.learn(64, reset_num_timesteps=False)
    env.close()


@pytest.mark.parametrize("option", [{"ent_coef": 0.5}, {"clip_range": lambda _: 0.01}, {"clip_range_vf": 0.01}])
def test_options_that_a_callback_sets_take_effect(option: dict[str, Any]) -> None:
    def weights(learns_with: Callable[[PPO], None], **given: Any) -> torch.Tensor:
        env = make_toys(spaces.Discrete(2))
        model = PPO("UnityPolicy", env, 0.01, buffer_size=64, batch_size=32, seed=3, device="cpu", **given)
        learns_with(model)
        model.learn(128)
        env.close()
        return nn.utils.parameters_to_vector(model.policy.parameters())

    def change(model: PPO) -> None:
        vars(model).update(option)

    expected = weights(lambda _: None, **option)
    torch.testing.assert_close(weights(change), expected, rtol=0, atol=0)
    assert not torch.equal(weights(lambda _: None), expected)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ratio": "row"}, "dimension.*action"),
        ({"rollout": "whole"}, "trajectories"),
        ({"batch_size": 0}, "batch_size"),
        ({"time_horizon": 0}, "time_horizon"),
        ({"reward_signals": [Extrinsic(), Extrinsic()]}, "different names"),
        ({"reward_signals": []}, "one or more"),
        ({"batch_size": 32, "policy_kwargs": {"memory_size": 8}}, "sequence_length 64"),
        ({"policy_kwargs": {"vis_encode_type": "simpel"}}, None),
        ({"action_scaling": "tanh"}, "clip"),
        ({"second_critic": "median"}, "'max', 'min' or 'mean', got 'median'"),
        ({"second_critic": "min", "policy_kwargs": {"shared_critic": True}}, "give one of them"),
    ],
)
def test_wrong_options_raise(wrong: dict, words: str | None) -> None:
    env = make_toys(spaces.Discrete(2))
    if words is None:  # no camera: the type of encoder has no effect
        PPO("UnityPolicy", env, **wrong)
        return
    with pytest.raises((UnityGymError, InvalidValueError), match=words):
        PPO("UnityPolicy", env, **wrong)


def test_sb3s_callbacks_wrappers_and_evaluation_work(tmp_path: Path) -> None:
    def make() -> VecNormalize:
        return VecNormalize(VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)), norm_reward=False)

    callbacks = [
        CheckpointCallback(100, str(tmp_path)),
        EvalCallback(make(), eval_freq=20, n_eval_episodes=2, best_model_save_path=str(tmp_path), verbose=0),
        StopTrainingOnMaxEpisodes(5),
    ]
    model = PPO(
        "UnityPolicy", make(), buffer_size=64, batch_size=32, tensorboard_log=str(tmp_path / "tb"), device="cpu"
    )
    model.learn(10_000, callback=callbacks, progress_bar=False)
    assert model.num_timesteps < 2000
    assert (tmp_path / "best_model.zip").exists()
    assert list(tmp_path.glob("tb/PPO_1/events.*"))
    mean, _ = evaluate_policy(model, make(), n_eval_episodes=2)
    assert mean > 5


def test_agents_of_unity_are_each_waited_for_separately() -> None:
    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    model = PPO("UnityPolicy", env, buffer_size=240, batch_size=64, time_horizon=50, seed=0, device="cpu")
    model.learn(600)
    assert model.num_timesteps >= 600
    assert len(model.ep_info_buffer) > 0
    mean, _ = evaluate_policy(model, env, n_eval_episodes=12, warn=False)
    assert np.isfinite(mean)
    env.close()


@pytest.mark.parametrize("kind", [PPO, SAC])
@pytest.mark.parametrize(("owner", "method"), [(PlayerPool, "_read"), (TrajectoryBuffer, "_finish")])
def test_learning_continues_after_ctrl_c_in_a_step(
    kind: Any, owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives while the state of a player is read, or while the outcomes of a step are stored."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    env = UnityVecEnv("Unity-3DBall-v0", seed=0)
    policy = "UnityPolicy" if kind is PPO else "UnitySACPolicy"
    model = kind(policy, env, batch_size=32, buffer_size=96, seed=0, device="cpu")
    model.learn(60)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.learn(60, reset_num_timesteps=False)
    updates, steps = model._n_updates, model.num_timesteps
    model.learn(240, reset_num_timesteps=False)
    assert model.num_timesteps == steps + 240
    assert model._n_updates > updates
    env.close()


@pytest.mark.parametrize("wrapped", [False, True])
def test_episodes_start_again_after_an_evaluation_in_the_environment_of_the_training(wrapped: bool) -> None:
    env: Any = UnityVecEnv("Unity-3DBall-v0", seed=0)
    network = {"memory_size": 8, "sequence_length": 4}
    model = PPO(
        "UnityPolicy", VecMonitor(env) if wrapped else env, buffer_size=600, batch_size=32, time_horizon=None,
        policy_kwargs=network, seed=0, device="cpu",
    )  # fmt: skip
    model.learn(1000, Stop(5))
    assert env.changes == 6  # the reset, and 5 steps
    model.learn(1000, Stop(5), reset_num_timesteps=False)
    assert env.changes == 11  # the running episodes continue
    evaluate_policy(model, env, 1, warn=False)
    changes = env.changes
    model.learn(1000, Stop(1), reset_num_timesteps=False)
    assert env.changes == changes + 2
    collected = model.collector.take(include_open=True)
    assert collected is not None
    assert collected.lengths.max() == 1  # no decision before the evaluation precedes these
    assert not collected.decisions["memory"].any()
    env.close()


@pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")
@pytest.mark.parametrize("memory", [0, 8])
def test_rows_with_different_decision_periods_all_sensors_and_a_hybrid_action(tmp_path: Path, memory: int) -> None:
    env = UnityVecEnv("Unity-v0", file_name=all_sensors_player.launcher(tmp_path), num_envs=4, seed=0)
    network = {"hidden_units": 16, "normalize": True, "memory_size": memory, "sequence_length": 4}
    model = PPO(
        "UnityPolicy", env, buffer_size=100, batch_size=40, time_horizon=4, seed=0, device="cpu", policy_kwargs=network
    )
    rollouts = []
    take = model._take_rollout
    model._take_rollout = lambda: rollouts.append(take()) or rollouts[-1]  # type: ignore[method-assign]
    model.learn(300)
    sensors = [sensor.name for sensor in env.table.spec.observation_specs]
    place = sensors.index("place")
    for rollout in rollouts:
        rows = rollout.observations[place][:, 0]
        period = rows + 1
        assert set(rows.tolist()) == {0, 1, 2, 3}
        within = ~rollout.is_last
        # reward 1 per tick: none is lost, doubled or credited to another agent
        torch.testing.assert_close(rollout.rewards[within], period[within])
        first = torch.from_numpy(np.cumsum(rollout.lengths) - rollout.lengths)
        own = rollout.trajectory
        assert (rows == rows[first][own]).all()
        steps = rollout.observations[place][:, 1]
        assert (steps[1:] - steps[:-1])[within[:-1]].equal(period[:-1][within[:-1]])
        assert rollout.action_masks[:, 2].equal(rows % 2 == 0)
        ends_of_first = rollout.terminated[rows[first].numpy() == 0]
        assert ends_of_first.any()
        assert not rollout.terminated[rows[first].numpy() != 0].any()
        assert (rollout.lengths <= 4).all()
    del model._take_rollout
    observations = env.reset()
    actions, _ = model.predict(observations, action_masks=env.action_masks())
    assert actions["continuous"].shape == (4, 2)
    assert actions["discrete"].shape == (4, 2)
    columns = model.adapter.sensor_arrays(observations)
    for actual, expected in zip(columns, env.table.observations, strict=True):
        np.testing.assert_array_equal(actual, expected)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", device="cpu")
    again, _ = loaded.predict(observations, deterministic=True, action_masks=env.action_masks())
    once, _ = model.predict(observations, deterministic=True, action_masks=env.action_masks())
    for key in once:
        np.testing.assert_array_equal(once[key], again[key])
    env.close()


@pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")
def test_rows_without_an_agent_do_not_act_with_wrappers_either(tmp_path: Path) -> None:
    env = VecMonitor(UnityVecEnv("Unity-v0", file_name=all_sensors_player.launcher(tmp_path), num_envs=6))
    model = PPO("UnityPolicy", env, buffer_size=40, batch_size=20, time_horizon=4, device="cpu")
    rollouts: list[Any] = []
    take = model._take_rollout
    model._take_rollout = lambda: rollouts.append(take()) or rollouts[-1]  # type: ignore[method-assign]
    model.learn(100)
    for rollout in rollouts:  # reward 1 per tick for each agent
        assert (rollout.rewards[~rollout.is_last] > 0).all()
    env.close()


@pytest.mark.slow
def test_ppo_learns_basic() -> None:
    env = UnityVecEnv("Unity-Basic-v0", seed=0)
    model = PPO(
        "UnityPolicy",
        env,
        3e-4,
        buffer_size=256,
        batch_size=32,
        n_epochs=3,
        time_horizon=3,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=5e-3,
        reward_signals=[Extrinsic(gamma=0.9)],
        learning_rate_schedule="constant",
        policy_kwargs={"hidden_units": 20, "num_layers": 1},
        seed=0,
        device="cpu",
    )
    model.learn(15_000)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=20, deterministic=True, warn=False)
    assert mean > 0.9
    env.close()


@pytest.mark.parametrize("kind", [PPO, SAC])
def test_a_discount_that_is_set_later_takes_effect(kind: Any, tmp_path: Path) -> None:
    def trained(change: bool, **options: Any) -> torch.Tensor:
        signals = [Extrinsic(gamma=0.5)] if options.pop("signal", False) else [Extrinsic()]
        policy = "UnityPolicy" if kind is PPO else "UnitySACPolicy"
        options |= {"buffer_size": 200, "batch_size": 20, "reward_signals": signals, "seed": 0, "device": "cpu"}
        model = kind(policy, make_toys(spaces.Discrete(2)), policy_kwargs={"hidden_units": 8}, **options)
        if change:
            model.gamma = 0.5
        assert model.gamma == (0.5 if change else signals[0].gamma)
        model.save(tmp_path / "model")
        model.learn(200)
        assert signals[0].gamma == (0.99 if change else model.gamma)  # the user's dictionary is unchanged
        return torch.cat([part.detach().flatten() for part in model.policy.parameters()])

    expected = trained(False, signal=True)
    assert torch.equal(trained(True), expected)
    assert kind.load(tmp_path / "model", device="cpu").gamma == 0.5
    assert kind.load(tmp_path / "model", device="cpu", gamma=0.25)._signals()[0].gamma == 0.25
    assert not torch.equal(trained(False), expected)


def test_one_discount_for_several_reward_signals_raises() -> None:
    model = PPO("UnityPolicy", make_toys(spaces.Discrete(2)), reward_signals=[Extrinsic(), Curiosity()], device="cpu")
    with pytest.raises(UnityGymError, match="each of the 2 reward signals has a discount of its own"):
        model.gamma = 0.9
    with pytest.raises(UnityGymError, match=r"gamma must be in \[0, 1\], got 1.5"):
        model.gamma = 1.5
